"""Authentication and rights of HTTP callers, by the same table as the broker's.

Rule 1: a token that is given must be one that is listed; without one a caller is anonymous, with the rights that the
hub gives to those.
Rule 2: the operation is checked before anything is read of it, each command that it asks before it is asked.
Rule 3: who gives no token has rights because of where they are. So a browser that some web page sends here, by a name
of its own for this host or from another origin, has none, and neither has who comes through a proxy.
"""

import base64
import logging
import re
import time
from collections import deque
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

from starlette.types import Scope

from messagehub.admin.errors import HttpError
from messagehub.admin.forwarding import FORWARDED
from messagehub.errors import Forbidden, HubError, RateLimited, is_not_found
from messagehub.runtime.logs import LimitedLog, reason
from messagehub.security.audit import REFUSALS_PER_SECOND, AuditLog
from messagehub.security.credentials import AccessFile, ListedCredential, OwnerToken
from messagehub.security.known_tokens import KnownTokens
from messagehub.security.rate_limits import TokenBuckets
from messagehub.setting_checks import is_loopback
from registry import access, commands, replies
from registry.access import ADMIN, NOTHING, Rights, Role

_MISSING = (
    "this needs a token (http.token in the hub's directory, or one of `messagehub tokens`),"
    " as Bearer token or Basic password"
)
_WRONG = (
    "the token that was sent is not known: it is neither the one in http.token of the hub's directory nor one of"
    " `messagehub tokens`, or it was revoked"
)
_LIMITS = ("RATE_LIMITED", "TOO_MANY_SUBSCRIPTIONS", "42209", "42901", "408")
ANONYMOUS = "anonymous"
NOTED_SECONDS = 1.0
"""A refusal that is repeated is noted once in this time."""
MAX_NOTED = 200
MOST_CHANGES = 2_000
"""So many changes over HTTP are remembered, for traces."""
_CHALLENGE = {"www-authenticate": 'Basic realm="messagehub"'}


class Caller(NamedTuple):
    name: str
    rights: Rights
    request_id: str
    address: str = ""
    listed: ListedCredential | None = None
    """The token's entry as it was."""
    began: float | None = None
    """When its request came, by the monotonic clock."""

    @property
    def peer(self) -> str:
        """The name or address that limits are counted by."""
        return self.address if self.name == ANONYMOUS else self.name


log_of_refusals = LimitedLog(logging.getLogger("messagehub.http"), "refusals")
caller: ContextVar[Caller] = ContextVar("caller")
counters = dict.fromkeys(
    ("http_unauthorized", "http_forbidden", "http_rate_limited", "http_open_bodies", "http_slow_bodies"), 0
) | dict.fromkeys(
    (
        "http_event_streams",
        "http_slow_headers",
        "http_slow_readers",
        "http_large_bodies",
        "http_large_requests",
        "http_connections",
        "http_malformed",
        "http_audit_skipped",
    ),
    0,
)
"""What this process refused, by reason."""


