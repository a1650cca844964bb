"""The methods of a hub about channels and schemas: what is declared, who is there, and declaring more."""

import time
from typing import Any, Literal

from messagehub.arguments import json_object
from messagehub.client.pages import pages
from messagehub.discovery.registry_client import RegistryClient
from messagehub.display.listing import Listing
from messagehub.errors import ConfigurationError
from messagehub.shm.error_hints import schema_instead
from messagehub.shm.locks import open_files_limited
from messagehub.shm.payloads import is_arrow
from registry import commands, replies
from registry.formats import arrow
from registry.records import Access, Consumer, Priority, SchemaType

PAGE = 1000


class Catalog:
    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry

    # -- channels ------------------------------------------------------------------------------------------

    @open_files_limited()
    def channels(self, prefix: str = "", *, timeout: float | None = None) -> list[replies.ChannelSummary]:
        """Return all channels whose name starts with the prefix. The list shows itself as a table."""
        found = Listing[replies.ChannelSummary]()
        after: str | None = ""
        deadline = time.monotonic() + self._registry.limit(timeout)
        while after is not None:
            command = commands.ListChannels(prefix=prefix, after=after, limit=PAGE)
            remaining = max(deadline - time.monotonic(), 0.0)
            page = self._registry.reply_or_none(command, replies.ChannelList, timeout=remaining)
            if page is None:
                return Listing()
            found += page.channels
            after = page.next
        return found

    @open_files_limited()
    def consumers(self, channel: str, *, timeout: float | None = None) -> list[Consumer]:
        """Return who consumes a channel."""
        command = commands.ListConsumers(channel=channel)
        reply = self._registry.reply_or_none(command, replies.ConsumerList, timeout=timeout)
        return Listing(reply.consumers if reply else ())

    @open_files_limited()
    def describe(self, channel: str, *, timeout: float | None = None) -> replies.ChannelDescription | None:
        command = commands.DescribeChannel(channel=channel)
        return self._registry.reply_or_none(command, replies.ChannelDescription, timeout=timeout)

    def create_channel(
        self,
        channel: str,
        *,
        schema: Any = None,
        schema_type: SchemaType | None = None,
        schema_hash: str | None = None,
        schema_version: str | None = None,
        access: Access | None = None,
        config: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        priority: Priority = "normal",
        timeout: float | None = None,
    ) -> replies.ChannelCreated:
        """Declare a channel, so that it stays without members; what is declared binds its producers.

        An Arrow schema may be given as it is, without its type.
        """
        if is_arrow(schema):
            schema, schema_type = arrow.from_arrow(schema), "ARROW"
        elif schema is not None:
            _check_schema(schema)
        command = commands.CreateChannel(
            channel=channel,
            schema_hash=schema_hash,
            schema_version=schema_version,
            schema=schema,
            schema_type=schema_type,
            access=access,
            config=json_object(config, "config"),
            metadata=json_object(metadata, "metadata"),
            priority=priority,
        )
        return self._registry.reply(command, replies.ChannelCreated, timeout)

    def evict(
        self,
        channel: str,
        member_id: str,
        *,
        role: Literal["producer", "consumer"] | None = None,
        timeout: float | None = None,
    ) -> replies.MemberEvicted:
        """End the registration of a producer or consumer of any process, which gets Evicted at its next write or read.

        A producer ends its stream, and no producer waits for a consumer any more; values that it holds stay valid. For
        `lease_seconds` the same process is refused under the same name. `role` is needed only where both have the id.
        """
        command = commands.EvictMember(channel=channel, member_id=member_id, role=role)
        return self._registry.reply(command, replies.MemberEvicted, timeout)

    # -- schemas -------------------------------------------------------------------------------------------

    def register_schema(
        self, subject: str, schema: Any, *, schema_type: SchemaType = "JSON", timeout: float | None = None
    ) -> replies.SchemaRegistered:
        """Register a schema: a text or, for JSON Schema, its dict. An Arrow schema may be given as it is."""
        if is_arrow(schema):
            schema, schema_type = arrow.from_arrow(schema), "ARROW"
        else:
            _check_schema(schema)
        command = commands.RegisterSchema(subject=subject, schema=schema, schema_type=schema_type)
        return self._registry.reply(command, replies.SchemaRegistered, timeout)

    def schema(
        self,
        subject: str | None = None,
        *,
        version: int | None = None,
        schema_id: int | None = None,
        schema_hash: str | None = None,
        timeout: float | None = None,
    ) -> replies.SchemaFound:
        """Return a schema by subject (and version), id or hash."""
        if sum(given is not None for given in (subject, schema_id, schema_hash)) != 1:
            raise ConfigurationError("a schema is found by one of subject, schema_id and schema_hash")
        if version is not None and subject is None:
            raise ConfigurationError("a version is one of a subject's: say which subject")
        command = commands.RequestSchema(subject=subject, version=version, schema_id=schema_id, schema_hash=schema_hash)
        return self._registry.reply(command, replies.SchemaFound, timeout)

    def subjects(self, *, timeout: float | None = None) -> list[str]:
        """Return the subjects of all schemas."""

        def ask(after: str, seconds: float) -> replies.SchemaList:
            return self._registry.reply(commands.ListSchemas(after=after, limit=PAGE), replies.SchemaList, seconds)

        return [each for page in pages(ask, timeout=self._registry.limit(timeout)) for each in page.subjects]

    def schema_versions(self, subject: str, *, timeout: float | None = None) -> list[replies.SchemaVersionSummary]:
        return Listing(
            self._registry.reply(commands.ListSchemas(subject=subject), replies.SchemaList, timeout).versions
        )


def _check_schema(schema: Any) -> None:
    """Refuse what is neither the text of a schema nor a JSON value."""
    if not isinstance(schema, str | dict | list | bool):
        raise ConfigurationError(schema_instead(schema, "schema", "no text, no JSON value and no Arrow schema"))
