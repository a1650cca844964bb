"""What a process of Spark reads of other hosts of the site: where it is, and the way to the gateways there.

Rule 1: where a table or a ring is, the registry says. A hub that is a member of no site is not asked: all is here.
Rule 2: nothing here is made before it is needed: readers are pickled to the tasks, and gRPC does not survive a fork.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from messagehub.client.broker_file import is_held
from messagehub.shm.identity import host
from messagehub.spark.hubs import hub_of
from messagehub.spark.options import Options
from registry import commands, replies
from registry.topics.patterns import Patterns

if TYPE_CHECKING:
    from messagehub.discovery import Discovery
    from messagehub.flight.client import Gateways
    from messagehub.flight.remote_tables import RemoteSnapshot


def may_be_elsewhere(options: Options) -> bool:
    """Return whether a hub could know of other hosts; a look at files says no for a local hub on its own."""
    settings = options.settings()
    return not settings.is_local or (os.path.exists(settings.site_path) and is_held(settings.lock_path))


def discovered(options: Options, channel: str) -> "Discovery | None":
    """Return what the registry of a site knows of a channel; None without a site, or while its hub does not answer."""
    if not may_be_elsewhere(options):
        return None
    with hub_of(options) as hub:
        found = hub.discover(channel)
        is_known = found is not None and found.source == "broker"
        return found if is_known and hub.site else None


def channels_of_site(options: Options) -> list[str]:
    """Return the channels that the option names, as far as they are known on this host and in its site."""
    here = options.channels()
    if not options.is_of_many_channels or not may_be_elsewhere(options):
        return here
    pattern = Patterns(options.channel)
    prefix = options.channel[: min(map(options.channel.find, set("*>") & set(options.channel)))]
    with hub_of(options) as hub:
        known = [one.channel for one in hub.channels(prefix)]
        return sorted({*here, *(name for name in known if hub.site and pattern.matches(name))})


def table_host(options: Options) -> str | None:
    """Return the host of the channel's newest table, if that is another one."""
    found = discovered(options, options.channel)
    table = found.table if found is not None else None
    return table.host if table is not None and table.host not in (None, host()) else None


def snapshot_elsewhere(options: Options) -> "RemoteSnapshot | None":
    """Return the chosen generation of a table whose manifest is on another host; None where it is on this one.

    A generation that is not there is a TableMissing.
    """
    at = table_host(options)
    if at is None:
        return None
    from messagehub.flight.remote_tables import RemoteSnapshot, RemoteTables

    gateways = gateways_of(options)
    tables = RemoteTables(options.channel, options.tables().path, gateways)
    tables.look(at)
    wanted = options.generation
    known = tables.generations()
    opened: RemoteSnapshot = tables.open(wanted if wanted is not None else known[-1] if known else 0)
    return opened


def gateways_of(options: Options) -> "Gateways":
    """Return a way to the gateways that asks the hub of this process for tokens when it needs them."""
    from messagehub.flight.client import Gateways

    def ask(command: commands.RequestGateway, timeout: float) -> replies.GatewayFound:
        with hub_of(options) as hub:
            found = hub.ask(command, timeout=timeout)
        assert isinstance(found, replies.GatewayFound)
        return found

    return Gateways(ask)


@contextmanager
def short_gateways(options: Options) -> "Iterator[Gateways]":
    """For the time of one task."""
    gateways = gateways_of(options)
    try:
        yield gateways
    finally:
        gateways.close()
