"""One hub of a site, in its loop: it leads, or follows the hub that does.

Rule 1: a follower decides nothing. It applies what the leader has written, answers every read from that, and forwards
commands and heartbeats. Subscribers and dead letters are the business of the hub of their host, whoever leads; what is
published to topics goes from hub to hub, and what is asked of services from process to process, past the leader.
Rule 2: a hub that is elected leads once its copy has reached what the leaders before it have written.
Rule 3: whatever goes wrong with the store of a leader ends its leadership. What waits is refused as retryable, reads go
on from what is known to be stored, and the records are loaded anew. Only in the first seconds of a leadership is that
not known (`StoredCopy`): then, reads that would show a change which may not be stored are refused until the load.
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
from messagehub.broker.site.commands_to_leader import CHANGES_OF_SERVICES, CommandsToLeader
from messagehub.broker.site.heartbeats import renew
from messagehub.broker.site.home_topics import HomeTopics
from messagehub.broker.site.host_answers import HostAnswers
from messagehub.broker.site.host_reports import OwnHost, apply_report
from messagehub.broker.site.link import HubPath, SiteLink
from messagehub.broker.site.registry_copy import RegistryCopy
from messagehub.broker.site.site_problem import OLD_SECONDS, SiteProblem
from messagehub.broker.site.site_topics import AT_HOME, SiteTopics
from messagehub.errors import HubError, StoreReadOnly
from registry import commands, events
from registry.channels.leases import Member
from registry.registry import Registry
from registry.services.workers import SERVICE_COMMANDS
from registry.topics.subscribers import SUBSCRIBER_COMMANDS

log = logging.getLogger("messagehub.site")

TELL_SECONDS = 1.0
END_SECONDS = 1.0
_OF_THIS_HOST = {*AT_HOME, *SERVICE_COMMANDS, *SUBSCRIBER_COMMANDS}
FORWARDED: tuple[type[commands.Command], ...] = (
    *(kind for kind in protocol.COMMANDS_BY_TYPE.values() if kind.writes and kind not in _OF_THIS_HOST),
    *CHANGES_OF_SERVICES,
)
_DONE = b""


class SiteMember:
    def __init__(self, link: SiteLink) -> None:
        self.role = "follower"
        self._link = link
        self._won: site_link.Won | None = None
        self._is_lost = False
        """Whether the leadership is over, though the store has not yet said what became of the last changes."""
        self._awaits_load = False
        self._must_look = True
        """Whether the leader has to hear of everything that is to be seen on this host."""
        self._tell_at = 0.0
        self._problem_shown = SiteProblem(link.site)
        self._own_leadership = 0
        self._loads = 0
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
        parts.host_watcher.join_site(self._link)
        self._home = HomeTopics(parts, stored.settings, self._link.host)
        self._topics = topics = SiteTopics(self._link, parts, stored, self._home)
        self._to_leader = CommandsToLeader(
            self._link,
            parts,
            copied_leases=lambda: self._copy.leases,
            heartbeat_seconds=lambda: stored.registry.terms.heartbeat_seconds,
            settle=topics.settle,
            on_missing_report=self._look_again,
        )
        self.own_host = OwnHost(lambda: stored.registry, self._link.host, self._to_leader.ask)
        self._copy = RegistryCopy(parts, stored, self.view)
        parts.answers.replace(topics.answers())
        parts.answers.replace_usual(topics.deciding())
        self._follow()
        hosts = HostAnswers(self._link, parts.access_control, lambda: self.role)
        parts.answers.replace({commands.ListHosts: hosts.list, commands.RequestGateway: hosts.gateway})
        parts.stats.add(lambda: {"forwarded_commands": self._to_leader.count, "site_loads": self._loads})
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
            self._stored.copy.take(0)  # a write may be on its way, so nobody knows what is stored
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
                    self._to_leader.answered(news)
                case site_link.HomeAnswered():
                    self._topics.take_answer(news)
                case site_link.Asked():
                    self._take_request(news)
                case site_link.LeaderSeen(leadership):
                    self._take_leader(leadership)
                case site_link.Loaded():
                    self._take_copy(news)
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
        self._to_leader.hand_on(self._stored.registry.revision)

    def maintain(self) -> float:
        """Do what is due, and return the seconds until there may be more to do."""
        if self._must_look and self._to_leader.leadership is not None and self.role == "follower":
            self._must_look = False
            self.own_host.forget()
            self._look_at_host()
        while (report := self.own_host.take_report()) is not None:
            self._to_leader.report(report)
        to_leader_seconds = self._to_leader.maintain()
        if monotonic() >= self._tell_at:
            self._tell_at = monotonic() + TELL_SECONDS
            self._tell()
        topics_seconds = self._topics.maintain()
        self._stored.copy.follow(self._parts.commit.written)  # not in `after_commit`, which clients wait for
        self._link.flush()
        return min(to_leader_seconds, topics_seconds, max(self._tell_at - monotonic(), 0.0))

    def flush(self) -> None:
        """Send what other hubs are to have before this one stops."""
        self._link.flush()

    def end(self) -> None:
        """Answer what is waiting, since the hub stops."""
        self._to_leader.end()
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
        if self._to_leader.leadership is None and self.role == "follower":
            return f"no hub leads it, so commands wait{said}"
        return ""

    # -- following -----------------------------------------------------------------------------------------

    def _follow(self) -> None:
        self.role = "follower"
        self.own_host.is_leading, self._to_leader.is_following = False, True
        forward = self._to_leader.forward
        self._parts.answers.replace(dict.fromkeys(FORWARDED, forward) | {commands.Heartbeat: self._heartbeat})

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

    def _take_copy(self, loaded: site_link.Loaded) -> None:
        """Go on with a copy that was loaded anew."""
        registry = loaded.registry
        self._loads += 1
        if self.role == "leader":
            self._stored.copy.loaded(registry)
            return
        if loaded.is_for_leader:
            return  # from before this hub stepped down: what follows it was not watched
        self._awaits_load = False
        if self._is_lost or registry.revision > self._stored.registry.revision:
            self._go_on_with(registry)

    def _go_on_with(self, registry: Registry) -> None:
        self._is_lost = False
        self._copy.replace(registry)
        self._topics.defined("", registry.revision)
        self._must_look = True

    def _is_registered(self, lease: str, member: Member) -> bool:
        """Return whether somebody is registered under a lease, here or in the site."""
        is_here = self._stored.registry.leases.has(lease, member)
        return is_here or (self.role == "follower" and self._copy.leases.has(lease, member))

    def _take_leader(self, leadership: int | None) -> None:
        if leadership == self._to_leader.leadership:
            return
        self._must_look |= leadership is not None
        self._to_leader.follow(leadership)

    def _look_again(self) -> None:
        self._must_look = True

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
        return self._to_leader.forward(request, registry, now)

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
        self.own_host.is_leading, self._to_leader.is_following = True, False
        self._own_leadership = won.leadership
        won.begin()
        self._stored.copy.begin(registry.revision)
        self._parts.commit.resume(written=registry.revision)
        self._parts.answers.restore((*FORWARDED, commands.Heartbeat))
        log.info("site %s: this hub leads from revision %d on", self._link.site, registry.revision)
        self._stored.record(registry.lead(epoch_floor=won.epoch_floor, now=self._parts.now()))
        self._look_at_host()
        self._to_leader.take_over()
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
        """Follow from now on, with what is known to be stored until the records are loaded anew."""
        stored = self._stored.copy.take(self._parts.commit.written)
        said = "this hub does not lead its site any more, and whether the change was stored is not known: try again"
        self._link.end_leading()
        self._is_lost = self._awaits_load = True
        self._follow()
        self._stored.refuse_unwritten(StoreReadOnly(said, site=self._link.site))
        if stored is not None:
            self._go_on_with(stored)
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
        before, self._hosts = self._hosts, hosts
        if before is not None:
            for host in sorted((before.alive & hosts.known) - hosts.alive):
                log.warning("site %s: host %s is lost: `messagehub hosts` says why", self._link.site, host)
            for host in sorted(hosts.alive - before.alive):
                log.info("site %s: host %s is there", self._link.site, host)
        self._parts.topics.follow(hosts.topics)
        self._parts.access_version.of_other_hubs = hosts.access
        self._topics.known, self._topics.alive = hosts.known, hosts.alive
        self._topics.limits = dict(hosts.kept_limits)
        self._end_lost_hosts()

    def _end_lost_hosts(self) -> None:
        """End the members of hosts whose lease has run out."""
        if self.role != "leader" or self._is_lost or self._hosts is None:
            return
        registry = self._stored.registry
        for host in sorted(self._hosts.known - self._hosts.alive - {self._link.host}):
            happened = registry.host_events.host_lost(host, now=self._parts.now())
            if happened:
                log.info("site %s: the members of host %s, which is lost, have ended", self._link.site, host)
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
            "site_commands_waiting": len(self._to_leader),
        }
