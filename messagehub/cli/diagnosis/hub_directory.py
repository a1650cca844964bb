"""The hub's place: its directory, the sockets and the database in it. Nothing here is changed by looking at it."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from messagehub.cli.diagnosis import Finding
from messagehub.errors import ConfigurationError, StoreError
from messagehub.security.private_files import check_private, user_name
from messagehub.settings import Settings

LEAST_DISK_BYTES = 32 << 20


def check_directory(directory: Path, *, gid: int | None = None) -> Iterator[Finding]:
    """Whether a broker would take it, and could work in it; a member of the hub's group only looks."""
    try:
        found = directory.stat()
    except FileNotFoundError:
        yield from _check_parent(directory)
        return
    except OSError as error:
        yield Finding(
            "directory", "error", f"{directory} cannot be looked at: {error.strerror}", "choose another with --dir"
        )
        return
    if not stat.S_ISDIR(found.st_mode):
        yield Finding(
            "directory", "error", f"{directory} is not a directory", "choose another with --dir, or move it away"
        )
        return
    if gid is not None and found.st_uid != os.getuid() and (found.st_gid, found.st_mode & 0o777) == (gid, 0o750):
        yield Finding("directory", "ok", f"{directory} is of user {found.st_uid}, who shares it with group {gid}")
        return
    troubles = list(_directory_troubles(directory, found, forbidden=0o027 if gid is not None else 0o077))
    yield from troubles
    if os.getuid() == 0 and found.st_uid != 0:
        yield Finding(
            "directory",
            "info",
            f"{directory} belongs to user {found.st_uid} ({user_name(found.st_uid)}), who runs the hub in it",
            f"run what changes it as that user: sudo -u '{user_name(found.st_uid)}' messagehub …",
        )
    elif not troubles:
        whose = "yours and private" if gid is None else f"yours and shared with group {gid}"
        yield Finding("directory", "ok", f"{directory} is {whose}")


def check_owners(directory: Path) -> Iterator[Finding]:
    """Files that the hub cannot use because another user, perhaps root, made them."""
    try:
        owner = directory.stat().st_uid
        paths = [*directory.iterdir(), *(directory / "keys").glob("*")]
    except OSError:
        return  # the directory is reported already
    for path in paths:
        try:
            uid = path.lstat().st_uid
        except FileNotFoundError:
            continue  # the hub has removed it meanwhile
        if uid != owner:
            yield Finding(
                "directory",
                "error",
                f"{path} belongs to user {uid} ({user_name(uid)}), not to the directory's owner",
                f"have root run: chown {owner} {path}",
            )


def check_secrets(settings: Settings, *, is_shared: bool) -> Iterator[Finding]:
    """Files, tokens, keys and certificates that serve would refuse; only their owner, and root, can look at them."""
    from messagehub.broker.instance_lock import private_files
    from messagehub.cli.http_checks import check_http
    from messagehub.security.credentials import AccessFile, server_public_key

    try:
        if os.getuid() not in (0, settings.dir.stat().st_uid):
            return
    except OSError:
        return  # the directory is reported already
    told: set[str] = set()
    checks: tuple[Callable[[], object], ...] = (
        *(
            partial(check_private, path, forbidden=forbidden)
            for path, forbidden in private_files(settings.dir, is_shared=is_shared)
        ),
        lambda: check_http(settings, is_open=False),
        lambda: AccessFile(settings.access_path).read(),
        lambda: server_public_key(settings.keys_path),
    )
    for check in checks:
        try:
            check()
        except ConfigurationError as error:
            message, _, fix = error.message.rpartition(": ")
            if error.message not in told:
                yield Finding("secrets", "error", message or error.message, fix)
            told.add(error.message)
        except OSError as error:
            yield Finding("secrets", "error", str(error), "let the directory's owner read it")


def check_dates(settings: Settings) -> Iterator[Finding]:
    """Whether the certificate is valid now; `check_secrets` has found that it can be served."""
    from messagehub.cli.http_checks import wrong_dates

    if (said := wrong_dates(settings)) is not None:
        yield Finding("secrets", "warning", said, "renew it, and send the hub SIGHUP")


