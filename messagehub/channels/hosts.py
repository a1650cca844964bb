"""Whether a channel's data is in the memory of this host.

The directory is always of this host. The broker knows of others too, and of processes that name no host.
"""

from typing import NamedTuple

from messagehub.discovery import Discovery
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.entries import living
from messagehub.shm.identity import host


class RingElsewhere(NamedTuple):
    host: str
    shm_name: str
    registered_at: float
    """When its producer was registered: one that comes again has another time."""


class Places(NamedTuple):
    """Where the rings and the newest table of a channel are."""

    is_here: bool
    """Whether something of it is on this host."""
    here: frozenset[str | None] = frozenset()
    """The names of this host; None stands for it where a process named none."""
    hosts: tuple[str, ...] = ()
    """The other hosts, by name."""
    rings: tuple[RingElsewhere, ...] = ()
    table: str | None = None
    """The host of the newest table, if that is another one."""


def places_of(found: Discovery, directory: Directory) -> Places:
    """Return where a channel is.

    A producer that the directory lists is here whatever it calls its host: containers may share the memory and not the
    name. It is told from a namesake by its lease.
    """
    here: set[str | None] = {host(), None}
    hosts = {producer.host for producer in found.producers} | {block.host for block in found.blocks}
    if found.source != "broker" or hosts <= here:
        return Places(is_here=True, here=frozenset(hosts | here))
    listed = {live.command.lease for live in living(directory, found.channel)}
    here |= {producer.host for producer in found.producers if producer.lease in listed}
    rings = [
        RingElsewhere(str(at), name, producer.registered_at)
        for producer in found.producers
        for name, at in [(block.shm_name, block.host) for block in producer.blocks]
        or [(producer.shm_name, producer.host)]
        if at not in here
    ]
    table = found.table.host if found.table is not None and found.table.host not in here else None
    elsewhere = tuple(sorted(str(name) for name in hosts - here))
    return Places(bool(hosts & here), frozenset(here), elsewhere, tuple(rings), table)


def has_data(found: Discovery | None) -> bool:
    """Return whether there is a producer or a table: a channel that has consumers alone is known too."""
    return found is not None and (found.shm_name is not None or found.table is not None)


def names_of(found: Discovery | None) -> set[str | None]:
    """Return the blocks that producers have anywhere, by name."""
    producers = found.producers if found is not None else []
    named: list[str | None] = [block.shm_name for producer in producers for block in producer.blocks]
    return {*named, *(producer.shm_name for producer in producers)}
