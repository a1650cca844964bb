"""What a hub sees of its own host, told to the leader of its site; and applied at once where the hub leads itself.

Rule 1: `HostWatcher` is given one of these instead of the registry, and cannot tell the difference: it reads the copy,
and what it decides becomes a request to the leader.
Rule 2: a report names the lease of each member that ended: one that has come back since is not ended by it.
Rule 3: nothing is told twice while the answer is awaited. What the leader refused is asked again after a while.
Rule 4: the leader hears whose process lives, so that a process that is silent and alive keeps its members everywhere.
Rule 5: a conflict begins with the name of the host that sees it, and only that host ends it.
"""

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct, field

from messagehub import protocol
from messagehub.errors import HubError, from_wire
from registry import commands, events, replies
from registry.channels.leases import Leases, Member
from registry.channels.members import members_of
from registry.decoding import decodable
from registry.errors import Refusal
from registry.records import Channel
from registry.registry import Outcome, Registry
from registry.schemas.checks import CheckResult, SchemaCheck
from registry.services.workers import ServiceDecisions
from registry.topics.subscribers import Subscribers

ASK_AGAIN_SECONDS = 5.0
MOST_REPORTED = 2_000
"""How many of a kind one report has: with names of any length it is well below what a message may have."""


@decodable
class HostReport(Struct, kw_only=True):
    """What the hub of a host has seen there."""

    host: str
    died: list[tuple[Member, str]] = field(default_factory=list)
    """Members whose process is gone, and their leases."""
    released: list[tuple[Member, str]] = field(default_factory=list)
    """Members that their process has closed without telling anybody."""
    expired: list[str] = field(default_factory=list)
    """Leases of peers that have lost their rights."""
    conflicts: dict[str, str | None] = field(default_factory=dict)
    """By channel: what clashes on this host; None: nothing any more."""
    tables_gone: list[str] = field(default_factory=list)
    """Channels whose table was on this host."""
    held: dict[str, bool] = field(default_factory=dict)
    """Leases whose process this host's hub sees to live, so that silence does not end them; False: not any more."""
    unclaimed: list[str] = field(default_factory=list)
    """Those of them that the hub found when it began, and has not heard of since."""

    def take(self) -> "HostReport | None":
        """Take as much of it as fits into one message; None if there is nothing."""
        if self.is_empty:
            return None
        taken = HostReport(host=self.host)
        for name in ("died", "released", "expired", "tables_gone", "unclaimed"):
            reported = getattr(self, name)
            setattr(taken, name, reported[:MOST_REPORTED])
            del reported[:MOST_REPORTED]
        for name in ("conflicts", "held"):
            reported = getattr(self, name)
            setattr(taken, name, {key: reported.pop(key) for key in list(reported)[:MOST_REPORTED]})
        return taken

    @property
    def is_empty(self) -> bool:
        seen = self.died or self.released or self.expired or self.conflicts or self.tables_gone or self.held
        return not (seen or self.unclaimed)


_report_decoder: msgspec.json.Decoder[HostReport] = msgspec.json.Decoder(HostReport)


def apply_report(body: bytes, registry: Registry, *, now: float) -> list[events.AnyEvent]:
    """Apply what another hub has seen of its host. Raise msgspec.DecodeError for what is no report."""
    report = _report_decoder.decode(body)
    seen = registry.host_events
    happened = seen.end_reported(report.died, "died", now=now)
    happened += seen.end_reported(report.released, "released", now=now)
    happened += registry.end_leases(report.expired, now=now)
    for lease, is_held in report.held.items():
        registry.leases.hold(lease, is_held=is_held)
    for lease in report.unclaimed:
        registry.leases.unclaim(lease, now=now)
    for channel, reason in report.conflicts.items():
        happened += seen.show_conflict(channel, reason, now=now)
    for channel in report.tables_gone:
        record = registry.channels.get(channel)
        if record is not None and record.table is not None and record.table.host == report.host:
            happened += seen.table_gone(channel, now=now)
    return happened


class _Adoption(Struct):
    """A registration from the directory that the leader was asked for."""

    body: bytes
    refused: Refusal | None = None
    ask_again_at: float = 0.0


AskLeader = Callable[[commands.AnyCommand, Callable[[replies.Reply | None], None]], None]


