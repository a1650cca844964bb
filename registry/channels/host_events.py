"""What the broker sees with its own eyes on its host: processes that ended, tables, clashes.

Rule 1: sight overrules silence: a process that is seen to live keeps its lease, one that is seen dead loses it at once.
Rule 2: a clash is shown, never settled: nothing that lives is removed because of it.
"""

from collections.abc import Iterable

from registry import events, names
from registry.channels.leases import Member
from registry.event_log import EventLog
from registry.records import Channel


class HostEvents(EventLog):
    def died(self, members: Iterable[Member], *, now: float) -> list[events.AnyEvent]:
        """Their process is gone. Who is not registered any more is passed over."""
        return self._ended(members, "died", now)

    def let_go(self, members: Iterable[Member], *, now: float) -> list[events.AnyEvent]:
        """Their process lives, and has ended them without a word to us."""
        return self._ended(members, "released", now)

    def _ended(self, members: Iterable[Member], reason: events.Reason, now: float) -> list[events.AnyEvent]:
        for member in members:
            unstored = self._unstored(member)
            if unstored is not None:
                unstored.ended(member.member_id, now)
                continue
            channel = self.channels.get(member.channel)
            if channel is not None and member.member_id in _of_kind(channel, member):
                self._remove(member, reason, now)
        return self._take_emitted()

    def show_conflict(self, channel: str, reason: str | None, *, now: float) -> list[events.AnyEvent]:
        """`reason` says what clashes; None ends it."""
        record = self.channels.get(channel)
        if reason == (record.conflict if record else None):
            return []
        self._emit_seen(events.ChannelConflicted(channel=channel, reason=reason), now)
        return self._take_emitted()

    def table_gone(self, channel: str, *, now: float) -> list[events.AnyEvent]:
        """The last generation of its table was retired or removed."""
        record = self.channels.get(channel)
        if record is None or record.table is None:
            return []
        self._emit_seen(events.TableCommitted(channel=channel, table=None), now)
        return self._take_emitted()

    def end_empty(self, *, now: float) -> list[events.AnyEvent]:
        """After a restart: channels that a store kept although nothing of them is left."""
        for name in [name for name, channel in self.channels.items() if channel.is_empty()]:
            self._emit(events.ChannelEnded(channel=name), now)
        return self._take_emitted()

    def _emit_seen(self, event: events.ChannelConflicted | events.TableCommitted, now: float) -> None:
        name = names.check_channel(event.channel)
        if name not in self.channels:
            record = Channel(name=name, created_at=now, revision=self.revision + 1)
            self._emit(events.ChannelCreated(channel=name, record=record), now)
        self._emit(event, now)
        if self.channels[name].is_empty():
            self._emit(events.ChannelEnded(channel=name), now)


def _of_kind(channel: Channel, member: Member) -> Iterable[str]:
    return channel.producers if member.kind == "producer" else channel.consumers