class HttpAuthentication:
    def __init__(
        self,
        file: AccessFile,
        *,
        token: OwnerToken | None,
        anonymous: Rights,
        origins: str = "",
        requests_per_second: float = 0.0,
        audit: AuditLog | None = None,
    ) -> None:
        """`token` is that of whoever runs the hub; None lets everybody do everything. `origins` are as `http_cors`."""
        self._origins = origins.split()
        self.anonymous = anonymous if token is not None else ADMIN
        self._own = token
        self._tokens = KnownTokens(file, token)
        self._buckets = TokenBuckets(requests_per_second)
        self._audit = audit
        self._refusals = TokenBuckets(REFUSALS_PER_SECOND)
        self._changes: deque[dict[str, Any]] = deque(maxlen=MOST_CHANGES)
        self._noted_at: dict[tuple[str, str], float] = {}

    def enter(self, scope: Scope, role: Role | None, *, is_probe: bool = False) -> Caller:
        """Return who calls, if they may call an operation that takes this role. A request is counted once. Probes are
        counted apart, because an orchestrator restarts a hub whose probes fail."""
        found: Caller = scope.get("caller") or self._counted(scope, "probe:" if is_probe else "")
        if role is not None and not found.rights.has(role):
            if found.name == ANONYMOUS:
                raise self._unauthorized(found, scope)
            raise self.forbidden(found, _asked(scope), Forbidden(f"this takes the right {role}", role=role))
        caller.set(found)
        return found

    def forbidden(self, who: Caller, what: str, error: Forbidden) -> Forbidden | HttpError:
        """Count and note a refusal, and return it. A caller that gave no token is asked for one."""
        if who.name == ANONYMOUS:
            return self._unauthorized(who)
        counters["http_forbidden"] += 1
        self._note("refused", who, code=error.code, request=what, name=error.details.get("name"))
        return error

    @property
    def has_owner_token(self) -> bool:
        """Whether the token of whoever runs the hub is taken; without it everybody may do everything."""
        return self._own is not None

    def check(self, command: commands.Command) -> None:
        """Check a command before it is asked. A request by content can be checked by its answer only."""
        who = caller.get()
        if not isinstance(command, commands.RequestSchema) or not access.asks_by_content(command):
            self._check(who, command, [])

    def check_answer(self, command: commands.Command, reply: replies.AnyReply) -> None:
        """Check what only the answer tells, and take off a list what the caller may not see."""
        who = caller.get()
        access.leave_out(who.rights, command, reply)
        if isinstance(command, commands.RequestSchema) and isinstance(reply, replies.SchemaFound):
            if access.asks_by_content(command):
                self._check(who, command, [place.subject for place in reply.places])
        elif command.writes:
            request = str(command.__struct_config__.tag)
            self._note(
                "changed",
                who,
                request=request,
                name=access.about(command),
                member=access.member(command),
                correlation_id=command.id,
            )

    def check_events(self, prefix: str) -> None:
        """Check a stream of events: `channel/NAME/` is about one name, anything shorter about all that begin so."""
        who = caller.get()
        if not access.may_see(who.rights, prefix):
            raise self.forbidden(who, "events", Forbidden(f"this takes the right observe on {prefix[:200]!r}"))

    def is_current(self, who: Caller) -> bool:
        """Whether a caller whose answer goes on and on may still do what it might at the beginning."""
        return who.listed is None or self._tokens.is_current(who.name, who.listed)

    def _check(self, who: Caller, command: commands.Command, places: list[str]) -> None:
        try:
            access.check(who.rights, command, places=places)
        except Forbidden as error:
            raise self.forbidden(who, str(command.__struct_config__.tag), error) from None

    def refused(self, scope: Scope, error: HttpError | HubError, *, writes: bool) -> None:
        """Note what was refused of a write or by a limit; rights were noted where they were missing.

        The log has every refusal; that nothing was found is an answer.
        """
        code = error.code if isinstance(error, HubError) else str(error.error_code)
        who: Caller | None = scope.get("caller")
        if not is_not_found(code) and not code.startswith("404"):
            sender = f"{who.name}, {who.address}" if who is not None else "somebody unknown"
            log_of_refusals.info(
                "refused %s of %s, id %s: %s: %s",
                _asked(scope),
                sender,
                scope["request_id"],
                code,
                reason(code, str(error)),
            )
        if who is None or code in ("FORBIDDEN", "40101") or not (writes or code in _LIMITS):
            return
        if code in _LIMITS:
            if time.monotonic() < self._noted_at.get((who.name, code), 0.0):
                return
            self._noted_at[who.name, code] = time.monotonic() + NOTED_SECONDS
        self._note("refused", who, code=code, request=_asked(scope))

    def note_change(self, request: str, name: str | None = None) -> None:
        self._note("changed", caller.get(), request=request, name=name)

    def _counted(self, scope: Scope, kind: str) -> Caller:
        """Return the caller, if it is known and not too fast. Who guesses tokens uses up nobody else's requests."""
        found, is_known = self._identify(scope)
        scope["caller"] = found
        if not self._buckets.take(kind + (found.peer if is_known else f"guess:{found.address}"), time.monotonic()):
            counters["http_rate_limited"] += 1
            raise RateLimited(f"more than {self._buckets.rate:g} requests a second come from this caller")
        if not is_known:
            raise self._unauthorized(found, scope, _WRONG)
        return found

    def _identify(self, scope: Scope) -> tuple[Caller, bool]:
        """Return who calls, and whether the token, if one was given, is valid."""
        given = dict(scope["headers"])
        address = scope["client"][0] if scope.get("client") else ""
        is_forwarded = scope.get(FORWARDED, False)
        is_elsewhere = is_forwarded or self._is_sent_by_a_page(scope["scheme"], given)
        rights = NOTHING if is_elsewhere else self.anonymous
        who = Caller(ANONYMOUS, rights, scope.get("request_id", ""), address, began=time.monotonic())
        token = _token(given)
        if token is None or (self._own is None and not is_forwarded):
            return who, True
        found = self._tokens.holder(token)
        if found is None:
            return who, False
        return who._replace(name=found.name, rights=found.rights, listed=found.listed), True

    def _is_sent_by_a_page(self, scheme: str, headers: dict[bytes, bytes]) -> bool:
        """Return whether a page of another site sends it: browsers name the page's origin and the host."""
        host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin")
        if scheme == "http" and host and not _is_of_loopback(host):
            return True  # plain HTTP is served on loopback only, so the name is somebody's for this host
        if origin is None or (site := origin.decode("latin-1")) == f"{scheme}://{host}":
            return False
        return site not in self._origins and "*" not in self._origins

    def _unauthorized(self, who: Caller, scope: Scope | None = None, why: str = _MISSING) -> HttpError:
        counters["http_unauthorized"] += 1
        reason = "unknown token" if why is _WRONG else "no token"
        self._note("refused", who, code="UNAUTHORIZED", request=_asked(scope) if scope else None, reason=reason)
        return HttpError(401, 40101, why, _CHALLENGE)

    def _note(self, event: str, who: Caller, **what: Any) -> None:
        if event == "refused" and not self._refusals.take(who.peer, time.monotonic()):
            counters["http_audit_skipped"] += 1
            return
        if event == "changed":
            self._changes.append(_exchange(who, what))
        if self._audit is not None:
            self._audit.write(event, who.name, request_id=who.request_id, address=who.address, **what)

    def changes(self, request_id: str | None) -> list[dict[str, Any]]:
        """Return the newest changes that were made over HTTP, oldest first: all, or those of one request.

        `led_to` is the correlation id under which the broker knows it. Either id finds it.
        """
        return [one for one in self._changes if request_id in (None, one["correlation_id"], one["led_to"])]


def _exchange(who: Caller, what: dict[str, Any]) -> dict[str, Any]:
    """Return how a change appears in traces: from the arrival of its request until it was made."""
    seconds = time.monotonic() - who.began if who.began is not None else 0.0
    return {
        "side": "http",
        "at": time.time() - seconds,
        "correlation_id": who.request_id,
        "led_to": what.get("correlation_id"),
        "request": what["request"],
        "name": what.get("name"),
        "answer": "ok",
        "seconds": round(seconds, 7),
        "peer": who.name,
    }


@lru_cache(maxsize=64)
def _is_of_loopback(host: str) -> bool:
    return is_loopback(re.sub(r":\d*\Z", "", host))


def _asked(scope: Scope) -> str:
    """Return method and path for the log; never the query, in which somebody may have put a token."""
    return f"{scope['method']} {scope['path'][:MAX_NOTED]}"


def _token(headers: dict[bytes, bytes]) -> str | None:
    """Return the token: Bearer, or the password of HTTP Basic, which registry clients send; never from the URL."""
    header = headers.get(b"authorization")
    if header is None:
        return None
    scheme, _, given = header.decode("latin-1").partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except ValueError:
            given = ""
    return given.strip()
