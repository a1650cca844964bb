"""Schemas that come with the registration of a producer, a table or a channel: they go under the channel's name."""

from registry import commands
from registry.event_log import EventLog
from registry.records import SchemaVersion
from registry.schemas.checks import CheckResult, SchemaCheck
from registry.schemas.rules import SchemaRules

Embedding = commands.RegisterProducer | commands.CreateChannel | commands.TableSchema
Planned = tuple[SchemaVersion, bool]
"""The catalogue's version of a schema, and whether it is new there."""


class EmbeddedSchemas:
    def __init__(self, log: EventLog, rules: SchemaRules) -> None:
        self._log = log
        self._rules = rules

    def needed_check(self, command: Embedding) -> SchemaCheck | None:
        embedded = _embedded(command)
        return self._rules.needed_check(embedded) if embedded else None

    def plan(self, command: Embedding, result: CheckResult | None) -> Planned | None:
        """Return the version that the schema of this registration has or would get; None without a schema."""
        embedded = _embedded(command)
        return self._rules.plan(embedded, result) if embedded else None

    def emit(self, planned: Planned | None, now: float) -> None:
        """Register the planned version if it is new."""
        if planned is not None and planned[1]:
            for event in self._rules.registration(planned[0]):
                self._log.emit_schema(event, now)


def _embedded(command: Embedding) -> commands.RegisterSchema | None:
    if command.schema is None:
        return None
    return commands.RegisterSchema(
        subject=command.channel,
        schema=command.schema,
        schema_type=command.schema_type or "JSON",
        schema_hash=command.schema_hash,
    )
