"""Committed tables under /api/v1/tables, and the end of a channel with its table.

This process runs on the broker's host, so it can free the memory of tables there.
"""

from messagehub.admin.api.listing import listed
from messagehub.admin.api.parameters import Flag, Limit, Name, NotGiven
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.endpoints import HandlerResult
from messagehub.admin.routes import Operations
from registry import commands, replies

operations = Operations()


@operations.add("DELETE", "/api/v1/channels/{channel}", "admin", writes=True, codes=(404, 409, 42208))
async def destroy_channel(backend: BrokerClient, channel: Name, data: Flag = False) -> replies.ChannelDestroyed:
    """End a channel; `data` removes its table with it."""
    command = commands.DestroyChannel(channel=channel)
    return await backend.change(command, lambda hub: hub.destroy_channel(channel, data=data))


@operations.add("GET", "/api/v1/tables", "observe", codes=(42202,))
async def tables(
    backend: BrokerClient, prefix: str = "", after: str = "", limit: Limit | NotGiven = None
) -> HandlerResult[list[replies.TableSummary]]:
    """The newest table of each channel."""

    async def ask(after: str, limit: int) -> tuple[list[replies.TableSummary], str | None]:
        command = commands.ListTables(prefix=prefix, after=after, limit=limit)
        page = await backend.ask(command, replies.TableList)
        return page.tables, page.next

    return await listed(ask, lambda one: one.channel, after, limit)


@operations.add("DELETE", "/api/v1/tables/{channel}", "produce", writes=True, codes=(404, 409, 42208))
async def drop_table(backend: BrokerClient, channel: Name, forget: Flag = False) -> replies.TableDropped:
    """Remove a channel's table from the registry and from the memory of its host."""
    command = commands.DropTable(channel=channel)
    return await backend.change(command, lambda hub: hub.drop_table(channel, forget=forget))
