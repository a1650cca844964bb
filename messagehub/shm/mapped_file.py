"""A block's file and its mapping.

Rule 1: a block gets its name when it is complete: it is made without a name (O_TMPFILE) and linked, so a
creator that dies leaves nothing, nobody sees a half-made block, and two creators cannot both win.
Rule 2: memory is allocated before it is used: a full tmpfs is an error at creation, never a SIGBUS later.
Rule 3: nothing is followed or trusted by name: no symlinks, the owner is checked on the opened file. In a group's
place (see `ownership`) that is the group, and what is made there is the group's.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from typing import Final

from messagehub.shm.channel_directory.ownership import (
    FILE_MODE,
    check_access,
    group_of,
    make_shared_directory,
    parent_of,
    share,
)
from messagehub.shm.errors import (
    DataBlockError,
    EntryDamaged,
    ForeignOwner,
    NameTaken,
    NameTooLong,
    NothingThere,
    PermissionRefused,
    RootUnusable,
    ShmFull,
    SymlinkRefused,
    TooManyOpenFiles,
    TruncatedBlock,
    WritableByOthers,
    WrongMagic,
)
from messagehub.shm.layout import HEAD, HEADER_BYTES, Header, claimed_schema_bytes
from messagehub.shm.locks import Descriptor, require_linux

DEFAULT_ROOT: Final = "/dev/shm"
SMALL_BYTES: Final = (
    64 << 20
)  # limit for entries, manifests and schemas: a manifest of 100,000 parts takes a quarter of it
_MADV_POPULATE_WRITE: Final = 23
_MAP_FIXED: Final = 0x10
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class Segment:
    """One mapped file. `words` and `data` are the same bytes, as 8-byte words and as bytes."""

    def __init__(self, path: str, descriptor: Descriptor, size: int, *, writable: bool) -> None:
        self.path = path
        self.descriptor = descriptor
        self.size = size
        self.mapping = map_file(descriptor.fd, size, writable=writable)
        self.data = memoryview(self.mapping)
        self.words = self.data[: size // 8 * 8].cast("Q")

    @classmethod
    def create(cls, path: str, size: int) -> "Segment":
        """Make a zeroed, allocated and prefaulted file without a name; `publish` gives it the name `path`."""
        descriptor = create_unnamed(path)
        allocate(descriptor.fd, size, path)
        segment = cls(path, descriptor, size, writable=True)
        try:
            segment.mapping.madvise(_MADV_POPULATE_WRITE)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):  # kernels before 5.14 fault pages in as they are used
                raise refusal(error, path, size) from None
        return segment

    @classmethod
    def attach(cls, path: str, *, writable: bool = False) -> "Segment":
        descriptor = open_trusted(path, os.O_RDWR if writable else os.O_RDONLY)
        status = os.fstat(descriptor.fd)
        size, held = status.st_size, status.st_blocks * 512
        if size < HEADER_BYTES or held < size:
            # Our blocks are allocated in full (rule 2). A file with holes is not ours; reading it could be a SIGBUS.
            descriptor.close()
            raise TruncatedBlock(path, max(size, HEADER_BYTES), min(size, held))
        return cls(path, descriptor, size, writable=writable)

    def header(self) -> Header:
        return Header.unpack(self.data[: self.size], self.path, self.size)

    def publish(self) -> None:
        publish(self.descriptor.fd, self.path)

    def is_published(self) -> bool:
        return os.fstat(self.descriptor.fd).st_nlink > 0


def make_own_directory(path: str) -> None:
    """Make a directory for this user alone (in a group's place: for the group) in an existing one, if needed.

    A directory that belongs to others, or is open to them, is refused.
    """
    require_linux()
    gid = group_of(path)
    try:
        if gid is not None:
            make_shared_directory(path, gid)
            return
        os.mkdir(path, 0o700)
    except FileExistsError:
        expected = os.geteuid()
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            raise NothingThere(path) from None  # a cleaner removed it meanwhile
        if stat.S_ISLNK(status.st_mode):
            raise SymlinkRefused(path) from None
        if status.st_uid != expected:
            raise ForeignOwner(path, status.st_uid, expected) from None
        if not stat.S_ISDIR(status.st_mode):
            raise RootUnusable(path, "it is not a directory") from None
        if status.st_mode & 0o077:
            raise RootUnusable(path, f"it is open to other users: chmod 700 {path}") from None
    except FileNotFoundError:
        raise RootUnusable(os.path.dirname(path), "it does not exist") from None
    except OSError as error:
        raise refusal(error, path) from None


def create_unnamed(path: str) -> Descriptor:
    """Make a file on the file system of `path` that vanishes unless `publish` names it."""
    require_linux()
    parent = os.path.dirname(path)
    try:
        with parent_of(path) as (parent_fd, _):
            place = parent if parent_fd is None else "."
            descriptor = Descriptor.open(place, os.O_TMPFILE | os.O_RDWR, dir_fd=parent_fd)
        os.fchmod(descriptor.fd, 0o600)
        share(descriptor.fd, path)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR):
            raise RootUnusable(parent, "its file system has no unnamed files (O_TMPFILE)") from None
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise RootUnusable(parent, "it is not a directory") from None
        raise refusal(error, path) from None
    return descriptor


def publish(fd: int, path: str) -> None:
    """Give an unnamed file its name, in one step; NameTaken if the name exists already."""
    try:
        with _directory_of(path) as (directory, name):
            # With a directory descriptor Python calls linkat(AT_SYMLINK_FOLLOW); without one it would link
            # the /proc entry itself.
            os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=directory, follow_symlinks=True)
    except FileExistsError:
        raise NameTaken(path, None) from None
    except OSError as error:
        raise refusal(error, path) from None


def write_file(path: str, content: bytes) -> None:
    """Write a small immutable file, whole or not at all."""
    descriptor = create_unnamed(path)
    try:
        written = os.write(descriptor.fd, content)
        if written != len(content):
            raise OSError(errno.ENOSPC, "short write")
    except OSError as error:
        raise refusal(error, path, len(content)) from None
    publish(descriptor.fd, path)
    descriptor.close()


def read_file(descriptor: Descriptor, path: str, limit: int = SMALL_BYTES) -> bytes:
    """Return the content of a small file; EntryDamaged for a file larger than any that we write."""
    size = os.fstat(descriptor.fd).st_size
    if size > limit:
        raise EntryDamaged(path, f"it has {size} bytes, more than {limit}")
    return os.read(descriptor.fd, size)


def remove_file(path: str) -> bool:
    """Unlink a file; False if it was gone already."""
    try:
        with parent_of(path) as (parent, name):
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    return True


def replace_file(path: str, content: bytes) -> None:
    """Replace a file by a small one, in one step. The caller holds a lock, so the temporary name is its alone."""
    temporary = f"{path}.new"
    remove_file(temporary)
    write_file(temporary, content)
    with parent_of(path) as (parent, name):
        os.rename(f"{name}.new", name, src_dir_fd=parent, dst_dir_fd=parent)


def open_trusted(path: str, flags: int) -> Descriptor:
    """Open an existing regular file that only this process's user may write, or in a group's place the group."""
    require_linux()
    try:
        with parent_of(path) as (parent, name):
            descriptor = Descriptor.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    except OSError as error:
        raise refusal(error, path) from None
    status = os.fstat(descriptor.fd)
    gid = group_of(path)
    if gid is not None:
        check_access(path, status, gid, FILE_MODE)
    else:
        expected = os.geteuid()
        if status.st_uid != expected:
            raise ForeignOwner(path, status.st_uid, expected)
        if stat.S_ISREG(status.st_mode) and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise WritableByOthers(path, stat.S_IMODE(status.st_mode))
    if not stat.S_ISREG(status.st_mode):
        raise WrongMagic(path)
    return descriptor


def open_lock(path: str) -> Descriptor:
    """Open a file that exists only to be locked, and make it if needed. It belongs to the process that came first."""
    try:
        if group_of(path) is None:
            return Descriptor.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        raise refusal(error, path) from None
    with contextlib.suppress(NothingThere):
        return open_trusted(path, os.O_RDWR)
    with contextlib.suppress(NameTaken):  # another process that wants the lock made it
        write_file(path, b"")
    return open_trusted(path, os.O_RDWR)


def open_fifo(path: str, flags: int) -> Descriptor:
    """Open a FIFO, with OSError as from open(2). In a group's place anything else under its name is refused."""
    with parent_of(path) as (parent, name):
        descriptor = Descriptor.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=parent)
    gid = group_of(path)
    if gid is not None:
        status = os.fstat(descriptor.fd)
        check_access(path, status, gid, FILE_MODE)
        if not stat.S_ISFIFO(status.st_mode):
            raise WrongMagic(path)
    return descriptor


