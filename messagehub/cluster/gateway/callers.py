"""Who calls a gateway, and what they may read: tokens of this hub, and those that hubs of the site give to clients.

Rule 1: a call without a token that is known is refused before anything is read.
Rule 2: the right to consume a channel is checked before the first byte of it is sent. A stream ends when its token of
this hub is revoked or gets other rights, as those of HTTP do.
"""

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pyarrow import flight

from messagehub.errors import Forbidden, HubError, RateLimited, Unauthorized
from messagehub.flight.messages import PID_HEADER, error_bytes
from messagehub.security.audit import REFUSALS_PER_SECOND, AuditLog
from messagehub.security.gateway_tokens import CLOCKS_APART_SECONDS, PREFIX, TOKEN_SECONDS, claim_of
from messagehub.security.known_tokens import KnownTokens
from messagehub.security.rate_limits import TokenBuckets
from messagehub.shm.rings.reader_files import ReadsFor
from registry.access import Right, Rights, Role

MIDDLEWARE = "caller"
_PID = re.compile(r"[0-9]{1,10}")
_MISSING = (
    "this needs a token as `authorization: Bearer TOKEN`: the one in http.token of the hub's directory, or one of"
    " `messagehub tokens`"
)
_WRONG = "the token that was sent is not known, was revoked, or is over"
_WRONG_OF_SITE = (
    "the token that was sent is not for this host, or is over; it is if the clocks of the two hosts are more than"
    f" {(TOKEN_SECONDS + CLOCKS_APART_SECONDS) / 3600:g} hours apart: set them"
)


class GatewayCaller(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """One call, as its methods see it."""

    def __init__(
        self,
        name: str,
        rights: Rights,
        refusals: "Refusals",
        is_current: Callable[[], bool] = lambda: True,
        read_for: ReadsFor | None = None,
    ) -> None:
        """`is_current` tells whether the token is still what it was."""
        super().__init__()
        self.name = name
        self.read_for = read_for
        self.rights = rights
        self._refusals = refusals
        self._is_current = is_current

    def check_current(self) -> None:
        """Raise Unauthorized if the token of a call that goes on was revoked, or has other rights by now."""
        if not self._is_current():
            error = Unauthorized(_WRONG)
            self._refusals.note(self.name, error)
            raise error

    def check(self, channel: str, role: Role = "consume") -> None:
        """Raise Forbidden if the caller may not consume the channel, or has not the role that is named."""
        if not self.rights.allows(role, channel):
            error = Forbidden(f"this takes the right {role} on {channel!r}", role=role, name=channel)
            self._refusals.note(self.name, error, channel)
            raise error


class Refusals:
    def __init__(self, audit: AuditLog | None) -> None:
        self._audit = audit
        self._buckets = TokenBuckets(REFUSALS_PER_SECOND)

    def note(self, who: str, error: HubError, name: str | None = None) -> None:
        if self._audit is not None and self._buckets.take(who, time.monotonic()):
            self._audit.write("refused", who, code=error.code, request="FLIGHT", name=name)


class GatewayCallers(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(
        self, tokens: KnownTokens, *, secret: str, host: str, requests_per_second: float, audit: AuditLog | None
    ) -> None:
        """`secret` is what hubs of the site sign tokens for this host with."""
        super().__init__()
        self._tokens = tokens
        self._secret = secret
        self._host = host
        self._buckets = TokenBuckets(requests_per_second)
        self._refusals = Refusals(audit)

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> GatewayCaller:  # noqa: ARG002  Flight's signature
        try:
            found = self._caller(headers)
            if not self._buckets.take(found.name, time.monotonic()):
                raise RateLimited(f"more than {self._buckets.rate:g} calls a second come from this caller")
        except HubError as error:
            raise as_flight_error(error) from None
        return found

    def _caller(self, headers: dict[str, list[str]]) -> GatewayCaller:
        given = (headers.get("authorization") or [""])[0]
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise self._refused(_MISSING)
        if token.startswith(PREFIX):
            claim = claim_of(self._secret, token, host=self._host, now=time.time())
            if claim is not None:
                rights = Rights([Right.parse(f"{'produce' if claim.changes else 'consume'}:{claim.channel}")])
                pid = (headers.get(PID_HEADER.decode()) or [""])[0]
                read_for = ReadsFor(claim.user.partition(":")[0], int(pid) if _PID.fullmatch(pid) else 0)
                return GatewayCaller(claim.user, rights, self._refusals, read_for=read_for)
            raise self._refused(_WRONG_OF_SITE)
        if (holder := self._tokens.holder(token)) is not None:
            is_current = partial(self._tokens.is_current, holder.name, holder.listed)
            return GatewayCaller(holder.name, holder.rights, self._refusals, is_current)
        raise self._refused(_WRONG)

    def _refused(self, why: str) -> Unauthorized:
        error = Unauthorized(why)
        self._refusals.note("unknown", error)
        return error


def as_flight_error(error: HubError) -> flight.FlightError:
    """Return the error as Flight tells it: any client sees the text, ours gets the error itself."""
    kind = flight.FlightServerError
    if isinstance(error, Forbidden):
        kind = flight.FlightUnauthorizedError
    elif isinstance(error, Unauthorized):
        kind = flight.FlightUnauthenticatedError
    return kind(error.message, error_bytes(error))
