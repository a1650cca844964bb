"""Services under /api/v1/services: who serves what, to look at."""

from starlette.requests import Request
from starlette.responses import Response

from messagehub.admin import parameters
from messagehub.admin.backend import Backend
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import answer
from registry import commands, replies


class ServicePaths:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def services(self, request: Request) -> Response:
        """Addresses that are served, and by whom."""
        found: list[replies.ServiceSummary] = []
        after: str | None = ""
        while after is not None:
            command = commands.ListServices(prefix=request.query_params.get("prefix", "")[:200], after=after)
            page = await self._backend.ask(command, replies.ServiceList)
            found += page.services
            after = page.next
        return answer(200, found)

    async def dead_letters(self, request: Request) -> Response:
        """Messages that could not be delivered, the newest last; payloads in base64."""
        address = request.query_params.get("address")
        limit = parameters.bounded(request, "limit", 100, 10_000)
        command = commands.ListDeadLetters(address=address and address[:300], limit=limit)
        return answer(200, await self._backend.ask(command, replies.DeadLetterList))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/services",
        ServicePaths.services,
        "observe",
        query=("prefix",),
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
)