def check_sockets(settings: Settings, *, is_held: bool) -> Iterator[Finding]:
    """Socket files without a listener; `is_held` says whether a broker holds the directory's lock."""
    from messagehub.broker.instance_lock import is_listening

    for endpoint in (settings.endpoint, settings.events_endpoint):
        if not endpoint.startswith("ipc://"):
            continue
        path = Path(endpoint.removeprefix("ipc://"))
        if path.parent != settings.dir and path.parent.exists():
            yield from (found for found in check_directory(path.parent) if found.is_trouble)
        try:
            is_socket = stat.S_ISSOCK(path.lstat().st_mode)
        except OSError:
            continue  # not there, or in a directory that is reported already
        if not is_socket:
            yield Finding("sockets", "error", f"{path} is in the way: it is not a socket", f"move {path} away")
        elif not is_held and is_listening(path):
            yield Finding(
                "sockets",
                "warning",
                f"some process listens on {path} without the lock of {settings.dir}",
                f"find it with `ss -xlp src {path}` and stop it: a new broker would take its socket away",
            )
        elif not is_held:
            yield Finding(
                "sockets",
                "warning",
                f"{path} is stale: no process listens on it",
                f"messagehub serve takes it over; or rm {path}",
            )


def check_database(settings: Settings, *, is_held: bool) -> Iterator[Finding]:
    """Whether a broker could load it: tried on a copy, since opening a database may already write to it."""
    path = settings.database_path
    if settings.site_path.exists():
        said = "the registry is in etcd: this hub is a member of a site, which `messagehub hosts` shows"
        yield Finding("database", "ok", said)
        return
    try:
        size = path.lstat().st_size
    except FileNotFoundError:
        yield Finding("database", "ok", f"{path} does not exist yet; serve makes it")
        return
    except OSError:
        return  # the directory is reported already
    if is_held:
        yield Finding("database", "ok", f"{path} is in use by the broker")
        return
    try:
        why = _cannot_load(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            fix = f"free some space on it (df -h {tempfile.gettempdir()})"
            yield Finding("database", "warning", f"{path} was not read: there is no room for a copy of it", fix)
            return
        owner = path.parent.stat().st_uid
        fix = f"have root run: chown {owner} {path}; or run this as user {user_name(owner)}"
        yield Finding("database", "error", f"{path} cannot be read: {error.strerror}", fix)
        return
    if why is None:
        yield Finding("database", "ok", f"{path} is sound ({size >> 10} KiB)")
    else:
        yield Finding("database", "error", why, f"restore {path} from a backup, or move it away (mv {path} {path}.old)")


def check_disk(directory: Path) -> Iterator[Finding]:
    existing = next((path for path in (directory, *directory.parents) if path.is_dir()), None)
    if existing is None:
        return
    free = shutil.disk_usage(existing).free
    if free < LEAST_DISK_BYTES:
        yield Finding(
            "disk",
            "warning",
            f"{existing} has {free >> 20} MiB left: a hub that cannot store serves reads only",
            f"free some space on it (df -h {existing})",
        )


def _check_parent(directory: Path) -> Iterator[Finding]:
    parent = next(path for path in directory.parents if path.exists())
    if os.access(parent, os.W_OK | os.X_OK):
        yield Finding("directory", "ok", f"{directory} does not exist yet; serve makes it")
    else:
        yield Finding(
            "directory",
            "error",
            f"{directory} does not exist, and {parent} does not let you make it",
            "choose another with --dir",
        )


def _directory_troubles(directory: Path, found: os.stat_result, *, forbidden: int) -> Iterator[Finding]:
    if os.getuid() not in (0, found.st_uid):
        name = user_name(found.st_uid)
        yield Finding(
            "directory",
            "error",
            f"{directory} belongs to user {found.st_uid} ({name}), not to you ({os.getuid()})",
            f"choose another with --dir, or run this as user {name}",
        )
        return  # its mode is that user's business
    if stat.S_IMODE(found.st_mode) & forbidden:
        yield Finding(
            "directory",
            "error",
            f"{directory} is open to other users (mode {stat.S_IMODE(found.st_mode):o}); serve refuses that",
            f"chmod 700 {directory}",
        )
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "directory",
            "error",
            f"you may not read and write in {directory} (mode {stat.S_IMODE(found.st_mode):o})",
            f"chmod 700 {directory}",
        )


def _cannot_load(path: Path) -> str | None:
    """What serve would say of the database."""
    from messagehub.store.sqlite import SQLiteStore

    with tempfile.TemporaryDirectory(prefix="messagehub-doctor-") as place:
        copy = Path(place) / path.name
        shutil.copyfile(path, copy)
        log = path.with_name(path.name + "-wal")
        if log.exists():
            shutil.copyfile(log, copy.with_name(log.name))
        try:
            store = SQLiteStore(copy, sync="off", keeps_copy=False)
            try:
                store.load()
            finally:
                store.close()
        except StoreError as error:
            return error.message.partition(": ")[0].replace(str(copy), str(path))
    return None
