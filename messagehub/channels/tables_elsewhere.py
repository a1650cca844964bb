"""A channel's table where it is in the memory of another host of the site: dropped there, and not changed from here.

Rule: rows and parts are packed and appended to by processes of the host that has the manifest, under its lock. What
would make a second table of the channel here, and with it hide the rows of the other one, is refused.
"""

import time

from messagehub.channels.gateways import GatewayAccess
from messagehub.discovery.registry_client import RegistryClient
from messagehub.errors import ChannelNotFound, TableNotFound, TableOnOtherHost
from messagehub.shm.errors import BlockOnOtherHost
from registry import commands, replies
from registry.records import Table

_COMMANDS = {
    "compact": "run `messagehub tables compact {channel}` on that host",
    "append to": "append on that host, or overwrite it here (mode='overwrite')",
}


class TablesElsewhere:
    def __init__(self, registry: RegistryClient, gateways: GatewayAccess, *, host: str) -> None:
        self._registry = registry
        self._gateways = gateways
        self._host = host

    @property
    def is_in_site(self) -> bool:
        return self._gateways.is_in_site

    def check_is_not(self, channel: str, change: str) -> None:
        """Raise TableOnOtherHost where the newest table of a channel is on another host of the site."""
        table = self._newest(channel)
        if table is not None and table.host not in (None, self._host):
            advice = _COMMANDS[change].format(channel=channel)
            raise TableOnOtherHost(
                f"the table of channel {channel!r} is in the memory of host {table.host!r}, this is {self._host!r}:"
                f" {advice}",
                channel=channel,
                host=table.host,
            )

    def drop(self, channel: str, host: str, deadline: float) -> replies.TableDropped:
        """Remove the table there and its record. What keeps that from being done is a TableOnOtherHost that says so."""
        table = self._newest(channel)
        try:
            self._gateways.get().drop_table(channel, host, timeout=max(deadline - time.monotonic(), 0.001))
        except TableNotFound:
            pass  # somebody else was faster, or it went with the memory of that host: its record is to end
        except BlockOnOtherHost as error:
            raise TableOnOtherHost(
                f"the table of channel {channel!r} is in the memory of host {host!r}, and cannot be dropped from here:"
                f" {error.why}. Run `messagehub tables drop {channel}` on that host or, if it is gone,"
                f" `messagehub tables drop {channel} --forget` here",
                channel=channel,
                host=host,
            ) from None
        command = commands.DropTable(channel=channel, host=host)
        left = max(deadline - time.monotonic(), 0.001)
        try:
            return self._registry.reply(command, replies.TableDropped, left)
        except (ChannelNotFound, TableNotFound):
            if table is None:
                raise
            return replies.TableDropped(channel=channel, table=table, revision=0)  # the hub there has told of it

    def _newest(self, channel: str) -> Table | None:
        """Return the registry's table of a channel, if this is a site."""
        if self._gateways.is_of_one_host:
            return None
        found = self._registry.discover(channel, None, required=False)
        is_known = found is not None and found.source == "broker" and self.is_in_site
        return found.table if found is not None and is_known else None
