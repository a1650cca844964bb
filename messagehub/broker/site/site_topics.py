"""Retained topics as every hub of a site answers for them: each request goes to the home host of its topic.

Rule 1: which topics are retained, and where, is answered from the own copy of the registry: publishing to plain topics
needs no leader, no etcd and no other host.
Rule 2: rights, limits and audit are those of the hub that a client talks to. The home takes hubs at their word.
Rule 3: a request is answered within HOME_SECONDS. Where the home host is lost, or does not answer, it is refused as
retryable, and the refusal names the host.
Rule 4: a subscriber is registered at the hub of its own host, which sees its process end. The home hears of it before
its first request, has its lease renewed, and is told when it ends.
"""

from collections.abc import Mapping
from time import monotonic
from typing import cast

import msgspec

from messagehub import protocol
from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.answers import Answer, AnswerTo
from messagehub.broker.parts import Parts
from messagehub.broker.persistence.stored_registry import StoredRegistry
from messagehub.broker.request_queue import Request
from messagehub.broker.site.home_members import HomeMembers
from messagehub.broker.site.home_topics import HomeTopics
from messagehub.broker.site.link import HomeAnswered, HubPath, SiteLink
from messagehub.broker.site.topic_lists import TopicLists
from messagehub.broker.site.topic_requests import HOME_SECONDS, OnEnd, TopicRequest, TopicRequests
from messagehub.broker.topics.retained import READ_COMMANDS
from messagehub.errors import HomeHostUnavailable, HubError, RateLimited
from registry import commands, replies
from registry.errors import InvalidRequest, NotRegistered
from registry.registry import Registry
from registry.topics.positions import POSITION_COMMANDS
from registry.topics.retained import PLAIN_SECONDS

FOLLOWING_SECONDS = 0.6
"""How long other hubs may take to see a new definition, and the difference of clocks' rates."""
SILENT_SECONDS = 1.0
AT_HOME: tuple[type[commands.Command], ...] = (commands.PublishMessages, *READ_COMMANDS, *POSITION_COMMANDS)


