"""The frame of the console: how it is served, logging in, rights, and losing the hub."""

from collections.abc import Callable
from pathlib import Path

import httpx
from playwright.sync_api import expect

from tests.console.conftest import ConsoleHub, Looker
from tests.ports import own_ports

Look = Callable[..., Looker]


def test_a_browser_at_the_hubs_address_sees_the_overview_without_a_token(look: Look, web: ConsoleHub) -> None:
    page = look(web.url).page
    page.goto(web.url)
    expect(page).to_have_url(f"{web.url}/console/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.locator("#connection")).to_have_text("connected")
    expect(page.get_by_role("link", name="Channels", exact=True).first).to_be_visible()
    expect(page.get_by_role("link", name="Access")).to_have_count(0)


def test_the_page_allows_no_inline_script_and_nothing_from_elsewhere(web: ConsoleHub) -> None:
    page = httpx.get(f"{web.url}/console/")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "unsafe" not in policy
    assert "http" not in page.text
    again = httpx.get(
        f"{web.url}/console/main.js", headers={"if-none-match": httpx.get(f"{web.url}/console/main.js").headers["etag"]}
    )
    assert again.status_code == 304
    for path in ("../app.py", "%2e%2e/app.py", "views", "nothing.js", "/etc/passwd"):
        assert httpx.get(f"{web.url}/console/{path}").status_code == 404


def test_a_wrong_token_is_said_and_a_right_one_is_kept_in_the_tab_alone(look: Look, web: ConsoleHub) -> None:
    tab = look(web.url)
    page = tab.open()
    page.get_by_role("button", name="Log in").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Token").fill("wrong")
    dialog.get_by_role("button", name="Log in").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is not known")
    dialog.get_by_role("button", name="Cancel").click()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    tab.log_in(web.token)
    expect(page.get_by_role("link", name="Access")).to_be_visible()
    page.reload()
    expect(page.locator("#who")).to_have_text("owner")
    assert not [url for url in asked if web.token in url]
    assert page.evaluate("localStorage.length") == 0
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("link", name="Access")).to_have_count(0)
    assert page.evaluate("sessionStorage.length") == 0


def test_what_a_token_may_not_do_is_not_offered_and_is_refused(look: Look, web: ConsoleHub) -> None:
    web.ask("POST", "/api/v1/channels/roles.declared", {})
    tab = look(web.url)
    page = tab.log_in(web.new_token("looker", "observe"), "token:looker")
    tab.open("channels/roles.declared")
    expect(page.get_by_role("heading", name="roles.declared")).to_be_visible()
    expect(page.get_by_text("Declared", exact=True)).to_be_visible()
    for offered in ("Destroy", "Evict", "Create channel"):
        expect(page.get_by_role("button", name=offered)).to_have_count(0)
    expect(page.get_by_role("link", name="Tail")).to_have_count(0)
    tab.open("topics/roles.topic")
    expect(page.get_by_text("Nobody subscribes to it now")).to_be_visible()
    expect(page.get_by_text("A plain topic")).to_be_visible()
    for offered in ("Publish", "Delete", "Follow"):
        expect(page.get_by_role("button", name=offered)).to_have_count(0)
    tab.open("services")
    expect(page.get_by_role("heading", name="Services")).to_be_visible()
    expect(page.get_by_role("button", name="Send all again")).to_have_count(0)
    tab.open("access")
    expect(page.get_by_text('does not have the right "admin"')).to_be_visible()
    refused = page.evaluate(
        """async () => (await fetch("../api/v1/channels/roles.declared", {method: "DELETE", credentials: "omit",
           headers: {authorization: "Bearer " + sessionStorage.getItem("messagehub-token")}})).status"""
    )
    assert refused == 403
    mine = {"authorization": f"Bearer {page.evaluate('sessionStorage.getItem(`messagehub-token`)')}"}
    for method, path, body in (
        ("POST", "/api/v1/dead-letters/resend", {"numbers": [1]}),
        ("POST", "/api/v1/topics/roles.topic/messages", {"json": 1}),
        ("GET", "/api/v1/access", None),
    ):
        assert web.ask(method, path, body, headers=mine).status_code == 403
    assert web.ask("GET", "/api/v1/channels/roles.declared").status_code == 200


def test_a_token_that_is_revoked_is_asked_for_again(look: Look, web: ConsoleHub) -> None:
    from messagehub.security.credentials import AccessFile, revoke

    tab = look(web.url)
    page = tab.log_in(web.new_token("gone", "admin"), "token:gone")
    tab.open("channels")
    revoke(AccessFile(web.directory / "access.json"), "tokens", "gone")
    expect(page.get_by_role("dialog")).to_contain_text("not known to the hub any more")


def test_the_hub_is_lost_and_regained_behind_a_prefix(look: Look, tmp_path: Path) -> None:
    """The page stays, says that the hub is away, and goes on by itself when it is back."""
    directory, port = tmp_path / "lost", own_ports(1)[0]
    directory.mkdir(mode=0o700)
    (directory / "messagehub.toml").write_text('http_prefix = "/hub"\n')
    first = ConsoleHub(directory, "--http", f"127.0.0.1:{port}")
    tab = look(f"{first.url}/hub")
    page = tab.log_in(first.token)
    tab.open("channels")
    expect(page.locator("#connection")).to_have_text("connected")
    first.close()
    expect(page.locator("#connection")).to_contain_text("does not answer. Trying again")
    again = ConsoleHub(directory, "--http", f"127.0.0.1:{port}")
    try:
        expect(page.locator("#connection")).to_have_text("connected")
        again.ask("POST", "/api/v1/channels/after.the.break", {})
        expect(page.get_by_role("link", name="after.the.break")).to_be_visible()
    finally:
        again.close()
