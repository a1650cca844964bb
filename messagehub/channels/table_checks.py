"""Committing a table for whoever looks for its channel: no living producer, one generation at a time.

Rule 1: refusals come before anything is written: the schema is checked by the broker or, without one, against the
newest table here.
Rule 2: a generation is registered once it is there. One that the registry refuses at that point is withdrawn.
"""

import difflib
from dataclasses import asdict
from typing import Any, get_args

import msgspec

from messagehub.arguments import choice, plain
from messagehub.discovery.via_directory import ViaFiles
from messagehub.errors import ConfigurationError, SchemaIncompatible
from messagehub.shm.channel_directory.entries import newest_table
from messagehub.shm.layout import Checksum, ChecksumUse
from messagehub.shm.tables.manifests import Retention
from messagehub.shm.tables.tables import MODES
from registry.formats import arrow


def check_mode(mode: str) -> None:
    choice(mode, "mode", MODES)


def checked_retention(retention: Any) -> Retention:
    """It becomes a part of the manifest: one of another kind would make a table that nobody can read."""
    if isinstance(retention, Retention):
        retention = Retention(**{name: plain(value) for name, value in asdict(retention).items()})
    try:
        is_sound = (
            isinstance(retention, Retention)
            and msgspec.json.decode(msgspec.json.encode(retention), type=Retention) == retention
            and retention.generations >= 1
            and all(limit is None or limit >= 0 for limit in asdict(retention).values())
        )
    except (TypeError, ValueError, OverflowError):
        is_sound = False
    if not is_sound:
        raise ConfigurationError(
            f"retention {retention!r} is no messagehub.Retention of at least one generation and limits that are not"
            " negative, such as Retention(generations=3, max_age_seconds=3600)"
        )
    found: Retention = retention
    return found


def checksum_of(name: ChecksumUse) -> Checksum:
    return Checksum[choice(name, "checksum", get_args(ChecksumUse)).upper()]


def check_append(files: ViaFiles, channel: str, text: str) -> None:
    """Appending keeps the schema of the table that is there."""
    before = newest_table(files.directory, channel, with_schema=True)
    if before is None or not isinstance(before.schema, str):
        return
    if arrow.parse(before.schema, {}).hash != arrow.parse(text, {}).hash:
        found = _changes(arrow.to_arrow(before.schema), arrow.to_arrow(text))
        raise SchemaIncompatible(
            f"the table does not fit what channel {channel!r} holds: {' '.join(found)} To go on: append keeps the"
            " schema; use overwrite to change it.",
            channel=channel,
            differences=found,
        )


def reader_of(table: Any) -> Any:
    import pyarrow as pa

    if isinstance(table, pa.Table):
        return table.to_reader()
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table]).to_reader()
    if hasattr(table, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(table)
    raise TypeError(f"a {type(table).__name__} is no table: give a pyarrow Table or RecordBatch, or a frame")


def _meant(name: str, names: list[str], given: list[str]) -> str:
    near = difflib.get_close_matches(name, [other for other in names if other not in given], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _changes(table: Any, appended: Any) -> list[str]:
    """Return what differs between two Arrow schemas, by column; never empty, as they differ."""
    found = []
    for field in appended:
        if field.name not in table.names:
            found.append(f"Column {field.name!r} is not in the table{_meant(field.name, table.names, appended.names)}.")
            continue
        present = table.field(field.name)
        if not field.type.equals(present.type):
            found.append(f"Column {field.name!r} is {present.type} in the table and {field.type} here.")
        elif field.nullable != present.nullable:
            found.append(f"Column {field.name!r} may hold nulls {'here' if field.nullable else 'in the table'} only.")
    found += [f"Column {name!r} is missing." for name in table.names if name not in appended.names]
    return found or [f"The columns of the table come in the order {', '.join(table.names)}."]
