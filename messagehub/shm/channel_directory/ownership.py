"""The owner of a path in shared memory: one user or a group. The path says which; one rule holds for all below it.

    <root>/messagehub-<uid>/…    one user's: 0700 and 0600, and nothing of anybody else is accepted
    <root>/messagehub@<gid>/…    a group's: 2770 and 0660; no domain, channel or member can have an '@' in its name

Rule 1: in a group's place every directory on the way is opened without following links and checked on its descriptor,
and files are made, opened and removed relative to the last one. So a member who replaces a directory by a link, at
whatever moment, leads nobody out of the place.
Rule 2: only a member can give a file to the group (the kernel sees to that), so a file's group proves who made it.
Rule 3: a file that others than the group could read or write is refused and not mended: somebody may have used it.
"""

import contextlib
import ctypes
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from typing import Final

from messagehub.shm.errors import NameRefused, RootUnusable, SharingRefused, SymlinkRefused

DIRECTORY_MODE: Final = 0o2770
FILE_MODE: Final = 0o660
_PLACE: Final = re.compile(r"(?P<root>.*?)/(?P<place>messagehub@(?P<gid>[0-9]{1,10})(?:/.*)?)", re.DOTALL)
_STICKY: Final = 0o1000  # allowed, because it only takes rights away
_NOREPLACE: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def place_name(uid: int, gid: int | None) -> str:
    return f"messagehub-{uid}" if gid is None else f"messagehub@{gid}"


def group_of(path: str) -> int | None:
    """Return the group whose place the path is in; None for a path of one user."""
    if "/messagehub@" not in path:
        return None
    found = _PLACE.fullmatch(path)
    return int(found["gid"]) if found else None


def is_written_by_others(path: str) -> bool:
    """Return whether other users may have written the file: only in a group's place are files of others opened."""
    return group_of(path) is not None


def is_member(gid: int) -> bool:
    """Return whether this process may act for the group. Root may always."""
    return os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups())


@contextlib.contextmanager
def parent_of(path: str) -> Iterator[tuple[int | None, str]]:
    """Yield a `dir_fd` and the name to use with it; outside of a group's place None and the whole path."""
    if group_of(path) is None:
        yield None, path
        return
    fd = _open_directory(os.path.dirname(path))
    try:
        yield fd, os.path.basename(path)
    finally:
        os.close(fd)


def share(fd: int, path: str) -> None:
    """Give a file that this process has just made to the group whose place it is in, if any."""
    gid = group_of(path)
    if gid is not None:
        os.fchown(fd, -1, gid)
        os.fchmod(fd, FILE_MODE)


def check_access(path: str, status: os.stat_result, gid: int, allowed: int) -> None:
    """Refuse a file that is not the group's, or whose mode has more rights than `allowed`."""
    if status.st_gid != gid:
        raise SharingRefused(path, f"belongs to group {status.st_gid} (user {status.st_uid}), not to group {gid}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~allowed:
        raise SharingRefused(path, f"is open to others than group {gid} (mode {mode:o}, at most {allowed:o})")


def make_shared_directory(path: str, gid: int) -> None:
    """Make a directory in an existing one, if needed. It gets its name once it is the group's, and not before."""
    with parent_of(path) as (parent, name):
        if not _exists(name, parent):
            temporary = f".{secrets.token_hex(16)}"
            os.mkdir(temporary, 0o700, dir_fd=parent)
            fd = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                os.fchown(fd, -1, gid)
                os.fchmod(fd, DIRECTORY_MODE)
            finally:
                os.close(fd)
            if not _name(parent, temporary, name, path):
                os.rmdir(temporary, dir_fd=parent)
    os.close(_open_directory(path))


def list_directory(path: str) -> list[str]:
    """Return the names in a directory, which is opened according to rule 1."""
    if group_of(path) is None:
        return os.listdir(path)
    fd = _open_directory(path)
    try:
        return os.listdir(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _open_directory(path: str) -> int:
    found = _PLACE.fullmatch(path)
    if found is None:  # the directory that holds the place is the system's, such as /dev/shm
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    gid, here = int(found["gid"]), found["root"]
    fd = os.open(here or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in found["place"].rstrip("/").split("/"):
            here = f"{here}/{name}"
            if name in ("", ".", ".."):
                raise NameRefused(path, "it leads elsewhere")
            following = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = following
            _check_directory(here, os.fstat(fd), gid)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_directory(path: str, status: os.stat_result, gid: int) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise SymlinkRefused(path)
    if not stat.S_ISDIR(status.st_mode):
        raise RootUnusable(path, "it is not a directory")
    check_access(path, status, gid, DIRECTORY_MODE | _STICKY)


def _exists(name: str, parent: int | None) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _name(parent: int | None, temporary: str, name: str, path: str) -> bool:
    """Rename, or return False if the name exists: a plain rename would replace another member's empty directory."""
    if not hasattr(_libc, "renameat2"):
        raise RootUnusable(path, "the C library has no renameat2")
    assert parent is not None
    if _libc.renameat2(parent, os.fsencode(temporary), parent, os.fsencode(name), _NOREPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.EEXIST:
        return False
    raise OSError(number, os.strerror(number), path)
