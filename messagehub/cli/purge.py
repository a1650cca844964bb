"""`messagehub purge`: remove everything that a hub keeps, on disk and in shared memory."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from messagehub.cli.blocks import Domain
from messagehub.cli.options import Dir, Json
from messagehub.cli.output import complain, echo, echo_json
from messagehub.display.values import size
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings

if TYPE_CHECKING:
    from messagehub.shm.channel_directory.directory import Directory

_FILES = (
    *("registry.db", "registry.db-wal", "registry.db-shm", "registry.db.before-*"),
    *("broker.json", "broker.lock", "*.sock", "*.sock.lock"),
    *("http.token", "access.json", "keys", "audit*.log*"),
    *("site.json", "retained.db", "retained.db-wal", "retained.db-shm", "retained-since", "gateway.secret"),
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
    running hub uses. There is no way back but a backup. Of a member of a site it removes what is on this host: the
    registry of the site stays in etcd.
    """
    from messagehub.shm.channel_directory.location import directory_of

    settings = _settings(dir, domain)
    if settings.dir.exists() and settings.dir.stat().st_uid != os.geteuid():
        raise ConfigurationError(f"{settings.dir} is another user's: only that user removes what is in it")
    directory = directory_of(settings)
    told: list[str] = []
    with ExitStack() as held:
        found = _found(settings, directory, held)
    if found.files or found.blocks:
        if not yes:
            told = found.stays
            for reason in told:
                complain(f"messagehub: {reason}")
            typer.confirm(_question(settings, directory, found), abort=True, err=True)
        with ExitStack() as held:  # nobody was kept out while the question stood, so all is looked at again
            found = _found(settings, directory, held)
            for path in [*found.blocks, *found.files]:
                _remove(path)
            if settings.dir.is_dir() and not any(settings.dir.iterdir()):
                settings.dir.rmdir()
    files, blocks = len(found.files), len(found.blocks)
    if as_json:
        removed = list(map(str, [*found.files, *found.blocks]))
        echo_json({"removed": removed, "size_bytes": found.size_bytes, "kept": found.kept, "site": found.site})
        return
    if files or blocks:
        echo(f"removed {files} files in {settings.dir} and {blocks} in shared memory, {size(found.size_bytes)}")
    else:
        echo(f"nothing is left of a hub in {settings.dir}")
    for reason in found.stays:
        if reason not in told:
            complain(f"messagehub: {reason}")


class _Found(NamedTuple):
    files: list[Path]
    blocks: list[Path]
    size_bytes: int
    kept: str | None
    """Why the shared memory stays, where it does."""
    site: str | None
    """The site that the hub was a member of."""

    @property
    def stays(self) -> list[str]:
        """What is left in other places, and why."""
        return [text for text in (self.kept, _left_in_etcd(self.site)) if text is not None]


def _found(settings: Settings, directory: "Directory", held: ExitStack) -> _Found:
    """Return what is to be removed. Nobody begins to use it while `held` is open; whoever uses it now is a refusal."""
    _keep_hub_out(settings, held)
    files = sorted({path for pattern in _FILES for path in settings.dir.glob(pattern)})
    site = _site_of(settings)
    if not _keep_brokers_out(directory, held):
        return _Found(files, [], sum(map(_bytes_of, files)), _why_kept(settings), site)
    _check_no_producers(directory)
    blocks = _shared_memory(directory)
    return _Found(files, blocks, sum(map(_bytes_of, [*files, *blocks])), None, site)


def _settings(dir: Path | None, domain: str | None) -> Settings:
    """Return the settings with the domain that the hub ran with: that is where its rings and tables are."""
    from messagehub.shm.channel_directory.location import domain_served

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
    from messagehub.shm.channel_directory.domain_lock import take_domain

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


def _site_of(settings: Settings) -> str | None:
    from messagehub.cluster.site_file import read_site_file

    try:
        present = read_site_file(settings)
    except ConfigurationError:
        return None  # it says nothing, and is removed as the rest is
    return present.site if present is not None else None


def _left_in_etcd(site: str | None) -> str | None:
    from messagehub.shm.identity import host

    if site is None:
        return None
    return (
        f"the registry of site {site} stays in etcd, and this host in the list of its hosts. `messagehub site forget"
        f" {host()} --site {site} --etcd URL` removes it from the list once its lease is over"
    )


def _question(settings: Settings, directory: "Directory", found: _Found) -> str:
    files, blocks = len(found.files), len(found.blocks)
    shared = f" (of group {directory.gid}, whose members may use it)" if directory.gid is not None and blocks else ""
    return (
        f"Remove {files} files in {settings.dir} and {blocks} in shared memory of domain {settings.domain}{shared},"
        f" {size(found.size_bytes)}?"
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
    from messagehub.shm.channel_directory.ownership import parent_of

    if path.is_dir() and not path.is_symlink():
        with parent_of(str(path)) as (parent, name):
            shutil.rmtree(name, dir_fd=parent)
    else:
        path.unlink(missing_ok=True)