class OwnHost:
    """The registry as the host watcher of a member sees it."""

    def __init__(self, registry: Callable[[], Registry], host: str, ask: AskLeader) -> None:
        """`ask` has the leader carry out a command, and calls back with its reply, or None if there is none."""
        self.is_leading = False
        self._registry = registry
        self._prefix = f"{host}: "
        self._host = host
        self._ask = ask
        self._report = HostReport(host=host)
        self._adoptions: dict[tuple[str, str], _Adoption] = {}
        self._unheard = {
            record.lease
            for channel in registry().channels.values()
            for _, record in members_of(channel)
            if record.host == host
        } | {worker.lease for worker in registry().services.workers() if worker.host == host}
        """The leases of this host that were there before this hub, and that it has not heard of since."""

    def take_report(self) -> bytes | None:
        """Return what was seen since the last call."""
        report = self._report.take()
        return msgspec.json.encode(report) if report is not None else None

    def forget(self) -> None:
        """Ask for everything again: the leader is another one."""
        self._report = HostReport(host=self._host)
        self._adoptions.clear()

    def heard(self, lease_id: str) -> None:
        """Note that the process of a lease has spoken to this hub."""
        self._unheard.discard(lease_id)

    # -- what the host watcher reads -----------------------------------------------------------------------

    @property
    def channels(self) -> dict[str, Channel]:
        return self._registry().channels

    @property
    def revision(self) -> int:
        return self._registry().revision

    @property
    def leases(self) -> "Leases | OwnHost":
        """What is told whose process lives."""
        return self._registry().leases if self.is_leading else self

    @property
    def services(self) -> ServiceDecisions:
        return self._registry().services

    @property
    def subscribers(self) -> Subscribers:
        return self._registry().subscribers

    @property
    def host_events(self) -> "OwnHost":
        return self

    def needed_check(self, command: commands.Command) -> SchemaCheck | None:
        """Return None while another hub leads, which checks the schema itself."""
        return self._registry().needed_check(command) if self.is_leading else None

    # -- what it decides -----------------------------------------------------------------------------------

    def apply(self, command: Any, *, now: float, result: CheckResult | None = None) -> Outcome:
        if self.is_leading:
            return self._registry().apply(command, now=now, result=result)
        key = (command.channel, getattr(command, "producer_id", None) or "")
        body = protocol.encode(command)
        known = self._adoptions.get(key)
        if known is not None and known.body == body and not 0 < known.ask_again_at <= monotonic():
            if known.refused is not None:
                raise known.refused
            return _NOTHING
        self._adoptions[key] = asked = _Adoption(body)
        self._ask(command, lambda reply: self._adopted(key, asked, reply))
        if known is not None and known.refused is not None:
            raise known.refused  # until the leader says otherwise
        return _NOTHING

    def _adopted(self, key: tuple[str, str], asked: _Adoption, reply: replies.Reply | None) -> None:
        if self._adoptions.get(key) is not asked:
            return
        error: HubError | None = None
        if isinstance(reply, replies.Error):
            error = from_wire(reply.code, reply.message, reply.details, retryable=reply.retryable)
        if isinstance(error, Refusal):
            asked.refused, asked.ask_again_at = error, monotonic() + ASK_AGAIN_SECONDS
        else:
            del self._adoptions[key]

    def hold(self, lease_id: str, *, is_held: bool) -> None:
        self._registry().leases.hold(lease_id, is_held=is_held)  # of subscribers
        self._report.held[lease_id] = is_held
        if is_held and lease_id in self._unheard:
            self._report.unclaimed.append(lease_id)

    def died(self, members: Iterable[Member], *, now: float) -> list[events.AnyEvent]:
        if self.is_leading:
            return self._registry().host_events.died(members, now=now)
        self._report.died += self._with_leases(members, now)
        return []

    def let_go(self, members: Iterable[Member], *, now: float) -> list[events.AnyEvent]:
        if self.is_leading:
            return self._registry().host_events.let_go(members, now=now)
        self._report.released += self._with_leases(members, now)
        return []

    def end_leases(self, lease_ids: Iterable[str], *, now: float) -> list[events.AnyEvent]:
        """End what peers that have lost their rights had registered, also what only this hub knows of."""
        leases = list(lease_ids)
        if not self.is_leading:
            self._report.expired += leases
        return self._registry().end_leases(leases, now=now)

    def show_conflict(self, channel: str, reason: str | None, *, now: float) -> list[events.AnyEvent]:
        record = self.channels.get(channel)
        shown = record.conflict if record is not None else None
        said = None if reason is None else self._prefix + reason
        if said == shown or (said is None and not (shown or "").startswith(self._prefix)):
            return []
        if self.is_leading:
            return self._registry().host_events.show_conflict(channel, said, now=now)
        self._report.conflicts[channel] = said
        return []

    def table_gone(self, channel: str, *, now: float) -> list[events.AnyEvent]:
        if self.is_leading:
            return self._registry().host_events.table_gone(channel, now=now)
        if channel not in self._report.tables_gone:
            self._report.tables_gone.append(channel)
        return []

    def end_empty(self, *, now: float) -> list[events.AnyEvent]:
        return self._registry().host_events.end_empty(now=now) if self.is_leading else []

    def _with_leases(self, members: Iterable[Member], now: float) -> list[tuple[Member, str]]:
        """Return members that the site knows of, with their leases; end those that only this hub knows of."""
        registry = self._registry()
        found: list[tuple[Member, str]] = []
        unstored: list[Member] = []
        for member in members:
            if member.kind == "subscriber":
                unstored.append(member)
            elif member.kind == "worker":
                worker = registry.services.get(member.member_id)
                found += [(member, worker.lease)] if worker is not None else []
            elif (channel := registry.channels.get(member.channel)) is not None:
                record = dict(members_of(channel)).get(member)
                found += [(member, record.lease)] if record is not None else []
        registry.host_events.died(unstored, now=now)
        return found


_NOTHING = Outcome(replies.Reply(), [])
