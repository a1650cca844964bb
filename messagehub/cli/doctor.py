"""`messagehub doctor`: what is wrong with this set-up, and what to do about it."""

import contextlib
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

from typer import Exit

from messagehub.cli.diagnosis import Finding
from messagehub.cli.failures import REFUSED
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_json, screen
from messagehub.cli.session import settings_for
from messagehub.display.values import shown
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings, default_dir

_COLOURS = {"ok": 32, "info": 36, "warning": 33, "error": 31}
_INDENT = "\n" + " " * 20


def doctor(endpoint: Endpoint = None, dir: Dir = None, timeout: Timeout = None, as_json: Json = False) -> None:
    """Explain what is wrong with the set-up and what to do about it.

    Looks at the machine, shared memory, the directory, its sockets and database, and the broker; changes nothing.
    0: all is fine; 1: something needs attention.
    """
    findings = list(_diagnose(endpoint, dir, timeout))
    is_fine = not any(finding.is_trouble for finding in findings)
    if as_json:
        echo_json({"ok": is_fine, "findings": findings})
    else:
        _print(findings)
    if not is_fine:
        raise Exit(REFUSED)


def _diagnose(endpoint: str | None, dir: Path | None, timeout: float | None) -> Iterator[Finding]:
    from messagehub.cli.diagnosis.blocks import check_blocks, check_domain
    from messagehub.cli.diagnosis.contact import check_broker
    from messagehub.cli.diagnosis.hub_directory import (
        check_database,
        check_dates,
        check_directory,
        check_disk,
        check_owners,
        check_secrets,
        check_sockets,
    )
    from messagehub.cli.diagnosis.machine import check_java, check_rings, check_shared_memory, check_system
    from messagehub.client.broker_file import is_held
    from messagehub.shm.channel_directory.location import shared_with

    yield from check_system()
    yield from check_shared_memory()
    yield from check_rings()
    yield from check_java()
    try:
        Settings.load(endpoint=endpoint, dir=dir)
    except ConfigurationError as error:
        yield Finding("settings", "error", error.message, "correct the option, MESSAGEHUB_* variable or file it names")
    try:
        settings = settings_for(endpoint, dir, timeout)
    except ConfigurationError:  # which is told already
        with contextlib.suppress(ConfigurationError):  # a user without a home has no directory to look at
            place = Path(dir or os.environ.get("MESSAGEHUB_DIR") or default_dir()).absolute()
            yield from check_directory(place, gid=shared_with(Settings(dir=place)))
        return
    try:
        gid = shared_with(settings)
    except ConfigurationError as error:
        yield Finding("directory", "error", error.message, "ask its owner, or choose another with --dir")
        return
    yield from check_blocks(settings)
    directory = list(check_directory(settings.dir, gid=_group(settings) if gid is None else gid))
    yield from directory
    yield from check_owners(settings.dir)
    secrets = list(check_secrets(settings, is_shared=gid is not None))
    yield from secrets or check_dates(settings)
    try:
        is_running = is_held(settings.lock_path)
    except OSError as error:
        if not any(finding.is_trouble for finding in directory):
            yield Finding(
                "directory",
                "error",
                f"{settings.lock_path} cannot be opened: {error.strerror}",
                f"rm {settings.lock_path} when no broker runs there",
            )
        return
    yield from check_disk(settings.dir)
    yield from check_sockets(settings, is_held=is_running)
    if gid is None or os.access(settings.database_path, os.R_OK):  # a member has no business in it
        yield from check_database(settings, is_held=is_running)
    yield from check_domain(settings, is_held=is_running)
    yield from check_broker(settings, is_held=is_running)


def _group(settings: Settings) -> int | None:
    """Return the group that a hub which has not run yet is for."""
    import grp

    try:
        return grp.getgrnam(settings.group).gr_gid if settings.group else None
    except KeyError:
        return None  # serve says so


def _print(findings: list[Finding]) -> None:
    told = screen()
    for finding in findings:
        severity = f"{finding.severity:<9}"
        if told["is_coloured"]:
            severity = f"\x1b[{_COLOURS[finding.severity]}m{severity}\x1b[0m"
        lines = _wrapped(shown(finding.message), told["width"])
        echo(f"{severity}{finding.check:<10} " + _INDENT.join(lines))
        if finding.fix:
            lines = _wrapped(f"fix: {shown(finding.fix)}", told["width"])
            if told["is_coloured"]:
                lines = [f"\x1b[1m{line}\x1b[0m" for line in lines]
            echo(_INDENT[1:] + _INDENT.join(lines))
    troubles = sum(finding.is_trouble for finding in findings)
    echo("\nall is fine" if not troubles else f"\n{troubles} of {len(findings)} need attention")


def _wrapped(text: str, width: int | None) -> list[str]:
    """Return the text in lines for a screen, cut between words: a path stays whole, to be copied."""
    if width is None:
        return [text]
    room = max(width - len(_INDENT) + 1, 20)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [text]
