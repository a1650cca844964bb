"""`make console-shots`: a picture of each view of the web console, of a live demo, into docs/images/console/."""

import argparse
import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import PeerMissing
from tools.browser import chromium, chromium_path

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "images" / "console"
COLOURS = 256
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
BREAKING = """{
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 40},
    "country": {"type": "string"}
  },
  "required": ["name"]
}"""
VIEWS = {
    "overview": "overview",
    "map": "map",
    "channels": "channels",
    "channel": "channels/demo.pressure",
    "tail": "channels/demo.pressure/tail",
    "schemas": "schemas?tab=graph",
    "compare": "schemas/demo.customer/compare",
    "playground": "schemas/demo.customer/check",
    "topics": "topics",
    "topic": "topics/orders.eu",
    "services": "services",
    "trace": "trace",
    "message": "trace?topic=orders.eu&offset=5",
    "audit": "audit",
    "access": "access",
}
SETTLE_MS = 9_000
"""Charts begin when somebody looks, and should have something to show."""


def take(browser: "Browser", url: str, token: str, chosen: list[str]) -> None:
    for theme, size, names in (
        ("light", WIDE, list(VIEWS)),
        ("dark", WIDE, ["overview", "channel"]),
        ("light", PHONE, ["channel", "topic", "message"]),
    ):
        wanted = [name for name in names if not chosen or name in chosen]
        if not wanted:
            continue
        context = browser.new_context(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{url}/console/")
        page.evaluate("token => sessionStorage.setItem('messagehub-token', token)", token)
        page.reload()
        suffix = "-phone" if size is PHONE else "" if theme == "light" else "-dark"
        for name in wanted:
            page.goto(f"{url}/console/#/{VIEWS[name]}")
            page.wait_for_timeout(SETTLE_MS)
            if name == "playground":
                _break(page)
            _save(page.screenshot(), TARGET / f"{name}{suffix}.png")
        context.close()


def _break(page: "Page") -> None:
    page.get_by_label("Schema", exact=True).fill(BREAKING)
    page.get_by_role("button", name="Check").click()
    page.locator(".text-view").wait_for()


def _save(picture: bytes, path: Path) -> None:
    """Write it with few colours: a page has few, and the file is a third as large."""
    from PIL import Image

    TARGET.mkdir(parents=True, exist_ok=True)
    image = (
        Image.open(BytesIO(picture))
        .convert("RGB")
        .quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    )
    image.save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size >> 10} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("views", nargs="*", metavar="VIEW", help="only these; default: all")
    chosen = parser.parse_args().views
    sys.path.insert(0, str(ROOT / "examples"))
    import live_demo  # type: ignore[import-not-found]

    try:
        path = chromium_path()
    except PeerMissing as missing:
        sys.exit(str(missing))
    with live_demo.demo("127.0.0.1:0", has_spark=live_demo.has_java()) as (url, token), chromium(path) as browser:
        take(browser, url, token, chosen)


if __name__ == "__main__":
    main()
