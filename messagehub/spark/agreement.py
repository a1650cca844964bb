"""Whether a write may change a channel's schema, decided before any task runs.

With a broker the schema is registered under the channel's subject, at that subject's compatibility level. Without one
the newest table here stands for the registry, at the registry's default level (BACKWARD).
"""

from typing import Any, NamedTuple

from messagehub.datablock.errors import TableMissing
from messagehub.datablock.tables import Mode, TableStore
from messagehub.errors import BrokerUnavailable, SchemaIncompatible
from messagehub.spark.channels import schema_of
from messagehub.spark.options import Options
from messagehub.spark.schema_mapping import schema_hash, schema_text
from messagehub.status import is_held
from registry.formats import arrow
from registry.replies import SchemaRegistered


class Agreed(NamedTuple):
    """What the manifest of the write says about its schema."""

    text: str
    digest: str
    version: str
    schema_id: int | None

    def details(self) -> dict[str, Any]:
        return {
            "schema": self.text,
            "schema_type": "ARROW",
            "schema_version": self.version,
            "schema_id": self.schema_id,
        }


def agree(options: Options, text: str, mode: Mode) -> Agreed:
    """Raises SchemaIncompatible with the columns that stand in the way."""
    digest = schema_hash(text)
    before, known = _newest(options.tables())
    if before is not None and schema_hash(before) == digest and known.get("schema_id") is not None:
        return Agreed(text, digest, str(known["schema_version"]), known["schema_id"])
    if mode == "append" and before is not None and schema_hash(before) != digest:
        raise _incompatible(
            options.channel, _changes(before, text), "append keeps the schema; use overwrite to change it"
        )
    registered = _register(options, text)
    if registered is not None:
        return Agreed(text, digest, str(registered.version), registered.schema_id)
    found = [difference.message for difference in _compare(before, text)] if before else []
    if found:
        advice = "publish to another channel, or start a hub and set the subject's compatibility to NONE"
        raise _incompatible(options.channel, found, advice)
    return Agreed(text, digest, "", None)


def _register(options: Options, text: str) -> SchemaRegistered | None:
    """None without a broker; whether one runs here is seen without importing all that it takes to talk to it."""
    settings = options.settings()
    if settings.is_local and not is_held(settings.lock_path):
        return None
    from messagehub.hub import MessageHub

    try:
        with MessageHub(settings) as hub:
            return hub.register_schema(options.channel, text, schema_type="ARROW")
    except BrokerUnavailable:
        return None


def _newest(tables: TableStore) -> tuple[str | None, dict[str, Any]]:
    """The schema of the newest table and what else was noted with it."""
    try:
        snapshot = tables.open()
    except TableMissing:
        return None, {}
    with snapshot:
        return schema_text(schema_of(snapshot)), snapshot.manifest.details


def _compare(before: str, after: str) -> list[Any]:
    return arrow.compare(arrow.parse(before, {}), arrow.parse(after, {}))


def _changes(before: str, after: str) -> list[str]:
    """What differs, in either direction; never empty, as the hashes differ."""
    old, new = arrow.parse(before, {}), arrow.parse(after, {})
    found = [difference.message for difference in arrow.compare(old, new)]
    found += [f'The field "{field.name}" is new.' for field in new.fields if field.name not in _names(old)]
    found += [f'The field "{field.name}" is missing.' for field in old.fields if field.name not in _names(new)]
    return found or [difference.message for difference in arrow.compare(new, old)] or ["The order of columns changed."]


def _names(schema: arrow.ArrowSchema) -> set[str]:
    return {field.name for field in schema.fields}


def _incompatible(channel: str, found: list[str], advice: str) -> SchemaIncompatible:
    return SchemaIncompatible(
        f"the DataFrame does not fit what channel {channel!r} holds: {' '.join(found)} To go on: {advice}.",
        channel=channel,
        differences=found,
    )
