"""One hub of a site, in its loop: it leads, or follows the hub that does.

Rule 1: a follower decides nothing. It applies what the leader has written, answers every read from that, and forwards
commands and heartbeats. Subscribers and dead letters are the business of the hub of their host, whoever leads; what is
published to topics goes from hub to hub, and what is asked of services from process to process, past the leader.
Rule 2: a hub that is elected leads once its copy has reached what the leaders before it have written.
Rule 3: whatever goes wrong with the store of a leader ends its leadership. What waits is refused as retryable, and the
records are loaded anew; until then, reads that would show a change which may not be stored are refused.
Rule 4: what happens on this host is told to the leader. After a change of leaders, and whenever an answer is missing,
the host is looked at again as a whole, so that nothing is lost with a leader.
"""

import logging
from collections.abc import Callable
from time import monotonic
from typing import cast

import msgspec

from messagehub import protocol
from messagehub.broker.answers import Answer
from messagehub.broker.parts import Parts
from messagehub.broker.persistence.stored_registry import StoredRegistry
from messagehub.broker.request_queue import MAX_BACKLOG, Request
from messagehub.broker.site import link as site_link
from messagehub.broker.site.forwarding import MOST_WAITING, Forwarded, ForwardedRequests
from messagehub.broker.site.heartbeats import GatheredHeartbeats, renew
from messagehub.broker.site.home_topics import HomeTopics
from messagehub.broker.site.host_answers import HostAnswers
from messagehub.broker.site.host_reports import OwnHost, apply_report
from messagehub.broker.site.link import HubPath, SiteLink
from messagehub.broker.site.registry_copy import RegistryCopy
from messagehub.broker.site.site_problem import OLD_SECONDS, SiteProblem
from messagehub.broker.site.site_topics import AT_HOME, SiteTopics
from messagehub.errors import HubError, RateLimited, StoreReadOnly
from registry import commands, events, replies
from registry.channels.leases import Member
from registry.registry import Registry
from registry.services.workers import SERVICE_COMMANDS
from registry.topics.subscribers import SUBSCRIBER_COMMANDS

log = logging.getLogger("messagehub.site")

TELL_SECONDS = 1.0
AGAIN_SECONDS = 0.05
END_SECONDS = 1.0
_OF_THIS_HOST = {*AT_HOME, *SERVICE_COMMANDS, *SUBSCRIBER_COMMANDS}
_CHANGES_OF_SERVICES = (commands.RegisterWorker, commands.UnregisterWorker, commands.RemovePool)
FORWARDED: tuple[type[commands.Command], ...] = (
    *(kind for kind in protocol.COMMANDS_BY_TYPE.values() if kind.writes and kind not in _OF_THIS_HOST),
    *_CHANGES_OF_SERVICES,
)
_DONE = b""


