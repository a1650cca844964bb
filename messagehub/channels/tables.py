"""Tables of channels: publish, check, drop, compact, list; and the end of a channel with its table."""

import logging
import time
from typing import Any

from messagehub.arguments import json_object, whole_from
from messagehub.channels.gateways import GatewayAccess
from messagehub.channels.table_checks import check_append, check_mode, checked_retention, checksum_of, reader_of
from messagehub.channels.tables_elsewhere import TablesElsewhere
from messagehub.client.unregistered_tables import UnregisteredTables
from messagehub.discovery.registry_client import RegistryClient
from messagehub.discovery.via_directory import LOCK_SECONDS
from messagehub.display.listing import Listing
from messagehub.errors import (
    ChannelNotFound,
    ConfigurationError,
    HubError,
    TableNotFound,
    TableOnOtherHost,
    is_unable,
)
from messagehub.shm.channel_directory.entries import table_command, table_details
from messagehub.shm.error_hints import schema_instead
from messagehub.shm.errors import TableMissing
from messagehub.shm.layout import ChecksumUse
from messagehub.shm.locks import open_files_limited
from messagehub.shm.payloads import is_arrow
from messagehub.shm.tables.compaction import PACKED_BYTES, compact, compact_appended
from messagehub.shm.tables.manifests import Manifest, Retention
from messagehub.shm.tables.tables import Mode
from registry import commands, names, replies
from registry.formats import arrow

log = logging.getLogger("messagehub")

_NOT_HERE = (ChannelNotFound, TableNotFound, TableOnOtherHost)


