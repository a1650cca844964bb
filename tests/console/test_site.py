"""What the console shows of a site: its hosts, who leads, and who needs attention."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.console.conftest import PHONE, ConsoleHub, Looker
from tests.etcd_server import EtcdMember, etcd
from tests.site.hosts import Site

Look = Callable[..., Looker]


@pytest.fixture(scope="module")
def member() -> Iterator[EtcdMember]:
    with etcd() as (started,):
        yield started


@pytest.fixture
def pair(member: EtcdMember, tmp_path: Path) -> Iterator[Site]:
    """Hosts alpha, which leads and is looked at, and beta."""
    started = Site(tmp_path, member.url)
    try:
        for name in ("alpha", "beta"):
            started.add(name, "--http", "127.0.0.1:0", "--no-gateway")
        yield started
    finally:
        started.close()


def opened(look: Look, site: Site, **options: object) -> Looker:
    tab = look(site["alpha"].http, **options)
    tab.log_in((site["alpha"].dir / "http.token").read_text().strip())
    tab.open("overview")
    return tab


def test_hosts_of_a_site_are_shown_with_who_leads_and_who_is_lost(look: Look, pair: Site) -> None:
    tab = opened(look, pair)
    panel = tab.page.get_by_role("region", name="Hosts of the site")
    expect(panel).to_contain_text(f"Site {pair.name}, seen from alpha")
    alpha, beta = (panel.get_by_role("row").filter(has_text=name) for name in ("alpha", "beta"))
    expect(alpha).to_contain_text("leader")
    expect(beta).to_contain_text("follower")
    expect(beta).to_contain_text("healthy")
    assert tab.barriers() == []
    pair["beta"].kill()
    expect(beta).to_contain_text("lost")
    attention = tab.page.get_by_role("region", name="Attention")
    expect(attention.get_by_role("listitem").filter(has_text="host beta")).to_contain_text("lost")
    phone = opened(look, pair, viewport=PHONE, color_scheme="dark")
    expect(phone.page.get_by_role("region", name="Hosts of the site").get_by_text("lost")).to_be_visible()
    assert phone.barriers() == []


def test_nobody_is_called_healthy_while_etcd_does_not_answer(look: Look, pair: Site, member: EtcdMember) -> None:
    tab = opened(look, pair)
    panel = tab.page.get_by_role("region", name="Hosts of the site")
    expect(panel).to_contain_text("healthy")
    member.pause()
    try:
        expect(panel.get_by_text("unknown")).to_have_count(2)
        expect(panel).not_to_contain_text("healthy")
        attention = tab.page.get_by_role("region", name="Attention")
        expect(attention.get_by_role("listitem").filter(has_text="etcd")).to_contain_text("fails")
    finally:
        member.go_on()
    expect(panel.get_by_text("unknown")).to_have_count(0)


def test_a_hub_on_its_own_shows_no_site(owner: Looker, web: ConsoleHub) -> None:
    page = owner.open("overview")
    expect(page.locator("dl.facts")).to_contain_text("Host")
    expect(page.get_by_role("region", name="Hosts of the site")).to_have_count(0)
