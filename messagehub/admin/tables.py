"""Committed tables under /api/v1/tables, and the end of a channel with its table.

This process runs on the broker's host, so it can free the memory of tables there.
"""

from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from messagehub.admin import parameters
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import answer
from messagehub.admin.listing import QUERY, listed
from registry import commands, replies


class TablePaths:
    def __init__(self, backend: BrokerClient) -> None:
        self._backend = backend

    async def tables(self, request: Request) -> Response:
        """The newest table of each channel."""
        prefix = request.query_params.get("prefix", "")

        async def ask(after: str, limit: int) -> tuple[list[replies.TableSummary], str | None]:
            command = commands.ListTables(prefix=prefix, after=after, limit=limit)
            page = await self._backend.ask(command, replies.TableList)
            return page.tables, page.next

        return await listed(request, ask, lambda one: one.channel)

    async def drop_table(self, request: Request) -> Response:
        """Remove a channel's table from the registry and from the memory of this host."""
        channel, forget = _channel(request), parameters.flag(request, "forget")
        dropped = await self._backend.change(
            commands.DropTable(channel=channel), lambda hub: hub.drop_table(channel, forget=forget)
        )
        return answer(200, dropped)

    async def destroy_channel(self, request: Request) -> Response:
        """End a channel; `data` removes its table with it."""
        channel, data = _channel(request), parameters.flag(request, "data")
        destroyed = await self._backend.change(
            commands.DestroyChannel(channel=channel), lambda hub: hub.destroy_channel(channel, data=data)
        )
        return answer(200, destroyed)


def _channel(request: Request) -> str:
    return unquote(request.path_params["channel"], errors="replace")[:300]


ENDPOINTS = (
    Endpoint(
        "DELETE",
        "/api/v1/channels/{channel}",
        TablePaths.destroy_channel,
        "admin",
        writes=True,
        query=("data",),
        codes=(404, 409, 42208),
        returns=replies.ChannelDestroyed,
    ),
    Endpoint(
        "GET",
        "/api/v1/tables",
        TablePaths.tables,
        "observe",
        query=("prefix", *QUERY),
        codes=(42202,),
        returns=list[replies.TableSummary],
    ),
    Endpoint(
        "DELETE",
        "/api/v1/tables/{channel}",
        TablePaths.drop_table,
        "produce",
        writes=True,
        query=("forget",),
        codes=(404, 409, 42208),
        returns=replies.TableDropped,
    ),
)
