"""Services under /api/v1/services: who serves what, to look at."""

from typing import Annotated

import msgspec
from fastapi import Depends
from starlette.concurrency import run_in_threadpool

from messagehub.admin.api.listing import listed
from messagehub.admin.api.parameters import MAX_NAME, Limit, NotGiven
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.endpoints import HandlerResult
from messagehub.admin.routes import JsonBody, Operations
from messagehub.services.resending import Resent
from registry import commands, replies

operations = Operations()


class ResendBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters to send again: all, those to one address, some by their numbers; until `limit` were sent."""

    address: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    numbers: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1, max_length=1000)] | None = (
        None
    )
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None


@operations.add("GET", "/api/v1/services", "observe", codes=(42202,))
async def services(
    backend: BrokerClient, prefix: str = "", after: str = "", limit: Limit | NotGiven = None
) -> HandlerResult[list[replies.ServiceSummary]]:
    """Addresses that are served, and by whom."""

    async def ask(after: str, limit: int) -> tuple[list[replies.ServiceSummary], str | None]:
        command = commands.ListServices(prefix=prefix, after=after, limit=limit)
        page = await backend.ask(command, replies.ServiceList)
        return page.services, page.next

    return await listed(ask, lambda one: one.address, after, limit)


@operations.add("GET", "/api/v1/dead-letters", "admin", codes=(42202,))
async def dead_letters(backend: BrokerClient, address: str = "", limit: Limit = 100) -> replies.DeadLetterList:
    """Messages that could not be delivered, the newest last; payloads in base64."""
    command = commands.ListDeadLetters(address=address[:MAX_NAME] or None, limit=limit)
    return await backend.ask(command, replies.DeadLetterList)


@operations.add("POST", "/api/v1/dead-letters/resend", "admin", writes=True, codes=(422,))
async def resend(backend: BrokerClient, body: Annotated[ResendBody, Depends(JsonBody(ResendBody))]) -> Resent:
    """Send dead letters again, oldest first, and forget those that were sent."""
    backend.callers.check(commands.ListDeadLetters(address=body.address))
    sent = await run_in_threadpool(
        backend.hub.resend_dead_letters, body.address, numbers=body.numbers, limit=body.limit
    )
    backend.callers.note_change("DEAD_LETTER_RESEND", body.address)
    return sent
