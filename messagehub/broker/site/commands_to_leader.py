"""What this host asks of the hub that leads: commands and heartbeats of its clients, and its own reports.

Rule 1: what is sent goes to one leadership. When another one begins, what has no answer is refused as retryable; what
was not sent goes there.
Rule 2: the reply is made that of this hub, which the client talks to: rights, audit, its own id.
"""

from collections.abc import Callable
from time import monotonic

from messagehub import protocol
from messagehub.broker.answers import Answer
from messagehub.broker.parts import Parts
from messagehub.broker.request_queue import Request
from messagehub.broker.site.copied_leases import CopiedLeases
from messagehub.broker.site.forwarding import MOST_WAITING, Forwarded, ForwardedRequests, OnReply
from messagehub.broker.site.heartbeats import GatheredHeartbeats
from messagehub.broker.site.link import Answered, HubPath, Kind, SiteLink
from messagehub.errors import HubError, RateLimited, StoreReadOnly
from registry import commands, replies
from registry.registry import Registry

AGAIN_SECONDS = 0.05
CHANGES_OF_SERVICES = (commands.RegisterWorker, commands.UnregisterWorker, commands.RemovePool)


class CommandsToLeader:
    def __init__(
        self,
        link: SiteLink,
        parts: Parts,
        *,
        copied_leases: Callable[[], CopiedLeases],
        heartbeat_seconds: Callable[[], float],
        settle: Callable[[replies.TopicRetained], None],
        on_missing_report: Callable[[], None],
    ) -> None:
        """`settle` completes the reply that makes a retained topic. `on_missing_report`: the leader may not have heard
        of something on this host."""
        self._link, self._parts = link, parts
        self._copied_leases, self._settle, self._on_missing_report = copied_leases, settle, on_missing_report
        self._heartbeat_seconds = heartbeat_seconds
        self._forwarded = ForwardedRequests()
        self._heartbeats = GatheredHeartbeats()
        self._send_again_at: float | None = None
        """When to send what a hub that does not lead has sent back."""
        self.is_following = True
        self.leadership: int | None = None
        """The one that is seen now; None: nobody leads."""

    def __len__(self) -> int:
        return len(self._forwarded)

    @property
    def count(self) -> int:
        return self._forwarded.count

    # -- sending -------------------------------------------------------------------------------------------

    def forward(self, request: Request, registry: Registry, now: float) -> Answer | None:  # noqa: ARG002  one signature
        path, command = request[:2]
        if isinstance(path, HubPath):
            self._link.answer(path, "not_leader", 0, b"")
            return None
        if outdated := self._link.outdated():
            raise StoreReadOnly(f"{outdated}. Reads go on, with what it had", site=self._link.site)
        if len(self._forwarded) >= MOST_WAITING:
            raise RateLimited("too many commands wait for the hub that leads the site: try again in a moment")
        access_control = self._parts.access_control
        user = access_control.sender(path) if access_control is not None else ""
        # One that says how full mailboxes are goes alone: those that are gathered name their leases only.
        lease = command.lease if isinstance(command, commands.Heartbeat) and not command.mailboxes else ""
        kind: Kind = "heartbeats" if lease else "command"
        body = b"" if lease else protocol.encode(command)
        self._send(self._forwarded.add(kind, body, user=user, request=request, lease=lease))
        return None

    def ask(self, command: commands.AnyCommand, on_reply: OnReply) -> None:
        """Ask something for this hub itself."""
        self._send(self._forwarded.add("command", protocol.encode(command), user="host", on_reply=on_reply))

    def report(self, report: bytes) -> None:
        """Tell what was seen on this host."""
        if self.leadership is None:
            self._on_missing_report()
        else:
            self._send(self._forwarded.add("report", report, user="", on_reply=self._reported))

    def _send(self, waiting: Forwarded) -> None:
        if self.leadership is None or not self.is_following:
            return  # sent when a leader is seen
        waiting.sent_to = self.leadership
        if waiting.kind == "heartbeats":
            self._heartbeats.add(waiting, interval_seconds=self._heartbeat_seconds())
            return
        self._link.send(waiting.number, waiting.kind, waiting.body, user=waiting.user, leadership=self.leadership)

    def follow(self, leadership: int | None) -> None:
        """Another leadership is seen, or none."""
        self.leadership = leadership
        self._heartbeats = GatheredHeartbeats()  # those that were gathered for the other one are answered next
        for waiting in self._forwarded.of_others(leadership):
            self._refuse(
                waiting, "the hub that led the site is gone, and whether it carried the command out is unknown"
            )
        if leadership is not None:
            for waiting in self._forwarded.unsent():
                self._send(waiting)

    def maintain(self) -> float:
        """Send and refuse what is due, and return the seconds until there may be more to do."""
        for waiting in self._forwarded.overdue():
            self._refuse(waiting, self._why_late(waiting))
        if self._send_again_at is not None and monotonic() >= self._send_again_at:
            self._send_again_at = None
            for waiting in self._forwarded.unsent():
                self._send(waiting)
        while (gathered := self._heartbeats.take()) is not None:
            first, body = gathered
            if first.sent_to is not None and first.sent_to == self.leadership:
                self._link.send(first.number, first.kind, body, user="", leadership=first.sent_to)
        due = self._forwarded.seconds_to_deadline(), self._heartbeats.seconds_to_send()
        return min(due) if self._send_again_at is None else min(*due, max(self._send_again_at - monotonic(), 0.0))

    # -- replies -------------------------------------------------------------------------------------------

    def answered(self, answer: Answered) -> None:
        if self._forwarded.answered(answer) is not None:
            self._send_again_at = monotonic() + AGAIN_SECONDS  # it is about to lead, or does not any more

    def hand_on(self, revision: int) -> None:
        """Answer whoever waits for what the copy has by now."""
        for waiting, answer in self._forwarded.reached(revision):
            if waiting.kind == "report":
                self._reported(replies.Reply())
                continue
            reply: replies.Reply
            try:
                reply = protocol.decode_reply(answer.payload)
            except HubError as error:
                reply = protocol.error_reply(error)
            self._answer(waiting, reply, answer.payload)

    def take_over(self) -> None:
        """This hub leads: let it decide what was not sent to another one."""
        for waiting in self._forwarded.take_unsent():
            if waiting.request is not None:
                self._parts.requests.put_back(waiting.request)
            elif waiting.on_reply is not None:
                waiting.on_reply(None)

    def end(self) -> None:
        """Answer what is waiting, since the hub stops."""
        for waiting in self._forwarded.take_all():
            self._refuse(waiting, "this hub stops, and whether the command was carried out is not known")

    def _reported(self, reply: replies.Reply | None) -> None:
        if reply is None:
            self._on_missing_report()

    def _refuse(self, waiting: Forwarded, why: str) -> None:
        """Refuse as retryable; but a heartbeat of somebody who is registered is no news, and the next leader begins
        all leases anew."""
        command = waiting.request[1] if waiting.request is not None else None
        if isinstance(command, commands.Heartbeat) and command.lease in self._copied_leases():
            self._answer(waiting, replies.HeartbeatAck(known=True, notices=[]), None)
            return
        self._answer(waiting, protocol.error_reply(StoreReadOnly(f"{why}: try again", site=self._link.site)), None)

    def _why_late(self, waiting: Forwarded) -> str:
        if waiting.sent_to is None:
            return "no hub leads the site at the moment, so the command was not carried out; reads go on"
        if waiting.answer is None:
            return "the hub that leads the site does not answer, and whether the command was carried out is not known"
        return "the command was carried out, but the copy of this hub does not reach it"

    def _answer(self, waiting: Forwarded, reply: replies.Reply, payload: bytes | None) -> None:
        if waiting.request is None:
            is_refused_here = payload is None
            if waiting.on_reply is not None:
                waiting.on_reply(None if is_refused_here else reply)
            return
        path, command, received_at, _ = waiting.request
        access_control = self._parts.access_control
        if isinstance(reply, replies.HeartbeatAck):
            reply.broker_id = self._parts.broker_id  # clients compare it with the id of the hub that they talk to
            reply.access = self._parts.access_version.current()
            payload = None
        if access_control is not None:
            access_control.answered(path, command, reply)
        if isinstance(reply, replies.TopicRetained):
            self._settle(reply)
            payload = None
        is_change = (command.writes or isinstance(command, CHANGES_OF_SERVICES)) and not isinstance(
            reply, replies.Error
        )
        sent = payload if payload is not None else protocol.encode_reply(reply, command.id)
        self._parts.requests.reply(path, command, received_at, reply, sent, is_change=is_change)
