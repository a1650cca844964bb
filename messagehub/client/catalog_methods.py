"""The facade's methods about what is declared: channels and schemas."""

import time
from abc import ABC, abstractmethod
from typing import Any, TypeVar

from messagehub.arguments import json_object
from messagehub.errors import ConfigurationError
from messagehub.runtime.background import BackgroundThreads, awaitable
from messagehub.shm.advice import schema_instead
from messagehub.shm.payloads import is_arrow
from registry import commands, replies
from registry.formats import arrow
from registry.records import Access, Priority, SchemaType

PAGE = 1000
_AnyReply = TypeVar("_AnyReply", bound=replies.Reply)


class CatalogMethods(ABC):
    """What `MessageHub` provides to them is declared here; nobody else inherits."""

    _background: BackgroundThreads

    @abstractmethod
    def _limit(self, timeout: float | None) -> float: ...

    @abstractmethod
    def _must(self, command: commands.Command, kind: type[_AnyReply], timeout: float | None) -> _AnyReply: ...

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
        return self._must(command, replies.ChannelCreated, timeout)

    create_channel_async = awaitable(create_channel)

    def register_schema(
        self, subject: str, schema: Any, *, schema_type: SchemaType = "JSON", timeout: float | None = None
    ) -> replies.SchemaRegistered:
        """Register a schema: a text or, for JSON Schema, its dict. An Arrow schema may be given as it is."""
        if is_arrow(schema):
            schema, schema_type = arrow.from_arrow(schema), "ARROW"
        else:
            _check_schema(schema)
        command = commands.RegisterSchema(subject=subject, schema=schema, schema_type=schema_type)
        return self._must(command, replies.SchemaRegistered, timeout)

    register_schema_async = awaitable(register_schema)

    def schema(
        self,
        subject: str | None = None,
        *,
        version: int | None = None,
        schema_id: int | None = None,
        schema_hash: str | None = None,
        timeout: float | None = None,
    ) -> replies.SchemaFound:
        """A schema by subject (and version), id or hash."""
        if sum(given is not None for given in (subject, schema_id, schema_hash)) != 1:
            raise ConfigurationError("a schema is found by one of subject, schema_id and schema_hash")
        if version is not None and subject is None:
            raise ConfigurationError("a version is one of a subject's: say which subject")
        command = commands.RequestSchema(subject=subject, version=version, schema_id=schema_id, schema_hash=schema_hash)
        return self._must(command, replies.SchemaFound, timeout)

    schema_async = awaitable(schema)

    def subjects(self, *, timeout: float | None = None) -> list[str]:
        found: list[str] = []
        after: str | None = ""
        deadline = time.monotonic() + self._limit(timeout)
        while after is not None:
            command = commands.ListSchemas(after=after, limit=PAGE)
            page = self._must(command, replies.SchemaList, max(deadline - time.monotonic(), 0.0))
            found += page.subjects
            after = page.next
        return found

    subjects_async = awaitable(subjects)

    def schema_versions(self, subject: str, *, timeout: float | None = None) -> list[replies.SchemaVersionSummary]:
        return self._must(commands.ListSchemas(subject=subject), replies.SchemaList, timeout).versions

    schema_versions_async = awaitable(schema_versions)


def _check_schema(schema: Any) -> None:
    """Refuse what is neither the text of a schema nor a JSON value."""
    if not isinstance(schema, str | dict | list | bool):
        raise ConfigurationError(schema_instead(schema, "schema", "no text, no JSON value and no Arrow schema"))