class SiteTopics:
    def __init__(self, link: SiteLink, parts: Parts, stored: StoredRegistry, home: HomeTopics) -> None:
        self.alive: frozenset[str] = frozenset()
        """The hosts whose hubs live."""
        self.known: frozenset[str] = frozenset()
        """The hosts that were seen as members, also those that are lost."""
        self.limits: dict[str, int] = {}
        """How many bytes the topics of each host may keep."""
        self._link, self._parts, self._stored, self._home = link, parts, stored, home
        self._requests = TopicRequests()
        self._members = HomeMembers(home, lambda: stored.registry.subscribers, self._tell, link.host)
        self._lists = TopicLists(home, parts, link.host, self._ask_home)
        self._changed_at = 0
        """The revision of the newest definition that was decided or followed here."""
        self._new: dict[str, float] = {}
        """Topics that were retained in the last seconds, and since when they are here."""
        self._heard_at: dict[str, float] = {}
        self._silent_until: dict[str, float] = {}

    def answers(self) -> Mapping[type[commands.Command], AnswerTo]:
        return {
            **dict.fromkeys(AT_HOME, self._to_home),
            commands.ListTopics: self._list,
            commands.TraceMessage: self._trace,
        }

    def deciding(self) -> Mapping[type[commands.Command], AnswerTo]:
        """What a leader answers."""
        return {commands.KeepTopic: self._keep, commands.DeleteTopic: self._delete}

    # -- definitions ---------------------------------------------------------------------------------------

    def defined(self, name: str, revision: int) -> None:
        """Take note that a topic was retained, changed or deleted, at this revision of the site."""
        self._changed_at = revision
        now = monotonic()
        self._new = {topic: since for topic, since in self._new.items() if now - since < 2 * PLAIN_SECONDS}
        self._new[name] = now
        self._home.must_follow = True

    def follow(self) -> None:
        """Have this host's topics be those that are defined, once that is stored."""
        if self._home.must_follow and self._parts.commit.written >= self._changed_at:
            registry = self._stored.registry
            self._home.follow((saved.topic for saved in registry.topics.every()), registry.revision)

    def settle(self, reply: replies.TopicRetained) -> None:
        """Say for how long publishers of this and of other hosts may take the topic for a plain one."""
        self._parts.retained.answered(commands.KeepTopic(topic=reply.topic.name), reply, [])
        since = self._new.get(reply.topic.name)
        if since is not None and self.alive - {self._link.host}:
            seconds = since + PLAIN_SECONDS + FOLLOWING_SECONDS - monotonic()
            reply.settles_in_seconds = max(reply.settles_in_seconds, seconds)

    def _keep(self, request: Request, registry: Registry, now: float) -> Answer:
        path, command = request[:2]
        assert isinstance(command, commands.KeepTopic)
        asked_at = path.host if isinstance(path, HubPath) else self._link.host
        if command.home is None and registry.topics.home_of(command.topic) is None:
            command = msgspec.structs.replace(command, home=asked_at)
        elif command.home is not None and command.home not in self.alive | {self._link.host}:
            raise InvalidRequest(
                f"host {command.home!r} is no host of this site, or its hub does not live now: `messagehub hosts` lists"
                " them",
                field="home",
            )
        registry.topics.limits = self.limits
        reply, happened = registry.apply(command, now=now)
        if happened:
            self.defined(command.topic, registry.revision)
        if not isinstance(path, HubPath) and isinstance(reply, replies.TopicRetained):
            self.settle(reply)
        return reply, happened

    def _delete(self, request: Request, registry: Registry, now: float) -> Answer:
        command = request[1]
        assert isinstance(command, commands.DeleteTopic)
        answer = registry.apply(command, now=now)
        self.defined(command.topic, registry.revision)
        return answer

    # -- requests of clients of this hub -------------------------------------------------------------------

    def _to_home(self, request: Request, registry: Registry, now: float) -> None:  # noqa: ARG002  one signature
        command = request[1]
        home = self._home_of(command)
        if home == self._link.host and self._home.is_ready(_topic_of(command)):
            self._members.check(command, home)
            self._home.serve(request)
            return
        self._members.check(command, home)

        def answer(payload: bytes | None) -> None:
            self._answer(request, payload)

        def send(waiting: TopicRequest) -> None:
            self._send(waiting, request)

        body, user = protocol.encode(command), self._user(request[0])
        waiting = self._requests.add(body, user=user, seconds=HOME_SECONDS, on_end=answer, send=send)
        try:
            self._send(waiting, request)
        except HubError:
            self._requests.end(waiting)
            raise

    def _home_of(self, command: commands.AnyCommand) -> str:
        topic = self._stored.registry.topics.get(_topic_of(command))
        return topic.home or self._link.host

    def _send(self, waiting: TopicRequest, request: Request) -> None:
        """Send a request to where its topic is by now, or put it off; raise if that is not there."""
        command = request[1]
        host = self._home_of(command)
        if host == self._link.host:
            if self._home.is_ready(_topic_of(command)):
                self._requests.end(waiting)
                self._home.serve(request)
            else:
                self._requests.put_off(waiting)
            return
        self._check_alive(host, _topic_of(command))
        self._members.check(command, host)
        self._ask(waiting, host)

    def _ask(self, waiting: TopicRequest, host: str) -> None:
        waiting.host, waiting.sent_at = host, monotonic()
        self._link.ask_host(host, waiting.number, waiting.body, user=waiting.user)

    def _check_alive(self, host: str, topic: str) -> None:
        if host not in self.alive:
            raise HomeHostUnavailable(
                f"topic {topic!r} has its messages on host {host!r}, whose hub is gone or cannot reach etcd, so nothing"
                " was sent there: try again when it is back",
                topic=topic,
                home=host,
                lost=host in self.known,  # or else it has just joined, or this hub has just started
            )

    def _answer(self, request: Request, payload: bytes | None) -> None:
        path, command, received_at, _ = request
        reply: replies.Reply
        if payload is None:
            topic = _topic_of(command)
            home = self._stored.registry.topics.home_of(topic) or self._link.host
            error = HomeHostUnavailable(
                f"topic {topic!r} has its messages on host {home!r}, which does not answer, so whether this was carried"
                " out is not known: try again",
                topic=topic,
                home=home,
            )
            reply = protocol.error_reply(error)
        else:
            try:
                reply = protocol.decode_reply(payload)
            except HubError as error:
                reply = protocol.error_reply(error)
            if isinstance(reply, replies.Error) and reply.code == NotRegistered.code:
                self._members.forget(command)
        sent = payload if payload is not None else protocol.encode_reply(reply, command.id)
        is_change = command.writes and not isinstance(reply, replies.Error)
        self._parts.requests.reply(path, command, received_at, reply, sent, is_change=is_change)

    def _refuse(self, request: Request, refused: HubError) -> None:
        path, command, received_at, _ = request
        reply = protocol.error_reply(refused)
        payload = protocol.encode_reply(reply, command.id)
        self._parts.requests.reply(path, command, received_at, reply, payload)

    def _user(self, path: list[bytes]) -> str:
        access_control: AccessControl | None = self._parts.access_control
        return access_control.sender(path) if access_control is not None else ""

    def _list(self, request: Request, registry: Registry, now: float) -> None:
        """Answer from the own copy; and how far the topics are, for whoever does not ask in order to publish."""
        command = request[1]
        assert isinstance(command, commands.ListTopics)
        reply, _ = registry.apply(command, now=now)
        assert isinstance(reply, replies.TopicList)
        self._parts.retained.answered(command, reply, [])
        if command.publisher is not None:
            self._home.reply(request, reply)
        else:
            self._lists.answer(request, reply)

    def _trace(self, request: Request, registry: Registry, now: float) -> Answer:  # noqa: ARG002  one signature
        """Answer from what this hub knows: of a topic that is at home here, also what its home knows."""
        command = request[1]
        assert isinstance(command, commands.TraceMessage)
        home = None if command.offset is None else self._home_of(command)
        if home == self._link.host and self._home.is_ready(command.topic):
            return self._parts.message_traces.trace_here(command, self._home.registry), []
        return self._parts.message_traces.trace_here(command, registry, home), []

    def _ask_home(self, host: str, body: bytes, seconds: float, on_end: OnEnd) -> bool:
        """Ask another home about its topics. Return False if it is not there, is silent just now, or too much waits."""
        if host not in self.alive or monotonic() < self._silent_until.get(host, 0.0):
            return False
        try:
            waiting = self._requests.add(
                body, user="", seconds=seconds, on_end=on_end, send=lambda again: self._ask(again, host)
            )
        except RateLimited:
            return False
        self._ask(waiting, host)
        return True

    def _tell(self, host: str, command: commands.AnyCommand) -> None:
        """Tell a home of a member. Where the answer matters, the next request of the member shows it."""
        if host in self.alive:
            self._link.ask_host(host, 0, protocol.encode(command), user="")

    # -- what other hubs ask and answer --------------------------------------------------------------------

    def take_request(self, path: HubPath, body: bytes) -> None:
        """Serve what another hub asks of this one as the home of a topic."""
        request: Request | None = None
        try:
            command = protocol.decode(body)
            request = (path, command, monotonic(), None)
            if isinstance(command, commands.ListTopics):
                self._lists.serve(request)
            elif isinstance(command, commands.RegisterSubscriber | commands.UnregisterSubscriber | commands.Heartbeat):
                self._home.reply(request, self._home.apply(command))
            elif not isinstance(command, AT_HOME):
                raise InvalidRequest("a home host is asked about its retained topics only")
            elif self._home.is_ready(_topic_of(command)):
                self._home.serve(request)
            else:
                self._link.answer(path, "not_home", 0, b"")
        except HubError as refused:
            self._refuse_hub(path, request, refused)

    def _refuse_hub(self, path: HubPath, request: Request | None, refused: HubError) -> None:
        if request is not None:
            self._refuse(request, refused)
        else:
            self._link.answer(path, "done", 0, protocol.encode_reply(protocol.error_reply(refused), None))

    def take_answer(self, answer: HomeAnswered) -> None:
        self._heard_at[answer.host] = monotonic()
        self._silent_until.pop(answer.host, None)
        if answer.status == "done":
            self._requests.answered(answer.number, answer.payload)
        else:
            self._requests.sent_back(answer.number)

    # -- every turn of the loop ----------------------------------------------------------------------------

    def maintain(self) -> float:
        """Do what is due, and return the seconds until there may be more to do."""
        self.follow()
        self._members.maintain()
        for waiting in self._requests.due():
            self._send_again(waiting)
        for waiting in self._requests.overdue():
            self._note_silence(waiting)
            waiting.on_end(None)
        idle_seconds = min(self._requests.seconds_to_next(), self._members.seconds_to_renewal())
        return min(idle_seconds, self._home.maintain())

    def end(self, seconds: float) -> None:
        """Answer what is waiting, since the hub stops."""
        for waiting in self._requests.take_all():
            waiting.on_end(None)
        self._home.flush(seconds)

    def counters(self) -> dict[str, int]:
        return {"forwarded_to_homes": self._requests.count}

    def gauges(self) -> dict[str, int]:
        return {"home_requests_waiting": len(self._requests)} | self._home.gauges()

    def _send_again(self, waiting: TopicRequest) -> None:
        try:
            waiting.send(waiting)
        except HubError as refused:
            self._requests.end(waiting)
            waiting.on_end(protocol.encode_reply(protocol.error_reply(refused), None))

    def _note_silence(self, waiting: TopicRequest) -> None:
        """Drop the connection to a host that has said nothing since it was asked, with all that waits to be sent."""
        if waiting.host and self._heard_at.get(waiting.host, 0.0) < waiting.sent_at:
            self._silent_until[waiting.host] = monotonic() + SILENT_SECONDS
            self._link.leave_host(waiting.host)


def _topic_of(command: commands.AnyCommand) -> str:
    """Return the topic that a command of AT_HOME is about."""
    return cast(commands.DescribeTopic, command).topic
