"""`messagehub purge`: remove everything that a hub keeps, on disk and in shared memory."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from messagehub.cli.blocks import Domain
from messagehub.cli.options import Dir, Json
from messagehub.cli.output import echo, echo_json, size
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings

if TYPE_CHECKING:
    from messagehub.shm.directory import Directory

_FILES = (
    *("registry.db", "registry.db-wal", "registry.db-shm"),
    *("broker.json", "broker.lock", "*.sock", "*.sock.lock"),
    *("http.token", "access.json", "keys", "audit*.log*"),
)
"""What a hub writes into its directory. Settings (messagehub.toml) and certificates are the user's and stay."""


def purge(
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    domain: Domain = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Remove all that the hub of the directory keeps: schemas, retained topics, tokens, keys, rings and tables.

    The hub must be stopped and no producer may live. messagehub.toml stays. There is no way back but a backup.
    """
    from messagehub.client.broker_file import is_held
    from messagehub.shm.location import directory_of

    settings = Settings.load(dir=dir, domain=domain)
    if settings.dir.exists() and settings.dir.stat().st_uid != os.geteuid():
        raise ConfigurationError(f"{settings.dir} is another user's: only that user removes what is in it")
    if is_held(settings.lock_path):
        raise ConfigurationError(f"a hub runs in {settings.dir}: end it with `messagehub stop` first")
    directory = directory_of(settings)
    if directory.gid is not None:
        raise ConfigurationError("this hub shares its memory with a group: others may use what lies there")
    _check_no_producers(directory)
    files = sorted({path for pattern in _FILES for path in settings.dir.glob(pattern)})
    blocks = _shared_memory(directory)
    held = sum(map(_bytes_of, [*files, *blocks]))
    if not files and not blocks:
        echo_json({"removed": [], "size_bytes": 0}) if as_json else echo(f"nothing is left of a hub in {settings.dir}")
        return
    if not yes:
        typer.confirm(
            f"Remove {len(files)} files in {settings.dir} and {len(blocks)} in shared memory, {size(held)}?",
            abort=True,
            err=True,
        )
    for path in [*blocks, *files]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    if settings.dir.is_dir() and not any(settings.dir.iterdir()):
        settings.dir.rmdir()
    if as_json:
        echo_json({"removed": list(map(str, [*files, *blocks])), "size_bytes": held})
    else:
        echo(f"removed {len(files)} files in {settings.dir} and {len(blocks)} in shared memory, {size(held)}")


def _check_no_producers(directory: "Directory") -> None:
    for channel in directory.channels():
        for producer in directory.producers(channel):
            if producer.is_alive:
                pid = producer.entry.process.pid if producer.entry else "unknown"
                raise ConfigurationError(f"channel {channel!r} has a living producer, pid {pid}: end it first")


def _shared_memory(directory: "Directory") -> list[Path]:
    """Return the rings of exclusive producers, which lie beside the domain's directory, and that directory."""
    rings = [Path(directory.exclusive_block(channel)) for channel in directory.channels()]
    domain = Path(os.path.dirname(directory.path))
    return [path for path in (*rings, domain) if path.exists()]


def _bytes_of(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(_bytes_of(inner) for inner in path.iterdir())
    return path.lstat().st_size
