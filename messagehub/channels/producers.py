"""A producer: a ring that this process writes, known to whoever looks for its channel.

Rule 1: making one succeeds with or without a broker; a broker that comes later hears of it by itself.
Rule 2: refusals come before anything is touched: first the rules here, then the broker, then the blocks.
Rule 3: closing ends the stream for its readers. The ring stays for its linger time, then anybody may remove it.
"""

import os
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from messagehub.arguments import MOST_SECONDS, choice, seconds, whole_from
from messagehub.channels.payload_schema import PayloadSchema
from messagehub.client.registration import Registration
from messagehub.discovery.via_directory import LOCK_SECONDS, ViaFiles
from messagehub.errors import ProducerAlreadyRegistered
from messagehub.runtime.forgotten import ClosedWhenForgotten
from messagehub.shm.errors import HandleClosed, NameTaken
from messagehub.shm.layout import MAX_SLOT_BYTES, MAX_SLOTS, Checksum, ChecksumUse, FullRing, Kind, WhenFull
from messagehub.shm.rings.loans import Loan
from messagehub.shm.rings.ring import RingSpec, open_writer
from messagehub.shm.rings.writer import RingWriter, Written
from registry.commands import RegisterProducer

Policy = Literal["RingBuffer", "DoubleBuffer", "Single"]
_KINDS = {"RingBuffer": Kind.RING_BUFFER, "DoubleBuffer": Kind.DOUBLE_BUFFER, "Single": Kind.SINGLE}
_SLOTS = {"DoubleBuffer": 2, "Single": 1}
_LEAST_CAPACITY, _MOST_CAPACITY, _USUAL_BYTES = 16, 256, 16 << 20
_LINE_BYTES = 64
_PAGE_BYTES = 4096


