"""What can go wrong between a process and shared memory: one class per condition.

DataBlockError                  a HubError
├── NotLinux                    no OFD locks here
├── RingCoreMissing             this machine needs rings in C, and the extension was not built
├── NameRefused                 not usable as one path component
│   └── NameTooLong
├── RootUnusable                the root is no directory for blocks (not tmpfs-like, missing)
├── AccessRefused
│   ├── PermissionRefused       the kernel said no
│   │   └── NotInGroup          the directory is a group's that this process is not in
│   ├── SharingRefused          in a group's directory, but not the group's, or open to others too
│   ├── ForeignOwner            the file is another user's
│   ├── WritableByOthers        others could change it, or cut it short under a reader
│   └── SymlinkRefused          the name is a symbolic link
├── NothingThere                no file at the name
├── BlockOnOtherHost            its memory is not this machine's
├── ReaderFilesGone             the writer must know of its readers, and where they say so is gone
├── NameTaken                   a live writer owns the name
├── ShmFull                     no memory left in the root
├── TooManyOpenFiles            no descriptor left in this process, or on this host
├── DamagedBlock                the file is not a block that can be read
│   ├── WrongMagic
│   ├── OtherLayout
│   ├── ForeignByteOrder
│   ├── TruncatedBlock
│   ├── HeaderInconsistent      sizes that contradict each other
│   ├── ChecksumMismatch
│   └── PayloadDamaged          bytes that are not what the block's format says
├── PayloadRefused              not a payload of this block
│   ├── PayloadSchemaMismatch
│   │   └── UnexpectedSchema
│   ├── PayloadLargerThanSlot
│   └── PayloadLargerThanRing
├── RingFull                    no slot became free in time
├── WriterGone                  the writer died; nothing unread is left
│   └── StreamEnded             it ended on purpose
├── PositionUnknown             a position of another block, or of its future
├── AssignmentChanged           the group has moved on to a newer assignment
├── MemberTaken                 a live process already is this member of the group
├── GroupInUse                  a group that somebody reads in cannot be deleted
├── GroupMissing                no such group reads the channel on this host
├── HandleClosed                closed, or inherited through fork
├── Busy                        a lock was not free within its timeout
├── EntryDamaged                a directory entry or manifest that cannot be parsed
├── TableMissing                no such table or generation
└── TransactionEnded            committed, aborted or swept before this call
"""

import errno
import resource
from typing import Any

from messagehub.errors import HubError


class DataBlockError(HubError):
    """Every refusal of this package; `code` is stable, the text says what to do next."""

    code = "DATABLOCK_ERROR"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.message), self.__dict__


def _restored(kind: type[DataBlockError], message: str) -> DataBlockError:
    """Restore an error from a pickle. Its text is written already, so its own constructor is not called again."""
    error = kind.__new__(kind, message)
    HubError.__init__(error, message)
    return error


def restored(code: str, message: str) -> DataBlockError | None:
    """Return the error of this code with a text that another process wrote; None of a code that is not of this file."""
    kinds: list[type[DataBlockError]] = [DataBlockError]
    for kind in kinds:
        if kind.code == code and "code" in vars(kind):
            return _restored(kind, message)
        kinds += kind.__subclasses__()
    return None


class RingCoreMissing(DataBlockError):
    code = "RING_CORE_MISSING"

    def __init__(self, machine: str, reason: str) -> None:
        super().__init__(
            f"rings in Python need a machine that orders its stores (x86), and this is {machine}; the compiled core"
            f" cannot be used: {reason}. Install a C compiler and the headers of Python, then install messagehub again."
        )


class NotLinux(DataBlockError):
    code = "NOT_LINUX"

    def __init__(self, platform: str) -> None:
        super().__init__(
            f"DataBlocks need Linux (open file description locks); this is {platform}. "
            "Run the producer and its readers on Linux."
        )


class NameRefused(DataBlockError):
    code = "BLOCK_NAME_REFUSED"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name!r} cannot name a file in shared memory: {why}. Use letters, digits, '_', '-' and '.'.")


