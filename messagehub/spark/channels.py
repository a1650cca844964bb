"""What is there to read of a channel, and the right refusal when there is nothing."""

import contextlib
import difflib
import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from messagehub.errors import ChannelNotFound, ChannelNotReady, HubError, SchemaMismatch
from messagehub.shm.errors import BlockOnOtherHost, TableMissing
from messagehub.shm.identity import host
from messagehub.shm.tables.snapshot import Snapshot
from messagehub.spark.elsewhere import (
    channels_of_site,
    may_be_elsewhere,
    short_gateways,
    snapshot_elsewhere,
    table_host,
)
from messagehub.spark.errors import BadOption, GenerationGone
from messagehub.spark.options import Options
from messagehub.spark.schema_mapping import commented, schema_hash, schema_text, written_schema
from registry.formats import arrow

if TYPE_CHECKING:
    from messagehub.flight.remote_tables import RemoteSnapshot

CHANNEL: Final = pa.field("channel", pa.string())
"""Of a stream of many channels: where a row comes from."""
_HASH: Final = re.compile(r"[0-9a-f]{64}")


def newest_snapshot(options: Options) -> "Snapshot | RemoteSnapshot":
    """The chosen generation, by default the newest, from the host that has its manifest; close it when done."""
    try:
        return snapshot_elsewhere(options) or options.tables().open(options.generation)
    except TableMissing:
        pass
    if options.generation is not None and (options.tables().generations() or table_host(options) is not None):
        raise generation_gone(options, options.generation)
    raise nothing_to_read(options, "publish a table to it, or follow its live data with spark.readStream")


def generation_gone(options: Options, generation: int) -> HubError:
    known = known_generations(options)
    return GenerationGone(
        f"generation {generation} of channel {options.channel!r} is not there (any more); "
        f"there are: {', '.join(map(str, known)) or 'none'}. Load it again, for a view with CREATE OR "
        "REPLACE TEMPORARY VIEW, or let the writer keep more generations (option keepGenerations).",
        channel=options.channel,
        generation=generation,
    )


def known_generations(options: Options) -> list[int]:
    """Return the generations of the channel's table, on the host that has the newest.

    There are none while that host cannot be asked.
    """
    at = table_host(options)
    if at is None:
        return options.tables().generations()
    with short_gateways(options) as gateways, contextlib.suppress(HubError):
        return [each.generation for each in gateways.manifests(options.channel, at)]
    return []


def has_table(options: Options) -> bool:
    """Return whether there is a table of the channel, here or on another host."""
    return bool(options.tables().generations()) or table_host(options) is not None


def nothing_to_read(options: Options, advice: str) -> HubError:
    """Elsewhere, known but empty, or not known at all; then with the name that was perhaps meant."""
    from messagehub.hub import MessageHub

    directory = options.directory()
    with MessageHub(options.settings()) as hub:
        found = hub.discover(options.channel)
        site = hub.site
    for block in found.blocks if found is not None and site is None else ():
        if block.host not in (None, host()):
            return BlockOnOtherHost(block.shm_name, str(block.host), host())
    if os.path.isdir(directory.channel_path(options.channel)) or (site is not None and found is not None):
        return ChannelNotReady(
            f"channel {options.channel!r} has no table to read yet: {advice}", channel=options.channel
        )
    known = directory.channels()
    near = difflib.get_close_matches(options.channel, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f" ({len(known)} others are)"
    place = f"in site {site!r}, nor in domain" if site is not None else "in domain"
    return ChannelNotFound(
        f"channel {options.channel!r} is not known {place} {directory.domain!r} on this host{hint}",
        channel=options.channel,
    )


def schema_of(snapshot: "Snapshot | RemoteSnapshot") -> pa.Schema:
    """As its writer declared it; a table without a declaration speaks for itself."""
    details = snapshot.manifest.details
    text = details.get("schema")
    if isinstance(text, str):
        schema = arrow.to_arrow(text)
    else:
        schema = snapshot.part(0).schema if isinstance(snapshot, Snapshot) else snapshot.schema()
    return commented(schema, details.get("comments"))


def available_schema(options: Options) -> pa.Schema:
    """Of the table, or where there is none, of the live data; of many channels, with the column that names them."""
    found = _data_schema(options)
    if not options.is_of_many_channels:
        return found
    if CHANNEL.name in found.names:
        raise BadOption(
            f"a channel of {options.channel!r} has a column {CHANNEL.name!r} of its own; that name is needed for"
            " the column that says where a row comes from: stream each channel for itself"
        )
    return pa.schema([CHANNEL, *found])


def _data_schema(options: Options) -> pa.Schema:
    if options.is_of_many_channels:
        # By name: block ids are random, and the same channels are to give the same schema.
        for schema in _ring_schemas(options):
            return schema
        raise ChannelNotFound(
            f"no channel in domain {options.directory().domain!r} on this host matches {options.channel!r} and has a"
            " producer: start one, or say .schema(…) with a column channel string. Patterns are for readStream:"
            " spark.read reads the table of one channel; read each, and union them"
        )
    if options.generation is not None or has_table(options):
        with newest_snapshot(options) as snapshot:
            return schema_of(snapshot)
    for schema in _ring_schemas(options):
        return schema
    raise nothing_to_read(options, "publish a table to it, or start its producer")


def _ring_schemas(options: Options) -> Iterator[pa.Schema]:
    """Give the schemas of the rings of this host, by their channels, and then of those of other hosts."""
    from messagehub.spark.rings import rings

    for ring in sorted(rings(options), key=lambda each: each.channel):
        yield ring.schema()
    if may_be_elsewhere(options):
        from messagehub.spark.rings_elsewhere import RingsElsewhere

        with contextlib.closing(RingsElsewhere(options)) as elsewhere:
            for found in elsewhere.rings(channels_of_site(options), {}):
                yield found.schema()


def check_streamed(options: Options) -> None:
    """Refuse to begin a stream of a channel that has only a table: nothing of that would come."""
    if not options.is_of_many_channels and has_table(options) and next(_ring_schemas(options), None) is None:
        raise BadOption(
            f"channel {options.channel!r} holds a table and no live data: spark.read reads it; readStream is for"
            " channels that a producer writes to"
        )


def check_expected(options: Options) -> None:
    """`expectedSchema`: a hash must be equal; a schema must be readable from what is there."""
    expected = options.expected_schema
    if expected is None:
        return
    available = _data_schema(options)
    text = schema_text(available)
    if _HASH.fullmatch(expected):
        digest = schema_hash(text)
        if digest != expected:
            raise SchemaMismatch(
                f"channel {options.channel!r} has schema hash {digest}, not the expected {expected}",
                channel=options.channel,
            )
        return
    wanted = _expected(expected)
    found = arrow.compare(arrow.parse(text, {}), wanted)
    names = {field.name for field in available}
    lacking = [f'The field "{field.name}" is not there.' for field in wanted.fields if field.name not in names]
    if found or lacking:
        said = " ".join([*lacking, *(difference.message for difference in found)])
        raise SchemaMismatch(f"channel {options.channel!r} is not what was expected: {said}", channel=options.channel)


def _expected(text: str) -> arrow.ArrowSchema:
    """From the JSON of a StructType or of the registry. (SQL needs a session, which no worker has.)"""
    try:
        value = json.loads(text)
        if value.get("type") == "struct":
            text = schema_text(written_schema(StructType.fromJson(value)))
        return arrow.parse(text, {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadOption(
            f"option expectedSchema is neither a hash nor the JSON of a StructType or an ARROW schema: {error}"
        ) from None