def read_header(path: str) -> Header:
    """Return the header of a block without mapping it: a mapped file that is shortened would kill this process."""
    return read_head(path)[0]


def read_head(path: str) -> tuple[Header, int]:
    """Return a block's header and, for a ring, how many items were written to it, without mapping it."""
    descriptor = open_trusted(path, os.O_RDONLY)
    try:
        return header_of(descriptor, path), int.from_bytes(os.pread(descriptor.fd, 8, HEAD * 8), sys.byteorder)
    finally:
        descriptor.close()


def header_of(descriptor: Descriptor, path: str) -> Header:
    """Return the header of an open block without mapping it."""
    size = os.fstat(descriptor.fd).st_size
    head = os.pread(descriptor.fd, HEADER_BYTES, 0).ljust(HEADER_BYTES, b"\0")
    schema = os.pread(descriptor.fd, min(claimed_schema_bytes(head), size, SMALL_BYTES), HEADER_BYTES)
    return Header.unpack(head + schema, path, size)


def allocate(fd: int, size: int, path: str) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise refusal(error, path, size) from None


def map_file(fd: int, size: int, *, writable: bool) -> mmap.mmap:
    """Map a file through an open file description of its own.

    A mapping keeps its description open; if that were the one of `fd`, the locks on it would outlive `fd`. Python's
    `mmap` of a file also keeps a duplicate descriptor, so anonymous memory is mapped first and the file over it.
    """
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    path = f"/proc/self/fd/{fd}"
    try:
        other = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError as error:
        raise refusal(error, path) from None
    try:
        mapping = mmap.mmap(-1, size, prot=prot)
        address = _address(mapping)
        if _mmap(address, size, prot, mmap.MAP_SHARED | _MAP_FIXED, other, 0) != address:
            raise refusal(OSError(ctypes.get_errno(), "mmap"), path, size)
        return mapping
    finally:
        os.close(other)


