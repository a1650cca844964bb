"""One Chromium for the tests of a module, and one hub for all tests of the console."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from benchmarks.harness import PeerMissing
from messagehub import MessageHub
from messagehub.security.credentials import AccessFile, allow_token
from tests.admin.conftest import Web
from tools.browser import chromium, chromium_path

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
"""axe-core, which looks for what keeps people from using a page."""
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
PATIENCE_MS = 30_000
"""Far more than anything here takes, so that a loaded machine fails no test."""

expect.set_options(timeout=PATIENCE_MS)


class Looker:
    """A tab that somebody looks at the console with, and what the browser complains of."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _hear(self, message: ConsoleMessage) -> None:
        # That a request was refused or did not arrive is said by the browser itself, and shown by the page.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def open(self, view: str = "") -> Page:
        self.page.goto(f"{self.url}/console/#/{view}")
        return self.page

    def barriers(self) -> list[str]:
        """What keeps people from using the page that is shown."""
        self.page.evaluate(AXE)
        violations = self.page.evaluate("async () => (await axe.run({resultTypes: ['violations']})).violations")
        found = [
            f"{one['id']} {[node['html'][:200] for node in one['nodes'][:3]]}"
            for one in violations
            if one["impact"] in ("serious", "critical")
        ]
        width, size = self.page.evaluate("document.documentElement.scrollWidth"), self.page.viewport_size
        if size is not None and width > size["width"]:
            found.append(f"it is {width} pixels wide")
        return found

    def log_in(self, token: str, name: str = "owner") -> Page:
        if self.page.url == "about:blank":
            self.open()
        self.page.get_by_role("button", name="Log in").click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_label("Token").fill(token)
        dialog.get_by_role("button", name="Log in").click()
        expect(self.page.locator("#who")).to_have_text(name)
        expect(dialog).to_have_count(0)
        return self.page


class ConsoleHub(Web):
    """A hub with its HTTP side, clients of it in this process, and tokens."""

    def connect(self) -> MessageHub:
        """Close it before the test ends: the hub goes on for the tests of other folders in this process."""
        return MessageHub(dir=self.directory, domain=f"pytest-{os.getpid()}-{self.directory.name}")

    def new_token(self, name: str, *rights: str) -> str:
        return allow_token(AccessFile(self.directory / "access.json"), name, [*rights])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole session: while Playwright runs, this thread has an event loop, and `asyncio.run` is refused."""
    try:
        path = chromium_path()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    with chromium(path) as running:
        yield running


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleHub]:
    running = ConsoleHub(tmp_path_factory.mktemp("console") / "console")
    yield running
    running.close()


@pytest.fixture
def look(browser: Browser) -> Iterator[Callable[..., Looker]]:
    """Open tabs, each with a session of its own; afterwards no browser may have complained."""
    opened: list[tuple[BrowserContext, Looker]] = []

    def open_tab(url: str, **options: Any) -> Looker:
        context = browser.new_context(viewport=options.pop("viewport", DESKTOP), **options)
        opened.append((context, Looker(context, url)))
        return opened[-1][1]

    yield open_tab
    for context, _ in opened:
        context.close()
    assert [one.complaints for _, one in opened if one.complaints] == []


@pytest.fixture
def owner(look: Callable[..., Looker], web: ConsoleHub) -> Looker:
    """Somebody who is logged in and may do everything."""
    tab = look(web.url)
    tab.log_in(web.token)
    return tab
