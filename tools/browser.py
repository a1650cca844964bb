"""Chromium for the tests of the web console and for `make console-shots`, driven by Playwright.

Debian's Chromium is used, because Playwright's own is fetched from the internet.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.harness import PeerMissing
from benchmarks.packages import program

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_HEADLESS, _COMPLETE = "chromium-headless-shell", "chromium"
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),  # /dev/shm is the hub's
)


def chromium_path() -> str:
    """Return where Chromium is, installed if need be: the one without a desktop, which takes less of a processor."""
    try:
        return program(_HEADLESS, _HEADLESS)
    except PeerMissing:
        return program(_COMPLETE, _COMPLETE)


@contextmanager
def chromium(path: str) -> Iterator["Browser"]:
    """A headless browser; each page of it begins with an empty profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=[*_FLAGS])
        try:
            yield browser
        finally:
            browser.close()