class NameTooLong(NameRefused):
    code = "BLOCK_NAME_TOO_LONG"

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(name[:40] + "…", f"it is longer than {limit} bytes; choose a shorter one")


class RootUnusable(DataBlockError):
    code = "SHM_ROOT_UNUSABLE"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} cannot hold DataBlocks: {why}. Give a directory on a tmpfs such as /dev/shm.")


class AccessRefused(DataBlockError):
    code = "BLOCK_ACCESS_REFUSED"


class PermissionRefused(AccessRefused):
    code = "BLOCK_PERMISSION_DENIED"

    def __init__(self, path: str) -> None:
        super().__init__(f"permission denied for {path}. Run as the producer's user, or let it share with its group.")


class NotInGroup(PermissionRefused):
    code = "BLOCK_GROUP_REFUSED"

    def __init__(self, path: str, gid: int) -> None:
        AccessRefused.__init__(
            self,
            f"permission denied for {path}: its blocks are for group {gid}, which this process is not in. "
            "Have root add the user (usermod -aG), log in again, or use a hub of your own.",
        )


class SharingRefused(AccessRefused):
    code = "BLOCK_SHARING_REFUSED"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} {why}: it is not trusted. Its owner, or root, can remove it.")


class ForeignOwner(AccessRefused):
    code = "BLOCK_FOREIGN_OWNER"

    def __init__(self, path: str, owner_uid: int, expected_uid: int) -> None:
        super().__init__(
            f"{path} belongs to user {owner_uid}, not {expected_uid}: it is not trusted. "
            "Choose another channel or domain, or name the owner you expect."
        )


class WritableByOthers(AccessRefused):
    code = "BLOCK_WRITABLE_BY_OTHERS"

    def __init__(self, path: str, mode: int) -> None:
        super().__init__(
            f"{path} has mode {mode:04o}: others than its owner may write it, so it is not trusted. "
            "Remove it, or take their right away with chmod go-w."
        )


class SymlinkRefused(AccessRefused):
    code = "BLOCK_SYMLINK_REFUSED"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is a symbolic link, which a DataBlock never is. Remove it.")


class NothingThere(DataBlockError):
    code = "BLOCK_NOT_FOUND"
    retryable = True

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no DataBlock at {path}. Start its producer, or discover the channel again.")


class BlockOnOtherHost(DataBlockError):
    code = "BLOCK_ON_OTHER_HOST"

    def __init__(self, name: str, host: str, here: str, why: str = "", *, state: str = "") -> None:
        """`why` says what keeps it from being read by Arrow Flight, `state` what is known of the gateway: `starting`
        (the hub is there), `none` (it runs no gateway), `lost` (nobody hears of the host), or nothing."""
        self.host = host
        self.why = why
        self.state = state
        rest = (
            f"It cannot be read from here: {why}. `messagehub doctor` on both hosts says more."
            if why
            else "Read it there, or let the producer and its readers run on one host."
        )
        super().__init__(f"block {name} is in the memory of host {host!r}, this is {here!r}. {rest}")

    @property
    def is_lost(self) -> bool:
        """Whether nobody in the site hears of the host any more."""
        return self.state == "lost"


class ReaderFilesGone(DataBlockError):
    code = "READER_FILES_GONE"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is gone, so the block's writer would neither wait for this reader nor share with its group. "
            "Restart the producer, or read without a group and with lossless=False."
        )


class NameTaken(DataBlockError):
    code = "BLOCK_NAME_TAKEN"
    retryable = True

    def __init__(self, path: str, pid: int | None) -> None:
        by = f"process {pid}" if pid else "another process"
        super().__init__(f"{path} is being written by {by}. Stop it, or use a channel with shared access.")


class ShmFull(DataBlockError):
    code = "SHM_FULL"
    retryable = True

    def __init__(self, path: str, wanted_bytes: int, free_bytes: int) -> None:
        super().__init__(
            f"no room for {wanted_bytes} bytes at {path} ({free_bytes} free). "
            "Clean stale blocks, use fewer or smaller slots, or enlarge the tmpfs."
        )