class ChannelTables:
    def __init__(
        self, registry: RegistryClient, unregistered: UnregisteredTables, gateways: GatewayAccess, *, host: str
    ) -> None:
        """`unregistered` tells the broker later of what it could not be told at once."""
        self._registry = registry
        self._files = registry.files
        self._unregistered = unregistered
        self._host = host
        self._elsewhere = TablesElsewhere(registry, gateways, host=host)

    @open_files_limited()
    def publish_table(
        self,
        channel: str,
        table: Any,
        *,
        mode: Mode = "overwrite",
        checksum: ChecksumUse = "none",
        retention: Retention | None = None,
        schema_version: str = "",
        metadata: dict[str, Any] | None = None,
    ) -> Manifest:
        """Commit a table (pyarrow Table or batch, or anything with Arrow's stream protocol) as a new generation.

        It needs no producer alive: it stays until it is superseded, dropped, or its retention ends it. Its schema is
        registered under the channel's name; one that is not compatible is refused before anything is written.
        """
        check_mode(mode)
        noted = json_object(metadata, "metadata")
        if retention is not None:
            retention = checked_retention(retention)
        kind, reader = checksum_of(checksum), reader_of(table)
        text = arrow.from_arrow(reader.schema)
        digest = self.check_table(channel, text, mode=mode)
        self._files.directory.make_tables(channel)
        manifest = self._files.tables(channel).publish(
            reader,
            reader.schema,
            now=time.time(),
            mode=mode,
            schema_hash=digest,
            checksum=kind,
            retention=retention,
            details=table_details(text, schema_version=schema_version, metadata=noted),
        )
        self.register_table(channel, manifest)
        packed = compact_appended(self._files.tables(channel), manifest, now=time.time()) if mode == "append" else None
        if packed is not None:
            self.register_table(channel, packed)
        return packed or manifest

    def check_table(self, channel: str, schema: Any, *, mode: Mode = "overwrite", timeout: float | None = None) -> str:
        """Raise what publishing a table of this schema (pyarrow's, or the registry's text) would be refused with.

        Nothing is registered. Returns the schema's hash.
        """
        check_mode(mode)
        if not isinstance(schema, str) and not is_arrow(schema):
            raise ConfigurationError(schema_instead(schema, "schema", "no Arrow schema, and no text of one"))
        text = schema if isinstance(schema, str) else arrow.from_arrow(schema)
        command = commands.CheckTable(
            channel=names.check_channel(channel),
            schema_hash=arrow.parse(text, {}).hash,
            schema=text,
            schema_type="ARROW",
        )
        if mode == "append":
            check_append(self._files, channel, text)
        self._registry.reply_or_none(command, replies.TableChecked, timeout=timeout)
        if mode == "append":
            self._elsewhere.check_is_not(channel, "append to")
        assert command.schema_hash is not None
        return command.schema_hash

    def register_table(self, channel: str, manifest: Manifest, *, timeout: float | None = None) -> bool:
        """Tell the broker of a generation that was committed here; False where it will be told later.

        A refusal is raised, and the generation is withdrawn.
        """
        command = table_command(self._files.directory, channel, manifest)
        try:
            self._registry.reply(command, replies.TableRegistered, timeout)
        except HubError as error:
            if not is_unable(error):
                self._files.tables(channel).withdraw(manifest.generation)
                raise
            self._registry.warn(error, writes=True)
            self._unregistered.add(command)
            return False
        self._unregistered.discard(channel, manifest.generation)
        return True

    @open_files_limited()
    def drop_table(self, channel: str, *, forget: bool = False, timeout: float | None = None) -> replies.TableDropped:
        """Remove a channel's table, all its generations, from the memory of its host and from the registry.

        A table of another host of the site is removed through the gateway there, and an older one of this host too.
        Outside of a site, where the registry's table is on another host, only an older one of this host is removed.
        `forget`: only the registry's record ends, for a table of a host that is gone.
        """
        channel = names.check_channel(channel)
        deadline = time.monotonic() + self._registry.limit(timeout)
        command = commands.DropTable(channel=channel, host=None if forget else self._host)
        elsewhere: TableOnOtherHost | None = None
        try:
            dropped: replies.TableDropped | None = self._registry.reply(command, replies.TableDropped, timeout)
        except HubError as error:
            if forget or not (is_unable(error) or isinstance(error, _NOT_HERE)):
                raise
            dropped = None
            if is_unable(error):
                self._registry.warn(error, writes=True)
            elif isinstance(error, TableOnOtherHost):
                elsewhere = error
        if forget:
            assert dropped is not None
            return dropped
        if elsewhere is not None and self._elsewhere.is_in_site:
            dropped = self._elsewhere.drop(channel, str(elsewhere.details["host"]), deadline)
            elsewhere = None
        self._unregistered.discard(channel)
        try:
            here = self._files.ask(command, timeout=max(deadline - time.monotonic(), LOCK_SECONDS))
        except (ChannelNotFound, TableNotFound):
            if dropped is None:
                said = f"channel {channel!r} has no table, neither in the registry nor in the memory of this host"
                raise elsewhere or TableNotFound(said, channel=channel) from None
            return dropped
        assert isinstance(here, replies.TableDropped)
        if elsewhere is not None:
            log.warning(
                "the table of channel %r in the memory of this host is dropped; the one that is registered is on host"
                " %s and stays",
                channel,
                elsewhere.details["host"],
            )
        return dropped or here

    @open_files_limited()
    def compact_table(self, channel: str, *, part_bytes: int = PACKED_BYTES) -> Manifest | None:
        """Pack small parts of a channel's table into parts of up to `part_bytes`: a new generation of the same rows.

        None where there is nothing to pack, or the table was overwritten meanwhile. Readers of the old generation keep
        it. Parts of other hosts stay as they are.
        """
        channel = names.check_channel(channel)
        self._elsewhere.check_is_not(channel, "compact")
        try:
            packed = compact(
                self._files.tables(channel),
                now=time.time(),
                packed_bytes=whole_from(part_bytes, "part_bytes", 1, 1 << 62),
            )
        except TableMissing:
            said = f"channel {channel!r} has no table in the memory of this host"
            raise TableNotFound(said, channel=channel) from None
        if packed is not None:
            self.register_table(channel, packed)
        return packed

    @open_files_limited()
    def tables(self, prefix: str = "", *, timeout: float | None = None) -> list[replies.TableSummary]:
        """The newest table of every channel whose name starts with the prefix."""
        found = Listing[replies.TableSummary]()
        after: str | None = ""
        while after is not None:
            command = commands.ListTables(prefix=prefix, after=after)
            page = self._registry.reply_or_none(command, replies.TableList, timeout=timeout)
            if page is None:
                break
            found += page.tables
            after = page.next
        return found

    def destroy_channel(
        self, channel: str, *, data: bool = False, timeout: float | None = None
    ) -> replies.ChannelDestroyed:
        """End a channel; its members are told. A channel with a table needs `data`: the table is removed."""
        host = self._host if data else None
        command = commands.DestroyChannel(channel=channel, data=data, host=host)
        deadline = time.monotonic() + self._registry.limit(timeout)
        try:
            destroyed = self._registry.reply(command, replies.ChannelDestroyed, timeout)
        except TableOnOtherHost as error:
            if not self._elsewhere.is_in_site:
                raise
            dropped = self._elsewhere.drop(names.logical(channel), str(error.details["host"]), deadline)
            left = max(deadline - time.monotonic(), 0.001)
            try:
                destroyed = self._registry.reply(command, replies.ChannelDestroyed, left)
            except ChannelNotFound:  # its table was all that there was of it
                destroyed = replies.ChannelDestroyed(channel=dropped.channel, revision=dropped.revision)
        if data:
            self._unregistered.discard(destroyed.channel)
            self._files.tables(destroyed.channel).drop()
        return destroyed
