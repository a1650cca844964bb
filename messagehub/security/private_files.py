"""Files and directories that belong to one user, and what is refused in their place.

Rule 1: a file is checked on its opened descriptor, never by its name alone, and no symlink is followed to it.
Rule 2: what others could read or change is refused with the command that mends it; it is never mended silently,
since somebody may have read it already.
Rule 3: in a hub's directory only its owner makes files, not even root: the hub could not use what root leaves there.
"""

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from messagehub.errors import ConfigurationError

OTHERS = 0o077
OTHERS_WRITE = 0o022
GROUP_MAY_READ = 0o037
MAX_BYTES = 1 << 20


def read_private(path: Path, *, forbidden: int = OTHERS) -> bytes:
    """Return the content of a small file of ours. Raise FileNotFoundError if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except PermissionError:
        check_private(path, forbidden=forbidden)
        raise ConfigurationError(f"cannot read {path}: permission denied") from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {_reason(error)}") from None
    with os.fdopen(fd, "rb") as file:
        _check_access(path, os.fstat(fd), forbidden)
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigurationError(f"{path} is larger than {MAX_BYTES} bytes")
    return content


def write_private(path: Path, content: bytes, *, mode: int = 0o600, gid: int = -1, replace: bool = True) -> None:
    """Write a file whole or not at all.

    With `replace=False` an existing one is left alone and FileExistsError raised.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
            _share(fd, mode, gid)
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)
    finally:
        if temporary.exists():
            temporary.unlink()


def check_private(path: Path, *, forbidden: int = OTHERS) -> None:
    """Refuse a file of the hub's that is not ours, not a file, or open to others. One that is not there is fine."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise ConfigurationError(f"{path} is a symbolic link: remove it")
    _check_access(path, found, forbidden)


def private_directory(path: Path, *, mode: int = 0o700, gid: int = -1) -> None:
    """Make the directory; refuse one that is another's or that others could look into or change."""
    try:
        is_new = not path.exists()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_new:
            _share(path, mode, gid)
        found = path.stat()
    except OSError as error:
        raise ConfigurationError(f"cannot use directory {path}: {error.strerror}") from error
    if found.st_uid != os.geteuid():
        raise _not_ours(path, found.st_uid)
    if is_planted(path):
        raise ConfigurationError(f"directory {path} is a link that belongs to another user: choose another with --dir")
    if stat.S_IMODE(found.st_mode) & OTHERS & ~mode:
        raise ConfigurationError(f"directory {path} is open to other users: chmod {mode:o} {path}")
    if gid >= 0 and (found.st_gid != gid or stat.S_IMODE(found.st_mode) != mode):
        raise ConfigurationError(f"directory {path} is not its group's: chgrp {gid} {path} && chmod {mode:o} {path}")


def check_own_directory(path: Path) -> None:
    """Refuse a directory in which this user should not make files."""
    owner = path.stat().st_uid
    if owner != os.geteuid() and (os.geteuid() == 0 or not os.access(path, os.W_OK)):
        raise _not_ours(path, owner)


def user_name(uid: int) -> str:
    """Return the user's name or, where it has none, `#UID`, which sudo takes too."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def _not_ours(path: Path, owner: int) -> ConfigurationError:
    name = user_name(owner)
    advice = f"run this as that user (sudo -u '{name}' messagehub …), or choose another directory with --dir"
    if path.parent.stat().st_uid == os.geteuid() != 0:  # somebody left it in a directory of ours
        advice = f"have root run chown -R {os.geteuid()} {path}"
    return ConfigurationError(f"directory {path} belongs to another user, {name}: {advice}")


def is_planted(path: Path) -> bool:
    """Return whether it is a link that somebody else made, and could make lead elsewhere."""
    return path.lstat().st_uid not in (0, os.geteuid())


@contextlib.contextmanager
def private_umask(mode: int = 0o077) -> Iterator[None]:
    """Let nobody else open a file that foreign code makes in this block, before we have set its mode."""
    before = os.umask(mode)
    try:
        yield
    finally:
        os.umask(before)


def _check_access(path: Path, found: os.stat_result, forbidden: int) -> None:
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISSOCK(found.st_mode):
        raise ConfigurationError(f"{path} is not a regular file: remove it")
    if found.st_uid not in _believed(path):
        raise _of_another(path, found.st_uid)
    if os.geteuid() != 0 and found.st_uid == 0 and not os.access(path, os.R_OK):
        raise _of_another(path, 0)
    loose = stat.S_IMODE(found.st_mode) & forbidden
    if loose:
        advice = f"chmod {stat.S_IMODE(found.st_mode) & ~forbidden:o} {path}"
        raise ConfigurationError(f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):o}): {advice}")


def _of_another(path: Path, owner: int) -> ConfigurationError:
    """Return the error for a file of another user.

    It never advises to remove the file, since its owner is easily changed.
    """
    name = user_name(owner)
    if path.parent.stat().st_uid == os.geteuid():  # somebody left it in a directory of ours
        return ConfigurationError(f"{path} belongs to another user, {name}: have root run chown {os.geteuid()} {path}")
    return ConfigurationError(
        f"permission denied for {path}, which belongs to another user, {name}: only {name} may do this (sudo -u"
        f" '{name}' messagehub …)"
    )


def _believed(path: Path) -> tuple[int, ...]:
    """Return whose files are read: our own, root's and, by root, those of whoever owns the directory."""
    own = os.geteuid()
    return (0, own) if own else (0, path.parent.stat().st_uid)


def _share(target: int | Path, mode: int, gid: int) -> None:
    if gid >= 0:
        os.chown(target, -1, gid)
    os.chmod(target, mode)


def _reason(error: OSError) -> str:
    return "it is a symbolic link" if error.errno == 40 else str(error.strerror)  # ELOOP
