"""Services under /api/v1/services: who serves what, to look at."""

from typing import Annotated

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from messagehub.admin import parameters
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import answer
from messagehub.admin.listing import QUERY, listed
from messagehub.services.resending import Resent
from registry import commands, replies


class ResendBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters to send again: the newest, or the newest to one address."""

    address: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


class ServicePaths:
    def __init__(self, backend: BrokerClient) -> None:
        self._backend = backend

    async def services(self, request: Request) -> Response:
        """Addresses that are served, and by whom."""
        prefix = request.query_params.get("prefix", "")

        async def ask(after: str, limit: int) -> tuple[list[replies.ServiceSummary], str | None]:
            command = commands.ListServices(prefix=prefix, after=after, limit=limit)
            page = await self._backend.ask(command, replies.ServiceList)
            return page.services, page.next

        return await listed(request, ask, lambda one: one.address)

    async def dead_letters(self, request: Request) -> Response:
        """Messages that could not be delivered, the newest last; payloads in base64."""
        address = request.query_params.get("address")
        limit = parameters.bounded(request, "limit", 100, 10_000)
        command = commands.ListDeadLetters(address=address and address[:300], limit=limit)
        return answer(200, await self._backend.ask(command, replies.DeadLetterList))

    async def resend(self, request: Request) -> Response:
        """Send dead letters again, oldest first, and forget those that were sent."""
        body = await parameters.body(request, ResendBody)
        command = commands.ListDeadLetters(address=body.address, limit=body.limit)
        self._backend.callers.check(command)
        done = await run_in_threadpool(self._backend.hub.resend_dead_letters, body.address, limit=body.limit)
        return answer(200, done)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/services",
        ServicePaths.services,
        "observe",
        query=("prefix", *QUERY),
        codes=(42202,),
        returns=list[replies.ServiceSummary],
    ),
    Endpoint(
        "GET",
        "/api/v1/dead-letters",
        ServicePaths.dead_letters,
        "admin",
        query=("address", "limit"),
        codes=(42202,),
        returns=replies.DeadLetterList,
    ),
    Endpoint(
        "POST",
        "/api/v1/dead-letters/resend",
        ServicePaths.resend,
        "admin",
        writes=True,
        body=ResendBody,
        codes=(422,),
        returns=Resent,
    ),
)