class SiteMember:
    def __init__(self, link: SiteLink) -> None:
        self.role = "follower"
        self._link = link
        self._forwarded = ForwardedRequests()
        self._heartbeats = GatheredHeartbeats()
        self._leadership: int | None = None
        self._won: site_link.Won | None = None
        self._is_lost = False
        """Whether the leadership is over, though the store has not yet said what became of the last changes."""
        self._awaits_load = False
        self._must_look = True
        """Whether the leader has to hear of everything that is to be seen on this host."""
        self._tell_at = 0.0
        self._problem_shown = SiteProblem(link.site)
        self._send_again_at: float | None = None
        """When to send what a hub that does not lead has sent back."""
        self._own_leadership = 0
        self._hosts: site_link.HostsSeen | None = None

    def polls(self, fd: int) -> bool:
        """Return whether the loop was woken for `take`."""
        return self._link.polls(fd)

    @property
    def handlers(self) -> dict[int, Callable[[], None]]:
        """What to call when one of these descriptors is readable."""
        return {self._home.wake_fd: self._home.after_commit}

    def set_kept_limit(self, limit_bytes: int) -> None:
        """Have the retained topics of this host keep so many bytes at most."""
        self._link.set_kept_limit(limit_bytes)

    def join(self, parts: Parts, stored: StoredRegistry, look_at_host: Callable[[], None]) -> None:
        """Begin to follow. The registry is a copy already. `look_at_host` looks at this host as a whole."""
        self._parts, self._stored, self._look_at_host = parts, stored, look_at_host
        parts.host_watcher.tables_elsewhere = self._link
        self.own_host = OwnHost(lambda: stored.registry, self._link.host, self._ask_leader)
        self._copy = RegistryCopy(parts, stored, self.view)
        self._home = HomeTopics(parts, stored.settings, self._link.host)
        self._topics = topics = SiteTopics(self._link, parts, stored, self._home)
        parts.answers.replace(topics.answers())
        parts.answers.replace_usual(topics.deciding())
        self._follow()
        hosts = HostAnswers(self._link, parts.access_control, lambda: self.role)
        parts.answers.replace({commands.ListHosts: hosts.list, commands.RequestGateway: hosts.gateway})
        parts.stats.add(lambda: {"forwarded_commands": self._forwarded.count, "site_loads": self._copy.loads})
        parts.stats.add(topics.counters)
        parts.stats.add_gauges(self._gauges)
        parts.stats.add_gauges(topics.gauges)
        parts.stats.count_leases = self._lease_count
        parts.requests.answer_by(HubPath, self._answer_hub)
        self._link.poll_by(parts.polling)
        self._link.set_topics(parts.topics.hubs_endpoint, parts.topics.hubs_retained_endpoint)
        self._link.set_kept_limit(stored.settings.kept_limit_bytes)
        if parts.access_control is not None:
            parts.access_control.is_registered = self._is_registered

    @property
    def view(self) -> Registry:
        """What the host watcher takes for the registry."""
        return cast(Registry, self.own_host)  # it has all that the host watcher uses

    @property
    def is_loading(self) -> bool:
        """Whether the registry is that of a leadership that is over, until the records are loaded."""
        return self._is_lost

    def load_anew(self, why: str) -> None:
        """Go back to what is stored."""
        if self.role == "leader":
            self._link.resign(why)
            self.step_down(why)
        else:
            self._is_lost = self._awaits_load = True
            self._link.load_anew()

    # -- every turn of the loop ----------------------------------------------------------------------------

    def take(self) -> None:
        """Take what has happened in the site."""
        for news in self._link.take(takes_requests=self._parts.requests.backlog < MAX_BACKLOG):
            match news:
                case site_link.Followed():
                    self._take_head(news)
                case site_link.Answered():
                    if self._forwarded.answered(news) is not None:
                        self._send_again_at = monotonic() + AGAIN_SECONDS  # it is about to lead, or does not any more
                case site_link.HomeAnswered():
                    self._topics.take_answer(news)
                case site_link.Asked():
                    self._take_request(news)
                case site_link.LeaderSeen(leadership):
                    self._take_leader(leadership)
                case site_link.Loaded(registry):
                    self._take_copy(registry)
                case site_link.Won():
                    self._won = news
                case site_link.Lost(why):
                    self._won = None
                    if self.role == "leader":
                        self._is_lost = True
                        self._settle_loss(why)
                case site_link.HostsSeen():
                    self._take_hosts(news)
        self._take_over()
        self._hand_on()

    def maintain(self) -> float:
        """Do what is due, and return the seconds until there may be more to do."""
        for waiting in self._forwarded.overdue():
            self._refuse(waiting, self._why_late(waiting))
        if self._must_look and self._leadership is not None and self.role == "follower":
            self._must_look = False
            self.own_host.forget()
            self._look_at_host()
        while (report := self.own_host.take_report()) is not None:
            if self._leadership is None:
                self._must_look = True
            else:
                self._send(self._forwarded.add("report", report, user="", on_reply=self._reported))
        if self._send_again_at is not None and monotonic() >= self._send_again_at:
            self._send_again_at = None
            for waiting in self._forwarded.unsent():
                self._send(waiting)
        while (gathered := self._heartbeats.take()) is not None:
            first, body = gathered
            if first.sent_to is not None and first.sent_to == self._leadership:
                self._link.send(first.number, first.kind, body, user="", leadership=first.sent_to)
        if monotonic() >= self._tell_at:
            self._tell_at = monotonic() + TELL_SECONDS
            self._tell()
        topics_seconds = self._topics.maintain()
        self._link.flush()
        due_at = self._tell_at if self._send_again_at is None else min(self._tell_at, self._send_again_at)
        return min(
            self._forwarded.seconds_to_deadline(),
            self._heartbeats.seconds_to_send(),
            max(due_at - monotonic(), 0.0),
            topics_seconds,
        )

    def flush(self) -> None:
        """Send what other hubs are to have before this one stops."""
        self._link.flush()

    def end(self) -> None:
        """Answer what is waiting, since the hub stops."""
        for waiting in self._forwarded.take_all():
            self._refuse(waiting, "this hub stops, and whether the command was carried out is not known")
        self._topics.end(END_SECONDS)

    def _tell(self) -> None:
        registry = self._stored.registry
        self._link.tell(registry.revision, access=self._parts.access_version.own)
        self._problem_shown.show(self._problem(self._link.age_seconds()), self._parts.status.problems)

    def _problem(self, age: float) -> str:
        """Return what keeps this hub from its site, or an empty text."""
        why = self._link.problem()
        said = f": {why}" if why else ""
        if outdated := self._link.outdated():
            return f"{outdated}; reads go on with what it had"
        if age >= OLD_SECONDS:
            confirmed = f"etcd does not confirm that the copy of the registry is complete, for {age:.0f} s now"
            return f"{confirmed}; reads go on{said}"
        if self._leadership is None and self.role == "follower":
            return f"no hub leads it, so commands wait{said}"
        return ""

    # -- following -----------------------------------------------------------------------------------------

    def _follow(self) -> None:
        self.role = "follower"
        self.own_host.is_leading = False
        self._parts.answers.replace(dict.fromkeys(FORWARDED, self._forward) | {commands.Heartbeat: self._heartbeat})

    def _take_head(self, head: site_link.Followed) -> None:
        registry = self._stored.registry
        if self.role == "leader" or self._awaits_load or head.revision <= registry.revision:
            return  # our own, or loaded already
        if head.events is None or head.before != registry.revision:
            self._awaits_load = True
            self._link.load_anew()
            return
        try:
            self._copy.follow(head.events, head.revision)
            for event in head.events:
                if isinstance(event, events.TopicRetained | events.TopicDeleted):
                    self._topics.defined(event.name, event.revision)
        except Exception:  # a defect, or records that do not fit: the copy may hold half a change
            log.exception("site %s: a change of the leader cannot be followed", self._link.site)
            self._parts.metrics.count("internal_errors")
            self.load_anew("a change of the leader could not be followed")

    def _take_copy(self, registry: Registry) -> None:
        """Go on with a copy that was loaded anew."""
        if self.role == "leader":
            return
        self._awaits_load = False
        if not self._is_lost and registry.revision <= self._stored.registry.revision:
            return  # nothing new
        self._is_lost = False
        self._copy.replace(registry)
        self._topics.defined("", registry.revision)
        self._must_look = True

    def _is_registered(self, lease: str, member: Member) -> bool:
        """Return whether somebody is registered under a lease, here or in the site."""
        is_here = self._stored.registry.leases.has(lease, member)
        return is_here or (self.role == "follower" and self._copy.leases.has(lease, member))

    def _take_leader(self, leadership: int | None) -> None:
        if leadership == self._leadership:
            return
        self._leadership = leadership
        self._heartbeats = GatheredHeartbeats()  # those that were gathered for the other one are answered next
        for waiting in self._forwarded.of_others(leadership):
            self._refuse(
                waiting, "the hub that led the site is gone, and whether it carried the command out is unknown"
            )
        if leadership is not None:
            self._must_look = True
            for waiting in self._forwarded.unsent():
                self._send(waiting)

    # -- forwarding ----------------------------------------------------------------------------------------

    def _forward(self, request: Request, registry: Registry, now: float) -> Answer | None:  # noqa: ARG002  one signature
        path, command = request[:2]
        if isinstance(path, HubPath):
            self._link.answer(path, "not_leader", 0, b"")
            return None
        if outdated := self._link.outdated():
            raise StoreReadOnly(f"{outdated}. Reads go on, with what it had")
        if len(self._forwarded) >= MOST_WAITING:
            raise RateLimited("too many commands wait for the hub that leads the site: try again in a moment")
        access_control = self._parts.access_control
        user = access_control.sender(path) if access_control is not None else ""
        # One that says how full mailboxes are goes alone: those that are gathered name their leases only.
        lease = command.lease if isinstance(command, commands.Heartbeat) and not command.mailboxes else ""
        kind: site_link.Kind = "heartbeats" if lease else "command"
        body = b"" if lease else protocol.encode(command)
        self._send(self._forwarded.add(kind, body, user=user, request=request, lease=lease))
        return None

    def _heartbeat(self, request: Request, registry: Registry, now: float) -> Answer | None:
        """Renew the lease of subscribers here, and that of all other members at the leader."""
        command = request[1]
        assert isinstance(command, commands.Heartbeat)
        if not isinstance(request[0], HubPath):
            self.own_host.heard(command.lease)
        registry.services.note_mailboxes(command.lease, command.mailboxes)
        is_known = registry.leases.get(command.lease) is not None
        if is_known and not self.is_loading and not isinstance(request[0], HubPath):
            answer = self._parts.answers.usual(request, registry, now)
            if command.lease not in self._copy.leases:
                return answer
        return self._forward(request, registry, now)

    def _send(self, waiting: Forwarded) -> None:
        if self._leadership is None or self.role == "leader":
            return  # sent when a leader is seen
        waiting.sent_to = self._leadership
        if waiting.kind == "heartbeats":
            self._heartbeats.add(waiting, interval_seconds=self._stored.registry.terms.heartbeat_seconds)
            return
        self._link.send(waiting.number, waiting.kind, waiting.body, user=waiting.user, leadership=self._leadership)

    def _ask_leader(self, command: commands.AnyCommand, on_reply: Callable[[replies.Reply | None], None]) -> None:
        self._send(self._forwarded.add("command", protocol.encode(command), user="host", on_reply=on_reply))

    def _reported(self, reply: replies.Reply | None) -> None:
        if reply is None:
            self._must_look = True

    def _hand_on(self) -> None:
        """Answer whoever waits for what the copy has by now."""
        for waiting, answer in self._forwarded.reached(self._stored.registry.revision):
            if waiting.kind == "report":
                self._reported(replies.Reply())
                continue
            reply: replies.Reply
            try:
                reply = protocol.decode_reply(answer.payload)
            except HubError as error:
                reply = protocol.error_reply(error)
            self._answer(waiting, reply, answer.payload)

    def _refuse(self, waiting: Forwarded, why: str) -> None:
        """Refuse as retryable; but a heartbeat of somebody who is registered is no news, and the next leader begins
        all leases anew."""
        command = waiting.request[1] if waiting.request is not None else None
        if isinstance(command, commands.Heartbeat) and command.lease in self._copy.leases:
            self._answer(waiting, replies.HeartbeatAck(known=True, notices=[]), None)
            return
        self._answer(waiting, protocol.error_reply(StoreReadOnly(f"{why}: try again")), None)

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
            self._topics.settle(reply)
            payload = None
        is_change = (command.writes or isinstance(command, _CHANGES_OF_SERVICES)) and not isinstance(
            reply, replies.Error
        )
        sent = payload if payload is not None else protocol.encode_reply(reply, command.id)
        self._parts.requests.reply(path, command, received_at, reply, sent, is_change=is_change)

    # -- leading -------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Lead, if this hub was elected and its copy is complete."""
        registry = self._stored.registry
        won = self._won
        if won is None or self.role == "leader" or self._is_lost or registry.revision < won.revision:
            return
        self._won = None
        self.role = "leader"
        self.own_host.forget()
        self.own_host.is_leading = True
        self._own_leadership = won.leadership
        won.begin()
        self._parts.commit.resume(written=registry.revision)
        self._parts.answers.restore((*FORWARDED, commands.Heartbeat))
        log.info("site %s: this hub leads from revision %d on", self._link.site, registry.revision)
        self._stored.record(registry.lead(epoch_floor=won.epoch_floor, now=self._parts.now()))
        self._look_at_host()
        for waiting in self._forwarded.take_unsent():
            if waiting.request is not None:
                self._parts.requests.put_back(waiting.request)
            elif waiting.on_reply is not None:
                waiting.on_reply(None)
        self._end_lost_hosts()

    def after_commit(self) -> bool:
        """Hear what the store says. Return whether there is nothing more to be done about it."""
        failure = self._parts.commit.failure
        if self.role != "leader":
            return True  # there is nothing of ours to be said
        if failure is not None:
            log.error("%s; this hub does not lead its site any more", failure.message)
            self._parts.metrics.count("store_failures")
            self._link.resign(failure.message)
            self.step_down(failure.message)
            return True
        if self._is_lost:
            self._settle_loss("the last changes are stored")
        return False

    def _settle_loss(self, why: str) -> None:
        """Step down once the store has said what became of the last changes."""
        if self._parts.commit.written >= self._stored.unwritten.newest:
            self.step_down(why)

    def step_down(self, why: str) -> None:
        """Follow from now on, with records that are loaded anew."""
        said = "this hub does not lead its site any more, and whether the change was stored is not known: try again"
        self._link.end_leading()
        self._is_lost = self._awaits_load = True
        self._follow()
        self._stored.refuse_unwritten(StoreReadOnly(said))
        log.warning("site %s: this hub follows now: %s", self._link.site, why)
        self._link.load_anew()

    def _take_request(self, asked: site_link.Asked) -> None:
        """Serve what another hub forwards, or asks of this one as the home of a topic."""
        if asked.kind == "topic":
            self._topics.take_request(asked.path, asked.body)
            return
        if self.role != "leader" or self._is_lost or asked.leadership != self._own_leadership:
            self._link.answer(asked.path, "not_leader", 0, b"")
            return
        if asked.kind == "command":
            try:
                command = protocol.decode(asked.body)
            except HubError as error:
                reply = protocol.encode_reply(protocol.error_reply(error), None)
                self._link.answer(asked.path, "done", 0, reply)
                return
            self._parts.requests.put_back((asked.path, command, monotonic(), None))
            return
        registry, payload, revision = self._stored.registry, _DONE, 0
        try:
            if asked.kind == "heartbeats":
                payload, happened = renew(asked.body, registry, now=self._parts.now())
                revision = registry.revision if happened else self._parts.commit.written
            else:
                happened = apply_report(asked.body, registry, now=self._parts.now())
            self._stored.record(happened)
        except (msgspec.DecodeError, HubError) as error:
            log.warning("%s reports something that cannot be read: %s", asked.path.user, error)
            if asked.kind == "heartbeats":
                return
        self._link.answer(asked.path, "done", revision, payload)

    def _answer_hub(self, path: list[bytes], payload: bytes) -> bool:
        """Answer another hub. What is answered is stored, and so is all that it may show."""
        assert isinstance(path, HubPath)
        return self._link.answer(path, "done", self._parts.commit.written, payload)

    # -- hosts ---------------------------------------------------------------------------------------------

    def _take_hosts(self, hosts: site_link.HostsSeen) -> None:
        self._hosts = hosts
        self._parts.topics.follow(hosts.topics)
        self._parts.access_version.of_other_hubs = hosts.access
        self._topics.alive, self._topics.limits = hosts.alive, dict(hosts.kept_limits)
        self._end_lost_hosts()

    def _end_lost_hosts(self) -> None:
        """End the members of hosts whose lease has run out."""
        if self.role != "leader" or self._is_lost or self._hosts is None:
            return
        registry = self._stored.registry
        for host in sorted(self._hosts.known - self._hosts.alive - {self._link.host}):
            happened = registry.host_events.host_lost(host, now=self._parts.now())
            if happened:
                log.warning("host %s is lost: its members end with its lease", host)
                self._stored.record(happened)

    def _lease_count(self, registry: Registry) -> int:
        """Return how many leases there are: here those of workers and subscribers, at the leader all others."""
        if self.role == "leader":
            return len(registry.leases)
        return len(self._copy.leases) + sum(lease not in self._copy.leases for lease in registry.leases)

    def _gauges(self) -> dict[str, int]:
        hosts = self._hosts
        return {
            "site_hosts": len(hosts.known) if hosts is not None else 0,
            "site_hosts_lost": len(hosts.known - hosts.alive) if hosts is not None else 0,
            "site_is_leader": int(self.role == "leader"),
            "site_copy_age_ms": int(self._link.age_seconds() * 1000),
            "site_commands_waiting": len(self._forwarded),
        }
