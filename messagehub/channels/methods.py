"""The facade's methods about data: `hub.producer`, `hub.consumer`."""

import time
import weakref
from abc import ABC, abstractmethod
from typing import Any, Literal, TypeVar

from messagehub.arguments import json_object
from messagehub.channels.consumers import Consumer, OnLag, Wanted
from messagehub.channels.inventory import delete_group_of
from messagehub.channels.payload_schema import given_schema, hash_of, payload_schema
from messagehub.channels.producers import Policy, Producer, Shape, open_producer, ring_path
from messagehub.channels.start import Positions, SavedPositions, checked_start
from messagehub.client.connection import Connection
from messagehub.client.group_changes import GroupChanges
from messagehub.client.heartbeats import Heartbeats, Registration
from messagehub.discovery import Discovery
from messagehub.discovery.chain import Chain
from messagehub.errors import BrokerRequired, ProducerAlreadyRegistered
from messagehub.runtime.background import BackgroundThreads, awaitable
from messagehub.runtime.spark_task import SparkTask, close_with_task, current_task, noted
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.layout import ChecksumUse, FullRing
from messagehub.shm.locks import open_files_limited
from messagehub.shm.reader import Copy
from registry import commands, names, replies
from registry.formats import arrow
from registry.records import Access, Block, Priority

_Opened = TypeVar("_Opened", Producer, Consumer)
_AnyReply = TypeVar("_AnyReply", bound=replies.Reply)
_Registering = commands.RegisterProducer | commands.RegisterConsumer


