"""The producers and consumers of one hub: opened with a ring of their own, or only registered; closed with the hub."""

import time
import weakref
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from messagehub.arguments import json_object
from messagehub.channels.consumer.consumer_options import ConsumerOptions, OnLag
from messagehub.channels.consumer.consumers import Consumer
from messagehub.channels.consumer.enrolment import RegistryCalls
from messagehub.channels.consumer.missing_hosts import OnUnreachable
from messagehub.channels.consumer.start import Positions, SavedPositions, checked_start
from messagehub.channels.gateways import GatewayAccess
from messagehub.channels.inventory import delete_group_of
from messagehub.channels.payload_schema import given_schema, hash_of, payload_schema
from messagehub.channels.producers import Policy, Producer, Shape, open_producer, ring_path
from messagehub.client.connection import Connection
from messagehub.client.group_changes import GroupChanges
from messagehub.client.heartbeats import Heartbeats
from messagehub.client.identity import ClientIdentity
from messagehub.client.registration import Registration
from messagehub.discovery.registry_client import RegistryClient
from messagehub.errors import BrokerRequired, ProducerAlreadyRegistered
from messagehub.runtime.background import BackgroundThreads
from messagehub.runtime.spark_task import SparkTask, close_with_task, current_task, noted
from messagehub.shm.layout import ChecksumUse, FullRing
from messagehub.shm.locks import open_files_limited
from messagehub.shm.rings.reader import Copy
from registry import commands, names, replies
from registry.formats import arrow
from registry.records import Access, Block, Priority, SchemaType

_Opened = TypeVar("_Opened", Producer, Consumer)


