"""Committing a table for whoever looks for its channel; no broker, no living producer, one generation at a time."""

import time
from typing import Any

from messagehub.datablock.layout import Checksum
from messagehub.datablock.manifests import Manifest, Retention
from messagehub.datablock.tables import Mode, TableStore
from messagehub.discovery.via_files import ViaFiles
from messagehub.errors import ConfigurationError
from messagehub.payload_schema import payload_schema


def publish_table(
    files: ViaFiles,
    channel: str,
    table: Any,
    *,
    mode: Mode,
    checksum: str,
    retention: Retention | None,
    details: dict[str, Any],
) -> Manifest:
    kinds = {each.name.lower(): each for each in Checksum}
    if checksum not in kinds:
        raise ConfigurationError(f"checksum {checksum!r} is not one of {', '.join(kinds)}")
    reader = _reader(table)
    directory = files.directory
    directory.make_tables(channel)
    return TableStore(directory.tables_path(channel)).publish(
        reader,
        reader.schema,
        now=time.time(),
        mode=mode,
        schema_hash=payload_schema(reader.schema).schema_hash,
        checksum=kinds[checksum],
        retention=retention,
        details=details,
    )


def _reader(table: Any) -> Any:
    import pyarrow as pa

    if isinstance(table, pa.Table):
        return table.to_reader()
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table]).to_reader()
    if hasattr(table, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(table)
    raise TypeError(f"a {type(table).__name__} is no table: give a pyarrow Table or RecordBatch, or a frame")
