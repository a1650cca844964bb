"""Answers to commands: by the registry, by another part of the broker, or later.

Rule 1: one table says who answers each kind of command.
Rule 2: a refusal and a defect are answers too: no command can end the loop.
Rule 3: while the store cannot be written, writes are refused and everything else is answered.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from messagehub import protocol
from messagehub.broker.access.access_version import AccessVersion
from messagehub.broker.host_watcher.entry_checks import Adoption
from messagehub.broker.request_queue import Request
from messagehub.broker.schema_worker.checker import SchemaChecker
from messagehub.broker.topics.retained import READ_COMMANDS, TOPIC_COMMANDS, RetainedTopics
from messagehub.errors import HubError, InternalError, StoreReadOnly
from messagehub.runtime.metrics import Metrics
from registry import commands, replies
from registry.events import AnyEvent
from registry.registry import Registry

log = logging.getLogger("messagehub.broker")

Answer = tuple[replies.Reply, list[AnyEvent]]
"""The reply to a command, and the events of what it changed."""
AnswerTo = Callable[[Request, Registry, float], Answer | None]
"""None: the answer comes later."""
OwnReply = Callable[[Any, list[bytes], Registry], replies.Reply]

_NOTHING: list[AnyEvent] = []
_CHECKED = (
    commands.SchemaText,
    commands.RegisterProducer,
    commands.RegisterConsumer,
    commands.CreateChannel,
    commands.TableSchema,
)


class Answers:
    def __init__(
        self,
        broker_id: str,
        own: Mapping[type[commands.Command], OwnReply],
        *,
        schema_checker: SchemaChecker[Request | Adoption],
        retained: RetainedTopics,
        access_version: AccessVersion,
        metrics: Metrics,
    ) -> None:
        """`own` maps commands about the broker itself to functions that answer them, given the return path."""
        self.is_suspect = False
        """Whether a command failed by a defect, so that the registry may hold half a change."""
        self._broker_id = broker_id
        self._own = own
        self._schema_checker = schema_checker
        self._retained = retained
        self._access_version = access_version
        self._metrics = metrics
        every = protocol.COMMANDS_BY_TYPE.values()
        self._answer_to: dict[type[commands.Command], AnswerTo] = {
            **dict.fromkeys(every, self._apply),
            **dict.fromkeys([kind for kind in every if issubclass(kind, _CHECKED)], self._apply_checked),
            commands.Discover: self._discover,
            **dict.fromkeys(READ_COMMANDS, self._read_topic),
            **dict.fromkeys(TOPIC_COMMANDS, self._apply_to_topic),
            commands.PublishMessages: self._publish,
            commands.Heartbeat: self._apply_and_sign,
            commands.RequestSnapshot: self._apply_and_sign,
            **dict.fromkeys(own, self._answer_own),
        }
        self._usual = dict(self._answer_to)

    def replace(self, answers: Mapping[type[commands.Command], AnswerTo]) -> None:
        """Have others answer some kinds of commands, until `restore`."""
        self._answer_to.update(answers)

    def replace_usual(self, answers: Mapping[type[commands.Command], AnswerTo]) -> None:
        """Have others answer some kinds of commands, also after `restore`."""
        self._answer_to.update(answers)
        self._usual.update(answers)

    def restore(self, kinds: Iterable[type[commands.Command]]) -> None:
        self._answer_to.update({kind: self._usual[kind] for kind in kinds})

    def usual(self, request: Request, registry: Registry, now: float) -> Answer | None:
        """Answer as if nothing had been replaced."""
        return self._usual[type(request[1])](request, registry, now)

    def answer(self, request: Request, registry: Registry, *, now: float, is_read_only: bool) -> Answer | None:
        """Return the reply and what happened; None when a schema has to be checked or a retained topic read first."""
        command = request[1]
        kind = type(command)
        try:
            if is_read_only and (command.writes or kind is commands.Heartbeat):
                return self._answer_read_only(command, registry, now), _NOTHING
            return self._answer_to[kind](request, registry, now)
        except HubError as refused:
            return protocol.error_reply(refused), _NOTHING
        except Exception as defect:  # one request's defect must not end the broker: logged, counted, answered
            log.exception("internal error while serving a %s", kind.__name__)
            self._metrics.count("internal_errors")
            self.is_suspect = True
            error = InternalError(f"{type(defect).__name__} in the broker; its log says more")
            return protocol.error_reply(error), _NOTHING

    # -- who answers ---------------------------------------------------------------------------------------

    def _answer_own(self, request: Request, registry: Registry, now: float) -> Answer:  # noqa: ARG002  one signature
        path, command = request[:2]
        return self._own[type(command)](command, path, registry), _NOTHING

    def _apply(self, request: Request, registry: Registry, now: float) -> Answer:
        return registry.apply(request[1], now=now)

    def _apply_checked(self, request: Request, registry: Registry, now: float) -> Answer | None:
        path, command, received_at, result = request
        if self._schema_checker.must_wait((path, command, received_at, None), command, result, registry):
            return None
        return registry.apply(command, now=now, result=result)

    def _discover(self, request: Request, registry: Registry, now: float) -> Answer | None:
        command = request[1]
        assert isinstance(command, commands.Discover)
        if command.expected_schema_hash is None:
            return registry.apply(command, now=now)
        return self._apply_checked(request, registry, now)

    def _apply_and_sign(self, request: Request, registry: Registry, now: float) -> Answer:
        """Apply the command, and add the broker's id to the reply: clients compare it with the id that they know."""
        reply, happened = registry.apply(request[1], now=now)
        assert isinstance(reply, replies.HeartbeatAck | replies.SnapshotPage)
        reply.broker_id = self._broker_id
        if isinstance(reply, replies.HeartbeatAck):
            reply.access = self._access_version.current()
        return reply, happened

    def _read_topic(self, request: Request, registry: Registry, now: float) -> None:  # noqa: ARG002  one signature
        """Let another thread read the topic and answer."""
        path, command, received_at, _ = request
        assert isinstance(command, READ_COMMANDS)
        self._retained.ask((path, command, received_at), command, registry.topics.get(command.topic))

    def _publish(self, request: Request, registry: Registry, now: float) -> Answer:  # noqa: ARG002  the topics' own time
        self._retained.check_room()
        return self._apply_to_topic(request, registry, self._retained.now())

    def _apply_to_topic(self, request: Request, registry: Registry, now: float) -> Answer:
        reply, happened = registry.apply(request[1], now=now)
        self._retained.answered(request[1], reply, happened)
        return reply, happened

    def _answer_read_only(self, command: commands.AnyCommand, registry: Registry, now: float) -> replies.Reply:
        """Renew the lease of a heartbeat, and answer a subscriber that is known already. Refuse every other write."""
        if isinstance(command, commands.Heartbeat):
            lease = registry.leases.get(command.lease)
            if lease is not None:
                lease.renewed_at = now
            is_known, access = lease is not None, self._access_version.current()
            return replies.HeartbeatAck(known=is_known, notices=[], broker_id=self._broker_id, access=access)
        subscribers = registry.subscribers
        if isinstance(command, commands.RegisterSubscriber) and subscribers.get(command.member_id) is not None:
            return subscribers.decide(command, now)  # subscribers are not stored, so groups continue
        raise StoreReadOnly("the registry cannot be written (disk full or failing): reads go on, try again later")
