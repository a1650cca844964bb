"""The directory of channels as the registry sees it: an entry is the very command that its producer gives a broker.

So a broker that scans and a process that finds no broker both apply the same rules to the same commands.

Rule 1: an entry counts while its lock is held. A dead producer is not registered, whatever its entry says.
Rule 2: entries that the rules refuse beside each other are a conflict, which is shown with the text of the refusal.
Rule 3: the directory is input: an entry is decoded like a request on the wire and has the same limits.
"""

import os
import pwd
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from messagehub import protocol
from messagehub.errors import ProtocolError
from messagehub.shm.channel_directory.directory import CHANNEL_LOCK, Directory, Listed, ProducerEntry
from messagehub.shm.errors import DataBlockError
from messagehub.shm.identity import ProcessIdentity, boot_id, host
from messagehub.shm.tables import manifests
from messagehub.shm.tables.manifests import Manifest
from registry import commands
from registry.errors import Refusal
from registry.registry import Registry

# A producer without an id of its own; role names begin with a letter, so it is nobody's.
_DEFAULT = "_default"
_TYPE = commands.RegisterProducer.__struct_config__.tag
MAX_REASON = 1000
FAR = 2.0**40  # seconds since the epoch; nobody registered later than that


class Live(NamedTuple):
    """A living producer of a channel, and the command of its entry."""

    entry: ProducerEntry
    command: commands.RegisterProducer


def file_id(producer_id: str | None) -> str:
    return producer_id or _DEFAULT


def entry_of(command: commands.RegisterProducer, process: ProcessIdentity, *, blocks: tuple[str, ...]) -> ProducerEntry:
    """`blocks`, relative to the root, are what a cleaner removes with the entry."""
    said = msgspec.structs.replace(command, id=None, schema=None)
    return ProducerEntry(
        channel=command.channel,
        producer_id=file_id(command.producer_id),
        process=process,
        registered_at=time.time(),
        blocks=blocks,
        schema_hash=command.schema_hash,
        schema=command.schema,
        details={"command": msgspec.to_builtins(said)},
    )


def command_of(listed: Listed, *, with_schema: bool) -> commands.RegisterProducer | None:
    """Return the command that the entry's producer would send a broker; None if a broker would not accept it."""
    entry = listed.entry
    said = entry.details.get("command") if entry is not None else None
    if entry is None or not isinstance(said, dict):
        return None
    request = said | {"type": _TYPE, "schema": entry.schema if with_schema else None}
    try:
        command = protocol.decode(msgspec.json.encode(request))
    except (ProtocolError, ValueError, OverflowError, TypeError, RecursionError):
        return None
    assert isinstance(command, commands.RegisterProducer)
    is_right = command.channel == entry.channel and 0.0 <= entry.registered_at < FAR
    return command if is_right else None


def living(directory: Directory, channel: str, *, with_schema: bool = False) -> list[Live]:
    """Return the living producers of a channel in the order in which they registered."""
    found = []
    for listed in directory.producers(channel):
        command = command_of(listed, with_schema=with_schema) if listed.is_alive else None
        if command is not None and listed.entry is not None and command.channel == channel:
            found.append(Live(listed.entry, command))
    return sorted(found, key=lambda live: live.entry.registered_at)


def adopt(registry: Registry, found: Iterable[Live], channel: str, *, now: float) -> None:
    """Register living producers with the times at which they came, and show a refusal as a conflict."""
    clash = None
    for live in found:
        try:
            registry.apply(live.command, now=live.entry.registered_at)
        except Refusal as refused:
            clash = clash or clash_of(live, refused)
    registry.host_events.show_conflict(channel, clash, now=now)


def clash_of(live: Live, refused: Refusal) -> str:
    owner = file_id(live.command.producer_id)
    return f"producer {owner!r} (pid {live.entry.process.pid}): {refused.message}"[:MAX_REASON]


def table_details(
    schema: str,
    *,
    schema_version: str = "",
    metadata: dict[str, Any] | None = None,
    application: str | None = None,
    comments: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return the details of a manifest: the table's schema, the comments of its columns, and this process as its
    writer."""
    return {
        "schema": schema,
        "schema_version": schema_version,
        "metadata": metadata or {},
        "user": _user(),
        "application": application,
        "comments": comments or {},
        "pid": os.getpid(),
    }


def table_command(
    directory: Directory, channel: str, manifest: Manifest, *, with_schema: bool = True
) -> commands.RegisterTable:
    """Return the command that registers a table. ValidationError is raised for a manifest that no writer made."""
    here, details = host(), manifest.details
    said = {
        "type": "TABLE_REGISTER",
        "channel": channel,
        "schema_hash": manifest.schema_hash or None,
        "schema_version": details.get("schema_version", ""),
        "schema": details.get("schema") if with_schema else None,
        "schema_type": "ARROW",
        "generation": manifest.generation,
        "shm_name": "/"
        + directory.relative(manifests.manifest_path(directory.tables_path(channel), manifest.generation)),
        "rows": manifest.rows,
        "size_bytes": manifest.size_bytes,
        "parts": len(manifest.parts),
        "hosts": Counter(part.host or here for part in manifest.parts),
        "host": here,
        "boot_id": boot_id(),
        "user": details.get("user"),
        "application": details.get("application"),
        "pid": details.get("pid"),
        "metadata": details.get("metadata") or {},
        "committed_at": manifest.committed_at,
    }
    return msgspec.convert(said, commands.RegisterTable)


def newest_table(directory: Directory, channel: str, *, with_schema: bool = False) -> commands.RegisterTable | None:
    """Return the command for the newest committed generation that can be read."""
    path = directory.tables_path(channel)
    for generation in reversed(manifests.generations(path)):
        try:
            manifest = manifests.load(path, generation)
            if manifest is not None:
                return table_command(directory, channel, manifest, with_schema=with_schema)
        except (DataBlockError, msgspec.ValidationError, RecursionError):
            continue  # damaged: an older generation may still serve
    return None


def is_about_members(name: str) -> bool:
    """Return whether a change of this file in a channel's directory can change its producers or its tables."""
    return (name.endswith((".json", ".lock")) and name != CHANNEL_LOCK) or name == "tables"


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def block_path(directory: Directory, shm_name: str) -> str:
    return os.path.join(directory.root, shm_name.lstrip("/"))
