"""`messagehub purge`: remove everything that a hub keeps, on disk and in shared memory."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from messagehub.cli.blocks import Domain
from messagehub.cli.options import Dir, Json
from messagehub.cli.output import complain, echo, echo_json, size
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

    The hub must be stopped and no producer may live. messagehub.toml stays, and so does shared memory that another
    running hub uses. There is no way back but a backup.
    """
    from messagehub.shm.location import directory_of

    settings = _settings(dir, domain)
    if settings.dir.exists() and settings.dir.stat().st_uid != os.geteuid():
        raise ConfigurationError(f"{settings.dir} is another user's: only that user removes what is in it")
    directory = directory_of(settings)
    with ExitStack() as held:
        _keep_hub_out(settings, held)
        files = sorted({path for pattern in _FILES for path in settings.dir.glob(pattern)})
        is_served = not _keep_brokers_out(directory, held)
        if not is_served:
            _check_no_producers(directory)
        blocks = [] if is_served else _shared_memory(directory)
        kept = _why_kept(settings) if is_served else None
        size_bytes = sum(map(_bytes_of, [*files, *blocks]))
        if files or blocks:
            if not yes:
                if kept is not None:
                    complain(f"messagehub: {kept}")
                typer.confirm(_question(settings, directory, len(files), len(blocks), size_bytes), abort=True, err=True)
            for path in [*blocks, *files]:
                _remove(path)
            if settings.dir.is_dir() and not any(settings.dir.iterdir()):
                settings.dir.rmdir()
    if as_json:
        echo_json({"removed": list(map(str, [*files, *blocks])), "size_bytes": size_bytes, "kept": kept})
        return
    if files or blocks:
        echo(f"removed {len(files)} files in {settings.dir} and {len(blocks)} in shared memory, {size(size_bytes)}")
    else:
        echo(f"nothing is left of a hub in {settings.dir}")
    if kept is not None and (yes or not files):
        complain(f"messagehub: {kept}")


def _settings(dir: Path | None, domain: str | None) -> Settings:
    """Return the settings with the domain that the hub ran with: that is where its rings and tables are."""
    from messagehub.shm.location import domain_served

    settings = Settings.for_client(dir=dir, domain=domain)
    served = domain_served(settings)
    if served is None or served == settings.domain:
        return settings
    said_by = "--domain" if domain else "MESSAGEHUB_DOMAIN" if os.environ.get("MESSAGEHUB_DOMAIN") else None
    if said_by is not None:
        raise ConfigurationError(
            f"the hub in {settings.dir} ran with domain {served!r}, and {said_by} says {settings.domain!r}: nothing was"
            f" removed; say --domain {served}"
        )
    return Settings.for_client(dir=dir, domain=served)


def _keep_hub_out(settings: Settings, held: ExitStack) -> None:
    """Hold the lock of the directory, so that no hub begins there meanwhile."""
    from messagehub.shm.locks import OWNER, Descriptor, exclusive, try_lock

    if not settings.lock_path.exists():
        return
    lock = Descriptor.open(str(settings.lock_path), os.O_RDWR | os.O_NOFOLLOW)
    held.callback(lock.close)
    if not try_lock(lock.fd, exclusive(OWNER)):
        raise ConfigurationError(f"a hub runs in {settings.dir}: end it with `messagehub stop` first")


def _keep_brokers_out(directory: "Directory", held: ExitStack) -> bool:
    """Hold the domain, and return False while a broker, of another hub, serves it."""
    from messagehub.shm.domain_lock import take_domain

    if not os.path.isdir(os.path.dirname(directory.path)):
        return True
    lock = take_domain(directory)
    if lock is None:
        return False
    held.callback(lock.close)
    return True


def _why_kept(settings: Settings) -> str:
    return (
        f"another hub runs with domain {settings.domain!r}, so its rings and tables in shared memory stay. To remove"
        " them too, stop that hub and purge its directory; to keep hubs apart, give each a domain of its own"
    )


def _question(settings: Settings, directory: "Directory", files: int, blocks: int, size_bytes: int) -> str:
    shared = f" (of group {directory.gid}, whose members may use it)" if directory.gid is not None and blocks else ""
    return (
        f"Remove {files} files in {settings.dir} and {blocks} in shared memory of domain {settings.domain}{shared},"
        f" {size(size_bytes)}?"
    )


def _check_no_producers(directory: "Directory") -> None:
    for channel in directory.channels():
        for producer in directory.producers(channel):
            if producer.is_alive:
                pid = producer.entry.process.pid if producer.entry else "unknown"
                raise ConfigurationError(f"channel {channel!r} has a living producer, pid {pid}: end it first")


def _shared_memory(directory: "Directory") -> list[Path]:
    """Return the rings of exclusive producers, which lie beside a user's domain, and the directory of the domain."""
    rings = [Path(directory.exclusive_block(channel)) for channel in directory.channels() if directory.gid is None]
    domain = Path(os.path.dirname(directory.path))
    return [path for path in (*rings, domain) if path.exists()]


def _bytes_of(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(_bytes_of(inner) for inner in path.iterdir())
    return path.lstat().st_size


def _remove(path: Path) -> None:
    """Remove a file or a directory. In a group's place no link of a member's leads out of it."""
    from messagehub.shm.ownership import parent_of

    if path.is_dir() and not path.is_symlink():
        with parent_of(str(path)) as (parent, name):
            shutil.rmtree(name, dir_fd=parent)
    else:
        path.unlink(missing_ok=True)
