"""Whether a channel's data is in the memory of this host.

The directory is always of this host. The broker knows of others too, and of processes that name no host.
"""

from messagehub.discovery import Discovery
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.entries import living
from messagehub.shm.errors import BlockOnOtherHost
from messagehub.shm.identity import host


def hosts_elsewhere(found: Discovery, directory: Directory) -> list[str]:
    """The other hosts that produce a channel beside this one; BlockOnOtherHost where nothing of it is here.

    A producer that the directory lists is here whatever it calls its host: containers may share the memory and not the
    name. It is told from a namesake by its lease.
    """
    here: set[str | None] = {host(), None}
    hosts = {producer.host for producer in found.producers} | {block.host for block in found.blocks}
    if found.source != "broker" or hosts <= here:
        return []
    listed = {live.command.lease for live in living(directory, found.channel)}
    here |= {producer.host for producer in found.producers if producer.lease in listed}
    elsewhere = sorted(str(name) for name in hosts - here)
    if not hosts & here:
        raise BlockOnOtherHost(found.shm_name or found.channel, elsewhere[0], host())
    return elsewhere