class TooManyOpenFiles(DataBlockError):
    code = "TOO_MANY_OPEN_FILES"
    retryable = True

    def __init__(self, number: int) -> None:
        """`number` is EMFILE, or ENFILE where the limit of the whole host is reached."""
        if number == errno.ENFILE:
            said = "this host has as many open files as it may have. Close programs, or raise fs.file-max (sysctl)."
        else:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            said = (
                f"this process has as many open files as it may have ({limit}, see `ulimit -n`). Close producers,"
                " consumers, subscriptions and hubs that are not used any more, or raise the limit."
            )
        super().__init__(said)


class DamagedBlock(DataBlockError):
    code = "BLOCK_DAMAGED"


class WrongMagic(DamagedBlock):
    code = "BLOCK_WRONG_MAGIC"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not a DataBlock (wrong magic). Remove the file if it is not needed.")


class OtherLayout(DamagedBlock):
    code = "BLOCK_OTHER_LAYOUT"

    def __init__(self, path: str, found: int, known: int) -> None:
        older, newer = ("producer", "reader") if found < known else ("reader", "producer")
        super().__init__(
            f"{path} has layout {found}, and this version reads layout {known} only: the {older} runs an older version"
            f" of MessageHub than the {newer}. Upgrade the {older} and start it again."
        )


class ForeignByteOrder(DamagedBlock):
    code = "BLOCK_FOREIGN_BYTE_ORDER"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was written with another byte order. Read it on the machine that wrote it.")


class TruncatedBlock(DamagedBlock):
    code = "BLOCK_TRUNCATED"

    def __init__(self, path: str, expected_bytes: int, actual_bytes: int) -> None:
        super().__init__(f"{path} has {actual_bytes} bytes where {expected_bytes} are needed. Restart its producer.")


class HeaderInconsistent(DamagedBlock):
    code = "BLOCK_HEADER_INCONSISTENT"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the header of {path} contradicts itself: {why}. Restart its producer.")


class ChecksumMismatch(DamagedBlock):
    code = "BLOCK_CHECKSUM_MISMATCH"

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{what} of {path} does not match its checksum. Discard it and check the producer.")


class PayloadDamaged(DamagedBlock):
    code = "BLOCK_PAYLOAD_DAMAGED"

    def __init__(self, what: str, why: object) -> None:
        super().__init__(f"{what} cannot be decoded: {why}. Discard it and check the producer.")


class PayloadRefused(DataBlockError):
    code = "PAYLOAD_REFUSED"


class PayloadSchemaMismatch(PayloadRefused):
    code = "PAYLOAD_SCHEMA_MISMATCH"

    def __init__(self, expected: str, found: str, advice: str = "Cast it, or open another channel for it.") -> None:
        super().__init__(f"the block holds {expected}, the payload is {found}. {advice}")


class UnexpectedSchema(PayloadSchemaMismatch):
    """For a reader: the ring has another schema than those it can read."""

    code = "UNEXPECTED_SCHEMA"

    def __init__(self, schema_hash: str, expected: str, written: Any) -> None:
        """`written` is the Arrow schema or dtype of the ring; None of raw bytes."""
        self.written = written
        self.schema_hash = schema_hash
        advice = "Expect the schema that is written, or none, to read it as it is."
        DataBlockError.__init__(
            self, f"the block holds schema {schema_hash!r}, its reader expects {expected}. {advice}"
        )


class PayloadLargerThanSlot(PayloadRefused):
    code = "PAYLOAD_LARGER_THAN_SLOT"

    def __init__(self, payload_bytes: int, slot_bytes: int, *, is_splittable: bool = False) -> None:
        also = ", or with split_rows=True" if is_splittable else ""
        super().__init__(
            f"the payload has {payload_bytes} bytes, a slot {slot_bytes}. "
            f"Open the producer with page_size >= {payload_bytes}{also}."
        )