class ChannelMembers:
    def __init__(
        self,
        registry: RegistryClient,
        connection: Connection,
        heartbeats: Heartbeats,
        group_changes: GroupChanges,
        background: BackgroundThreads,
        identity: ClientIdentity,
        gateways: GatewayAccess,
        *,
        hub: Callable[[], object],
        spin_us: int,
    ) -> None:
        """`hub` gives what every producer and consumer keeps alive. `spin_us`: how long they wait without sleeping."""
        self._spin_us = spin_us
        self._registry = registry
        self._connection = connection
        self._heartbeats = heartbeats
        self._group_changes = group_changes
        self._background = background
        self._identity = identity
        self._gateways = gateways
        self._hub = hub
        self._waiting: set[str] = set()
        self._open: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()

    # -- with a ring ---------------------------------------------------------------------------------------

    @open_files_limited()
    def producer(
        self,
        channel: str,
        *,
        schema: Any = None,
        capacity: int | None = None,
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

        Without a `capacity` it is 256 slots, or as many as take 16 MiB, but at least 16.
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
        access, producer_id = self._access(task, access, producer_id)
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
            **self._identity.owner,
        )
        files = self._registry.files
        command.shm_name = "/" + files.directory.relative(ring_path(files, command))
        command.blocks = [Block(shm_name=command.shm_name, host=self._identity.host, format=payload.format)]
        try:
            made = open_producer(
                command,
                payload,
                shape,
                files=files,
                register=lambda wanted, seconds: self._registry.register_with_broker(wanted, seconds, required=False),
                forget=self._forget_producer,
                keeps=self._hub(),
                timeout=self._registry.limit(timeout),
                spin_us=self._spin_us,
            )
        except ProducerAlreadyRegistered as refused:
            if any(isinstance(other, Producer) and other.channel == command.channel for other in list(self._open)):
                hint = "it was made here, by this hub: close it first, or go on with it"
                raise ProducerAlreadyRegistered(f"{refused.message}; {hint}", **refused.details) from None
            raise
        self._end_when_evicted(made)
        return self._keep(made)

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
        on_unreachable: OnUnreachable = "skip",
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
        slots are all kept skips items (overwrite) or waits (block). `on_unreachable`: a host of a site that has data of
        the channel and cannot be read is left out with one warning while there is something else to read, and tried
        again (`unreachable` names it); with `raise` it is a BlockOnOtherHost.
        """
        self._connection.check_open()
        begin = checked_start(start)
        if group is not None:
            names.check_role("group", group)
        expected = None if expected_schema is None else hash_of(expected_schema)
        logical = names.check_channel(names.logical(channel))
        role = names.check_role("consumer", self._identity.role("consumer") if consumer_id is None else consumer_id)
        limit = self._registry.limit(timeout)
        deadline = time.monotonic() + limit
        if group is not None and not self._registry.connect(timeout=timeout):
            raise BrokerRequired(f"group {group!r} is shared out by the broker, and none answers", group=group)
        command = commands.RegisterConsumer(
            channel=logical,
            consumer_id=role,
            expected_schema_hash=expected,
            group=group,
            metadata=noted(current_task(), json_object(metadata, "metadata")),
            **self._identity.owner,
        )
        consumer = Consumer(
            ConsumerOptions(
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
                spin_us=self._spin_us,
                consumer_id=role,
                on_unreachable=on_unreachable,
            ),
            self._registry.files.directory,
            RegistryCalls(
                discover=lambda seconds: self._registry.discover_or_why(logical, seconds),
                register=lambda seconds: self._registry.register(command, seconds, required=group is not None),
                can_read=lambda written, seconds: self._can_read(written, expected or "", seconds),
                renew=lambda registration, done: self._heartbeats.renew(registration, done, timeout=limit),
                run_later=lambda run, drop: self._background.add(run, drop=drop),
                is_in_site=lambda: self._gateways.is_in_site,
            ),
            self._gateways,
            made_by=deadline,
            timeout=limit,
            arrow_schema=self._arrow_schema,
            listen=self._group_changes.add,
            forget=self._forget_consumer,
            keeps=self._hub(),
            waiting=self._waiting,
        )
        return self._keep(consumer)

    # -- without a ring ------------------------------------------------------------------------------------

    def register_producer(
        self,
        channel: str,
        *,
        schema_hash: str,
        schema_version: str = "",
        config: dict[str, Any] | None = None,
        schema: commands.Schema | None = None,
        schema_type: SchemaType | None = None,
        producer_id: str | None = None,
        shm_name: str | None = None,
        blocks: list[Block] | None = None,
        access: Access | None = None,
        metadata: dict[str, Any] | None = None,
        priority: Priority = "normal",
        ready: bool = True,
        timeout: float | None = None,
        required: bool = False,
    ) -> Registration:
        """Say that this process produces a channel, to the broker or, while none answers, in the directory.

        The handle is falsy when nothing took it, and becomes true by itself when a broker does. `access` is exclusive
        or, in a task of Spark, shared under an id of the task, unless said otherwise; the task's end closes it.
        """
        task = current_task()
        access, producer_id = self._access(task, access, producer_id)
        command = commands.RegisterProducer(
            channel=channel,
            schema_hash=schema_hash,
            schema_version=schema_version,
            config=json_object(config, "config"),
            schema=schema,
            schema_type=schema_type,
            producer_id=producer_id,
            shm_name=shm_name,
            blocks=blocks or [],
            access=access,
            metadata=noted(task, json_object(metadata, "metadata")),
            priority=priority,
            ready=ready,
            **self._identity.owner,
        )
        registration = self._registry.register(command, timeout, required=required)
        if task is not None:
            close_with_task(registration)
        return registration

    def register_consumer(
        self,
        channel: str,
        *,
        consumer_id: str | None = None,
        expected_schema_hash: str | None = None,
        group: str | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = None,
        required: bool = False,
    ) -> Registration:
        """Say that this process consumes a channel; `required` also asks for an active producer."""
        command = commands.RegisterConsumer(
            channel=channel,
            consumer_id=self._identity.role("consumer") if consumer_id is None else consumer_id,
            expected_schema_hash=expected_schema_hash,
            group=group,
            metadata=json_object(metadata, "metadata"),
            required=required,
            **self._identity.owner,
        )
        return self._registry.register(command, timeout, required=required)

    # -- ending --------------------------------------------------------------------------------------------

    def delete_group(self, channel: str, group: str) -> None:
        """Forget how far a consumer group has come in the rings of this host, so that no producer waits for it.

        Raises GroupInUse while somebody is in it. Members that come later begin anew.
        """
        self._connection.check_open()
        directory = self._registry.files.directory
        delete_group_of(directory, names.check_channel(channel), names.check_role("group", group))

    def close_all(self) -> None:
        for opened in list(self._open):
            opened.close()

    # -- inside --------------------------------------------------------------------------------------------

    def _end_when_evicted(self, producer: Producer) -> None:
        """Have a producer that is evicted end its stream, so that another one can take its place."""
        referred = weakref.ref(producer)

        def close() -> None:
            found = referred()
            if found is not None:
                found.close()

        def ended() -> None:
            found = referred()
            if found is not None and found.registration.is_evicted:
                self._background.add(close, drop=close)

        producer.registration.on_ended = ended

    def _access(
        self, task: SparkTask | None, access: Access | None, producer_id: str | None
    ) -> tuple[Access, str | None]:
        """Return the access and the id of a producer that leaves one or both open."""
        if access is None:
            access = "shared" if task is not None else "exclusive"
        if producer_id is None and access == "shared":
            producer_id = names.to_role(task.producer_id) if task is not None else self._identity.role("producer")
        return access, producer_id

    def _keep(self, opened: _Opened) -> _Opened:
        self._open.add(opened)
        if current_task() is not None:
            close_with_task(opened)
        return opened

    def _arrow_schema(self, schema_hash: str, timeout: float | None) -> Any:
        """The registered Arrow schema with this hash; None where it is of another format."""
        found = self._registry.reply(commands.RequestSchema(schema_hash=schema_hash), replies.SchemaFound, timeout)
        return arrow.to_arrow(found.schema.schema) if found.schema.schema_type == "ARROW" else None

    def _can_read(self, written: str, expected: str, timeout: float) -> bool:
        """Ask whether a reader of one registered schema can read what was written with another one, by their hashes."""
        deadline = time.monotonic() + timeout
        data, reader = (
            self._registry.reply(
                commands.RequestSchema(schema_hash=schema_hash),
                replies.SchemaFound,
                deadline - time.monotonic(),
                is_patient=False,
            ).schema
            for schema_hash in (written, expected)
        )
        command = commands.CheckSchema(
            subject=data.subject,
            schema=reader.schema,
            schema_type=reader.schema_type,
            references=reader.references,
            version=data.version,
            level="BACKWARD",
        )
        return self._registry.reply(command, replies.SchemaChecked, deadline - time.monotonic()).is_compatible

    def _forget_producer(self, producer: Producer) -> None:
        self._open.discard(producer)

    def _forget_consumer(self, consumer: Consumer) -> None:
        self._open.discard(consumer)
        self._group_changes.remove(consumer)
