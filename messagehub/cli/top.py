"""`messagehub top`: what the hub does now, in a terminal."""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from messagehub.cli.options import Dir, Endpoint, Json, seconds
from messagehub.cli.output import echo, echo_json, screen
from messagehub.cli.session import settings_for
from messagehub.errors import ConfigurationError

if TYPE_CHECKING:
    from messagehub.cli.dashboard.observer import HubObserver, HubSnapshot


def top(
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only lines that contain this.")] = "",
    *,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="COLUMN", help="The column by which channels are sorted.")
    ] = None,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", parser=seconds, help="How often the screen is made anew.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one screen as text, and end.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Show channels with their rates and lag, hosts, services and events, until q.

    Rates and lag are those of this host, read from shared memory: nobody waits for it. Where no terminal is, or with
    --json, one screen is printed. Without a broker it shows what the directory of this host knows, and says so.
    """
    from messagehub.cli.dashboard.columns import COLUMNS, DEFAULT_SORT, column_named

    by = DEFAULT_SORT["channels"] if sort is None else column_named("channels", sort)
    if by is None:
        known = ", ".join(column.heading.lower() for column in COLUMNS["channels"])
        raise typer.BadParameter(f"{sort!r} is no column; there are {known}.", param_hint="--sort")
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    with _observer(endpoint, dir) as observer:
        if once or as_json or not has_terminal:
            _print(_sampled(observer, every), text, by, as_json=as_json)
        else:
            _show(observer, text, by, every)


@contextmanager
def _observer(endpoint: str | None, dir: Path | None) -> Iterator["HubObserver"]:
    from messagehub.cli.dashboard.observer import HubObserver

    log = logging.getLogger("messagehub")
    level = log.level
    log.setLevel(logging.CRITICAL)  # the screen says what is wrong
    observer = HubObserver(settings_for(endpoint, dir, None))
    try:
        yield observer
    finally:
        observer.close()
        log.setLevel(level)


def _sampled(observer: "HubObserver", every: float) -> "HubSnapshot":
    """Return a snapshot with rates, which need two samples."""
    began = time.monotonic()
    observer.look()
    time.sleep(max(began + every - time.monotonic(), 0.0))
    snapshot = observer.look("services")
    snapshot.hosts = observer.look("hosts", max_age_seconds=every).hosts
    return snapshot


def _print(snapshot: "HubSnapshot", text: str, by: int, *, as_json: bool) -> None:
    from messagehub.cli.dashboard.columns import arranged
    from messagehub.cli.dashboard.texts import whole

    if as_json:
        snapshot.channels = arranged(snapshot.channels, "channels", contains=text, by=by, is_reversed=False)
        echo_json(snapshot)
    else:
        echo("\n".join(whole(snapshot, contains=text, by=by, is_reversed=False, **screen())))


def _show(observer: "HubObserver", text: str, by: int, every: float) -> None:
    try:
        from messagehub.cli.dashboard.app import TopApp
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith(("textual", "rich")):
            raise
        raise ConfigurationError(
            "`messagehub top` needs a package that is not installed: pip install 'messagehub[top]'."
            " `messagehub top --once` works without it"
        ) from None
    if os.environ["TERM"].startswith("vt"):
        os.environ.setdefault("NO_COLOR", "1")  # those terminals have none
    TopApp(observer, contains=text, by=by, every=every).run(mouse=False)