class PayloadLargerThanRing(PayloadRefused):
    code = "PAYLOAD_LARGER_THAN_RING"

    def __init__(self, pieces: int, most: int, slot_bytes: int, capacity: int) -> None:
        super().__init__(
            f"the payload needs {pieces} slots of {slot_bytes} bytes, and a write may take {most} of this ring's. "
            f"Use a capacity >= {capacity} or a page_size of about {-(-pieces * slot_bytes // most)}."
        )


class RingFull(DataBlockError):
    code = "RING_FULL"
    retryable = True

    def __init__(
        self, path: str, slot_count: int, waited_seconds: float, held_back_by: str, *, overwrites: bool
    ) -> None:
        """An overwriting writer finds no slot only while its own loans hold them."""
        advice = "Let those read faster or keep less, add slots, wait longer, or use when_full='overwrite'."
        if overwrites:
            advice = "Commit or abort them first, or add slots."
        super().__init__(
            f"too few of the {slot_count} slots of {path} were free within {waited_seconds:.3f} s: {held_back_by}. "
            + advice
        )


class WriterGone(DataBlockError):
    code = "WRITER_GONE"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the writer of {path} has died and everything it published has been read. "
            "Discover the channel again, or wait for its restart."
        )


class StreamEnded(WriterGone):
    code = "STREAM_ENDED"

    def __init__(self, path: str) -> None:
        DataBlockError.__init__(
            self, f"the writer of {path} ended the stream and everything has been read. Discover it again."
        )


class PositionUnknown(DataBlockError):
    code = "POSITION_UNKNOWN"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} cannot be read from there on: {why}.")


class AssignmentChanged(DataBlockError):
    code = "ASSIGNMENT_CHANGED"

    def __init__(self, group: str, epoch: int) -> None:
        super().__init__(f"assignment {epoch} of group {group!r} is over. Fetch the new one and open the group again.")


class MemberTaken(DataBlockError):
    code = "GROUP_MEMBER_TAKEN"
    retryable = True

    def __init__(self, group: str, index: int) -> None:
        super().__init__(f"member {index} of group {group!r} is held by a live process. Ask for a new assignment.")


class GroupInUse(DataBlockError):
    code = "GROUP_IN_USE"

    def __init__(self, group: str, members: int) -> None:
        who = "a consumer reads" if members == 1 else f"{members} consumers read"
        what = "close it" if members == 1 else "close them"
        super().__init__(f"{who} in group {group!r}: {what} first, or leave the group as it is.", members=members)


class GroupMissing(DataBlockError):
    code = "GROUP_MISSING"

    def __init__(self, channel: str, group: str) -> None:
        super().__init__(
            f"no ring of channel {channel!r} on this host is read by a group {group!r}: messagehub discover {channel} "
            "shows its readers and groups."
        )


class HandleClosed(DataBlockError):
    code = "HANDLE_CLOSED"

    def __init__(self, what: str) -> None:
        super().__init__(f"this {what} is closed, or belongs to the parent of a fork. Open it in this process.")


class Busy(DataBlockError):
    code = "LOCK_BUSY"
    retryable = True

    def __init__(self, path: str, waited_seconds: float) -> None:
        super().__init__(
            f"{path} stayed locked for {waited_seconds:.3f} s. Retry; if it lasts, look for a paused process."
        )


class EntryDamaged(DataBlockError):
    code = "ENTRY_DAMAGED"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} cannot be read: {why}. Remove it and restart its writer.")


class TableMissing(DataBlockError):
    code = "TABLE_MISSING"
    retryable = True

    def __init__(self, path: str, generation: int | None) -> None:
        what = "no table" if generation is None else f"no generation {generation}"
        super().__init__(f"{what} in {path}. Publish one, or load the latest generation.")


class TransactionEnded(DataBlockError):
    code = "TRANSACTION_ENDED"

    def __init__(self, transaction: str) -> None:
        super().__init__(f"transaction {transaction} was committed, aborted or swept. Begin a new one and write again.")