class _View(ctypes.Structure):
    """CPython's Py_buffer, of which the first word is the address."""

    _fields_ = [("address", ctypes.c_void_p), ("rest", ctypes.c_byte * 128)]


def _address(mapping: mmap.mmap) -> int:
    """Return the address of a mapping. `ctypes` gives it for writable mappings only."""
    view = _View()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(mapping), ctypes.byref(view), 0)
    address: int = view.address
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return address


def refusal(error: OSError, path: str, wanted_bytes: int = 0) -> DataBlockError:
    """Return the error of this package for a failed system call on `path`."""
    match error.errno:
        case errno.EMFILE | errno.ENFILE:
            return TooManyOpenFiles(error.errno)
        case errno.ENOENT:
            return NothingThere(path)
        case errno.ELOOP:
            return SymlinkRefused(path)
        case errno.EACCES | errno.EPERM:
            return PermissionRefused(path)
        case errno.ENAMETOOLONG:
            return NameTooLong(os.path.basename(path), 255)
        case errno.ENOSPC | errno.ENOMEM | errno.EFBIG | errno.EDQUOT:
            return ShmFull(path, wanted_bytes, _free_bytes(os.path.dirname(path)))
    return RootUnusable(path, os.strerror(error.errno or 0))


@contextlib.contextmanager
def _directory_of(path: str) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the parent directory, and the name in it."""
    with parent_of(path) as (parent, _):
        fd = parent if parent is not None else os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield fd, os.path.basename(path)
        finally:
            if parent is None:
                os.close(fd)


def _free_bytes(directory: str) -> int:
    try:
        usage = os.statvfs(directory)
    except OSError:
        return 0
    return usage.f_bavail * usage.f_frsize