def usual_capacity(page_size: int) -> int:
    """Return how many slots a ring has where nobody says: a quarter of a second at 1 kHz, fewer if they are large."""
    return max(_LEAST_CAPACITY, min(_MOST_CAPACITY, _USUAL_BYTES // page_size))


class Shape(NamedTuple):
    """The ring that a producer asks for, in the words of its registration's `config`."""

    policy: Policy = "RingBuffer"
    capacity: int = 256
    page_size: int = 4096
    when_full: FullRing = "overwrite"
    checksum: ChecksumUse = "none"

    @classmethod
    def checked(cls, policy: Any, capacity: Any, page_size: Any, when_full: Any, checksum: Any) -> "Shape":
        page_size = whole_from(page_size, "page_size", 1, MAX_SLOT_BYTES)
        return cls(
            choice(policy, "policy", get_args(Policy)),
            usual_capacity(page_size) if capacity is None else whole_from(capacity, "capacity", 1, MAX_SLOTS),
            page_size,
            choice(when_full, "when_full", get_args(FullRing)),
            choice(checksum, "checksum", get_args(ChecksumUse)),
        )

    def config(self) -> dict[str, Any]:
        return self._asdict() | {"capacity": _SLOTS.get(self.policy, self.capacity)}

    def spec(self, command: RegisterProducer, readers_path: str) -> RingSpec:
        return RingSpec(
            channel=command.channel,
            producer_id=command.producer_id or "",
            readers_path=readers_path,
            slot_bytes=self.page_size,
            slot_count=self.capacity,
            page_bytes=_PAGE_BYTES if self.page_size >= _PAGE_BYTES else _LINE_BYTES,
            kind=_KINDS[self.policy],
            when_full=WhenFull[self.when_full.upper()],
            checksum=Checksum[self.checksum.upper()],
            schema_hash=command.schema_hash,
        )


class Producer(ClosedWhenForgotten):
    """Made by `hub.producer`. Threads may share it; in a forked child it is closed."""

    def __init__(
        self,
        writer: RingWriter,
        registration: Registration,
        files: ViaFiles,
        forget: Callable[["Producer"], None],
        keeps: object,
    ) -> None:
        """`keeps` lives as long as this does."""
        self.registration = registration
        self.channel = registration.channel
        self._last_written: Written | int | None = None
        self._writer = writer
        self._put = writer.put
        self._files = files
        self._forget = forget
        self._keeps = keeps
        self._is_closed = False
        self._opened_in = os.getpid()

    @property
    def shm_name(self) -> str:
        return "/" + self._files.directory.relative(self._writer.path)

    @property
    def schema_hash(self) -> str:
        return self._writer.header.schema_hash

    @property
    def schema(self) -> Any:
        """The Arrow schema or NumPy dtype that was given; None for raw bytes."""
        return self._writer.schema

    @property
    def source(self) -> str | None:
        """Who knows of it: `broker`, or `files` while none does."""
        return self.registration.source

    @property
    def sequence(self) -> int:
        """The number of the newest payload in the ring; 0 before the first."""
        return self._writer.head

    @property
    def last_written(self) -> Written | None:
        """The first and the last number that the last payload got; None before the first."""
        last = self._last_written
        return Written(last, last) if isinstance(last, int) else last

    @property
    def skipped(self) -> int:
        """How many items of this ring were not written, because readers held every slot of an overwriting producer."""
        return self._writer.skipped

    def write(self, payload: Any, timeout: float | None = None) -> int:
        """Publish a batch, table, array or bytes and return its sequence number.

        It is one item with its shape, order and dtype, and one larger than a slot is refused. With `split_rows` a
        batch may become several: `last_written` has the first and the last number. All of them are written, or none.
        A producer with when_full=overwrite never waits for readers: if they hold every slot, the item is skipped,
        `skipped` counts it, and its readers count it as missed. `timeout` is how long one with when_full=block waits.
        """
        if self.registration.error is not None:
            self.registration.check_open()
        if timeout is not None and (type(timeout) is not float or not 0.0 <= timeout <= MOST_SECONDS):
            timeout = seconds(timeout)
        try:
            sequence = self._put(payload) or self._writer.write_plain(payload, may_wait=timeout != 0)
            if sequence:
                self._last_written = sequence
                return sequence
            self._last_written = written = self._writer.write_pieces(payload, timeout)
        except HandleClosed:
            self.registration.check_open()  # it may have been evicted meanwhile
            raise
        return written.last

    async def write_async(self, payload: Any, timeout: float | None = None) -> int:
        """As `write`, sleeping in the running event loop while a producer with when_full=block waits for room.

        When the task is cancelled meanwhile, nothing is written. Tasks that wait at once write in any order.
        """
        if self.registration.is_closed:
            self.registration.check_open()
        limit = None if timeout is None else seconds(timeout)
        try:
            self._last_written = written = await self._writer.write_async(payload, limit)
        except HandleClosed:
            self.registration.check_open()
            raise
        return written.last

    def loan(self, size: int, timeout: float | None = None) -> Loan:
        """A slot to fill in place, for raw bytes and NumPy: `with producer.loan(n) as loan: loan.buffer[:] = …`."""
        if self.registration.is_closed:
            self.registration.check_open()
        size = whole_from(size, "size", 0, MAX_SLOT_BYTES)
        return self._writer.loan(size, None if timeout is None else seconds(timeout))

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """A write that waits for room in another thread raises HandleClosed. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._writer.close()
            self.registration.close()  # before the entry is let go of, which would look like a death
            self._files.release(self.channel, self.registration.command.producer_id)  # type: ignore[union-attr]
            self._forget(self)

    async def close_async(self) -> None:
        """As `close`, while the event loop goes on."""
        import asyncio  # takes longer to load than all else that a producer needs

        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def _is_forgotten(self) -> bool:
        return not self._is_closed

    def _named(self) -> str:
        return f"the producer of channel {self.channel!r} (close it, or use `with hub.producer(…) as producer:`)"

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer {self.channel!r} at {self.shm_name}: {'closed' if self._is_closed else self.source}>"

    def _repr_html_(self) -> str:
        from messagehub.display.records import producer_html

        return producer_html(self, is_closed=self._is_closed)


def open_producer(
    command: RegisterProducer,
    payload: PayloadSchema,
    shape: Shape,
    *,
    files: ViaFiles,
    register: Callable[[RegisterProducer, float], Registration],
    forget: Callable[[Producer], None],
    keeps: object,
    timeout: float,
    spin_us: int,
) -> Producer:
    """`register` tells the broker, if there is one, within so many seconds, and goes on wanting to."""
    deadline = time.monotonic() + timeout
    path = ring_path(files, command)
    spec = shape.spec(command, files.directory.readers_path(path, command.channel))
    files.check(command)
    registration = register(command, max(deadline - time.monotonic(), 0.0))
    try:
        listed, writer = files.register_blocks(
            command,
            (files.directory.relative(path),),
            lambda: open_writer(path, spec, payload.codec, spin_us=spin_us),
            timeout=max(deadline - time.monotonic(), LOCK_SECONDS),
        )
        registration.list_here(listed)
    except NameTaken as taken:
        registration.close()
        raise ProducerAlreadyRegistered(str(taken), channel=command.channel) from None
    except BaseException:
        registration.close()
        raise
    return Producer(writer, registration, files, forget, keeps)


def ring_path(files: ViaFiles, command: RegisterProducer) -> str:
    """An exclusive channel has the name that everybody can derive; who shares has one of its own."""
    if command.access == "exclusive":
        return files.directory.exclusive_block(command.channel)
    return files.directory.shared_block(command.channel, command.producer_id or "")