class DataMethods(ABC):
    """What `MessageHub` provides to them is declared here; nobody else inherits."""

    _background: BackgroundThreads
    _chain: Chain
    _connection: Connection
    _group_news: GroupChanges
    _heartbeats: Heartbeats
    _identity: ProcessIdentity
    _open: "weakref.WeakSet[Producer | Consumer]"

    @open_files_limited()
    def producer(
        self,
        channel: str,
        *,
        schema: Any = None,
        capacity: int = 16,
        page_size: int = 4096,
        policy: Policy = "RingBuffer",
        when_full: FullRing = "overwrite",
        checksum: ChecksumUse = "none",
        split_rows: bool = False,
        access: Access | None = None,
        producer_id: str | None = None,
        schema_hash: str | None = None,
        schema_version: str = "",
        metadata: dict[str, Any] | None = None,
        priority: Priority = "normal",
        timeout: float | None = None,
    ) -> Producer:
        """A ring of `capacity` slots of `page_size` bytes that this process writes; works without a broker.

        `schema`: an Arrow schema, a NumPy dtype, or None for raw bytes. `policy`: RingBuffer, DoubleBuffer or Single.
        `when_full`: overwrite, block or error. `checksum`: none, write or verify.
        `split_rows`: an Arrow batch that is larger than a slot becomes several items instead of an error.
        `access`: exclusive, or shared with other producers of the channel, each with a `producer_id` and ring of its
        own. In a task of Spark a producer is shared unless said otherwise, is named after the task, and ends with it.
        """
        self._connection.check_open()
        payload = payload_schema(schema, schema_hash, split_rows=split_rows)
        shape = Shape.checked(policy, capacity, page_size, when_full, checksum)
        task = current_task()
        access, producer_id = self._place(task, access, producer_id)
        command = commands.RegisterProducer(
            channel=names.check_channel(channel),
            schema_hash=payload.schema_hash,
            schema_version=schema_version,
            config=shape.config(),
            schema=payload.schema,
            schema_type=payload.schema_type,
            producer_id=producer_id,
            access=access,
            metadata=noted(task, json_object(metadata, "metadata")),
            priority=priority,
            **self._owner(),
        )
        files = self._chain.files
        command.shm_name = "/" + files.directory.relative(ring_path(files, command))
        command.blocks = [Block(shm_name=command.shm_name, host=self._identity.host, format=payload.format)]
        try:
            made = open_producer(
                command,
                payload,
                shape,
                files=files,
                register=lambda wanted, seconds: self._tell_broker(wanted, seconds, required=False),
                forget=self._forget_producer,
                timeout=self._limit(timeout),
            )
        except ProducerAlreadyRegistered as refused:
            if any(isinstance(other, Producer) and other.channel == command.channel for other in list(self._open)):
                hint = "it was made here, by this hub: close it first, or go on with it"
                raise ProducerAlreadyRegistered(f"{refused.message}; {hint}", **refused.details) from None
            raise
        return self._keep(made)

    producer_async = awaitable(producer)

    @open_files_limited()
    def consumer(
        self,
        channel: str,
        *,
        start: Literal["oldest", "latest"] | int | Positions | SavedPositions = "latest",
        expected_schema: Any = None,
        group: str | None = None,
        on_lag: OnLag = "skip",
        follow: bool = True,
        lossless: bool = True,
        verify: bool = False,
        copy: Copy = "auto",
        consumer_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Consumer:
        """A reader of everything that a channel's producers write, whether they are there yet or not.

        `start`: `latest` (from now on), `oldest` (what is still there too), -N (the last N items of each producer too)
        or a consumer's `position`, also as it comes back from JSON.
        `expected_schema`: as producers give it, or its hash; data of another schema that the registry calls compatible
        is handed out in this one. `group`: share the channel with the other members.
        `on_lag`: what was overwritten before it was read is skipped with one warning, comes as a `Gap`, or is raised as
        DataLost; `missed` counts it. `follow`: iteration ends when a stream ends while it is read; False: also when
        nobody produces to begin with. `lossless`: a producer with when_full=block waits for this reader. `verify`:
        compare checksums, and validate Arrow data in full. `copy`: values share memory with the producer while this
        process keeps few of them, and are copies beyond that; with `never` they always share it, and a producer whose
        slots are all kept skips items (overwrite) or waits (block).
        """
        self._connection.check_open()
        begin = checked_start(start)
        if group is not None:
            names.check_role("group", group)
        expected = None if expected_schema is None else hash_of(expected_schema)
        logical = names.check_channel(names.logical(channel))
        role = names.check_role("consumer", self._role("consumer") if consumer_id is None else consumer_id)
        deadline = time.monotonic() + self._limit(timeout)
        if group is not None and not self.connect(timeout=timeout):
            raise BrokerRequired(f"group {group!r} is shared out by the broker, and none answers", group=group)
        command = commands.RegisterConsumer(
            channel=logical,
            consumer_id=role,
            expected_schema_hash=expected,
            group=group,
            metadata=noted(current_task(), json_object(metadata, "metadata")),
            **self._owner(),
        )
        consumer = Consumer(
            Wanted(
                channel=logical,
                start=begin,
                expected_schema_hash=expected,
                expected_schema=given_schema(expected_schema),
                group=group,
                on_lag=on_lag,
                follow=follow,
                lossless=lossless,
                verify=verify,
                copy=copy,
            ),
            self._chain.files.directory,
            made_by=deadline,
            timeout=self._limit(timeout),
            discover=lambda seconds: self._discover_now(logical, seconds, required=False),
            register=lambda seconds: self._register(command, seconds, required=group is not None),
            renew=lambda registration, done: self._heartbeats.renew(registration, done, timeout=self._limit(timeout)),
            arrow_schema=self._arrow_schema,
            run_later=lambda run, drop: self._background.add(run, drop=drop),
            listen=self._group_news.add,
            forget=self._forget_consumer,
        )
        return self._keep(consumer)

    consumer_async = awaitable(consumer)

    # -- inside --------------------------------------------------------------------------------------------

    def _keep(self, opened: _Opened) -> _Opened:
        self._open.add(opened)
        if current_task() is not None:
            close_with_task(opened)
        return opened

    def _arrow_schema(self, schema_hash: str, timeout: float | None) -> Any:
        """The registered Arrow schema with this hash; None where it is of another format."""
        found = self._must(commands.RequestSchema(schema_hash=schema_hash), replies.SchemaFound, timeout)
        return arrow.to_arrow(found.schema.schema) if found.schema.schema_type == "ARROW" else None

    def _forget_producer(self, producer: Producer) -> None:
        self._open.discard(producer)

    def _forget_consumer(self, consumer: Consumer) -> None:
        self._open.discard(consumer)
        self._group_news.remove(consumer)

    def delete_group(self, channel: str, group: str) -> None:
        """Forget how far a consumer group has come in the rings of this host, so that no producer waits for it.

        Raises GroupInUse while somebody is in it. Members that come later begin anew.
        """
        self._connection.check_open()
        delete_group_of(self._chain.files.directory, names.check_channel(channel), names.check_role("group", group))

    @abstractmethod
    def connect(self, *, timeout: float | None = None, required: bool = False) -> bool: ...

    @abstractmethod
    def _must(self, command: commands.Command, kind: type[_AnyReply], timeout: float | None) -> _AnyReply: ...

    @abstractmethod
    def _limit(self, timeout: float | None) -> float: ...

    @abstractmethod
    def _role(self, kind: str) -> str: ...

    @abstractmethod
    def _place(
        self, task: SparkTask | None, access: Access | None, producer_id: str | None
    ) -> tuple[Access, str | None]:
        """Return the access and the id of a producer that leaves one or both open."""

    @abstractmethod
    def _owner(self) -> dict[str, Any]: ...

    @abstractmethod
    def _discover_now(self, channel: str, timeout: float, required: bool) -> Discovery | None: ...

    @abstractmethod
    def _register(self, command: _Registering, timeout: float | None, required: bool) -> Registration:
        """With the broker, else in the directory."""

    @abstractmethod
    def _tell_broker(self, command: _Registering, timeout: float | None, required: bool) -> Registration:
        """With the broker, now or when one comes."""
