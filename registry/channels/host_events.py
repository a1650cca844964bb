"""What the broker sees on its own host: processes that ended, tables that are gone, clashes.

Rule 1: what is seen overrules silence: a process that is seen to live keeps its lease, one that is seen dead loses it
at once.
Rule 2: a clash is shown, never resolved: nothing that lives is removed because of it.
"""

from collections.abc import Iterable

from registry import events, names
from registry.channels.leases import Member
from registry.channels.members import Members, members_of
from registry.event_log import EventLog
from registry.records import Consumer, Producer, Worker


class HostEvents:
    def __init__(self, log: EventLog, members: Members) -> None:
        self._log = log
        self._members = members

    def died(self, members: Iterable[Member], *, now: float) -> list[events.AnyEvent]:
        """End members whose process is gone. Those that are not registered any more are passed over."""
        return self._ended(members, "died", now)

    def let_go(self, members: Iterable[Member], *, now: float) -> list[events.AnyEvent]:
        """End members that their living process has closed without telling us."""
        return self._ended(members, "released", now)

    def host_lost(self, host: str, *, now: float) -> list[events.AnyEvent]:
        """End the members of a host of which nothing has been heard for the term of its lease."""
        lost = [
            member
            for channel in self._log.channels.values()
            for member, record in members_of(channel)
            if record.host == host
        ]
        services = self._members.services
        lost += [Member("worker", each.address, each.worker_id) for each in services.workers() if each.host == host]
        return self._ended(lost, "host_lost", now)

    def end_reported(
        self, ended: Iterable[tuple[Member, str]], reason: events.Reason, *, now: float
    ) -> list[events.AnyEvent]:
        """End members that the hub of another host has seen to end, unless they have come back under another lease."""
        for member, lease in ended:
            record: Producer | Consumer | Worker | None
            if member.kind == "worker":
                record = self._members.services.get(member.member_id)
            else:
                channel = self._log.channels.get(member.channel)
                record = dict(members_of(channel)).get(member) if channel is not None else None
            if record is not None and record.lease == lease:
                self._members.end(member, reason, now)
        return self._log.take()

    def _ended(self, members: Iterable[Member], reason: events.Reason, now: float) -> list[events.AnyEvent]:
        for member in members:
            self._members.end(member, reason, now)
        return self._log.take()

    def show_conflict(self, channel: str, reason: str | None, *, now: float) -> list[events.AnyEvent]:
        """Show a conflict of a channel. `reason` says what clashes; None ends it."""
        record = self._log.channels.get(channel)
        if reason == (record.conflict if record else None):
            return []
        emit_seen(self._log, events.ChannelConflicted(channel=channel, reason=reason), now)
        return self._log.take()

    def table_gone(self, channel: str, *, now: float) -> list[events.AnyEvent]:
        """Remove the table of a channel whose last generation was retired or removed."""
        record = self._log.channels.get(channel)
        if record is None or record.table is None:
            return []
        emit_seen(self._log, events.TableCommitted(channel=channel, table=None), now)
        return self._log.take()

    def end_empty(self, *, now: float) -> list[events.AnyEvent]:
        """End channels that were stored although nothing of them is left, after a restart."""
        for name in list(self._log.channels):
            self._log.end_if_empty(name, now)
        return self._log.take()


def emit_seen(log: EventLog, event: events.ChannelConflicted | events.TableCommitted, now: float) -> None:
    """Emit an event about a channel that comes and goes with what is seen of it."""
    name = names.check_channel(event.channel)
    log.create_if_missing(name, now)
    log.emit(event, now)
    log.end_if_empty(name, now)
