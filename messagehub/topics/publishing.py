"""Publishing to topics: numbered and pushed to the broker or, to a retained topic, stored by it.

Rule 1: the messages of one publisher on one topic arrive in their order, or not at all; they are numbered, so that
every subscriber can tell how many did not.
Rule 2: whether a topic is retained is known from the broker. That it is not counts for PLAIN_SECONDS from when it was
asked, and whoever makes it a retained one waits for as long, so that nothing is published past the store after that.
Rule 3: a new connection to the broker is asked before anything more is published, so that a publisher is told that its
broker was restarted with the first message after that was noticed.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from messagehub.arguments import flag, seconds, text
from messagehub.client.connection import Connection
from messagehub.errors import BrokerUnavailable, HubError, InvalidRequest, SendTimeout, TopicNotFound
from messagehub.payloads.arrow_values import PLAIN_TYPES, as_arrow
from messagehub.payloads.blocks import MessageBlocks, is_large
from messagehub.payloads.encoding import arrow_kind, check_size, encode_headers, encode_payload
from messagehub.protocol.topic_frames import BYTES, IN_BLOCK, NAME_OF, PIECE_BYTES, PUBLISHER_BYTES, REST, frames_of
from messagehub.shm.channel_directory.location import directory_of
from messagehub.topics.retained.following import RetainedFollower
from messagehub.topics.retained.publishing import RetainedPublisher, check_retained_size, pieces
from messagehub.topics.routes import TopicRoutes
from messagehub.topics.sender import TopicSender
from messagehub.topics.sockets import TopicSockets, without_broker
from registry import replies
from registry.records import PublisherProcess, RetainedMessage
from registry.topics.patterns import END, check_topic
from registry.topics.retained import PLAIN_SECONDS

log = logging.getLogger("messagehub.topics")

MOST_TOPICS = 65_536


class _Numbered:
    """One topic of a publisher: how its frames begin, the number of the next, who publishes it if it is retained."""

    __slots__ = ("ask_at", "number", "retained", "start")

    def __init__(self, topic: str, publisher: bytes) -> None:
        self.ask_at = 0.0
        self.retained: RetainedPublisher | None = None
        self.start = check_topic(topic).encode() + END + publisher
        self.number = 1


class TopicPublisher:
    def __init__(
        self,
        connection: Connection,
        sockets: TopicSockets,
        follower: RetainedFollower,
        local_routes: TopicRoutes,
        process: PublisherProcess,
    ) -> None:
        """`follower` knows which topics are retained, `local_routes` who in this process hears what stays in it.

        `process` is what the broker shows as the publisher.
        """
        self._process = process
        self.interruptions = 0
        self._connection = connection
        self._sockets = sockets
        self._follower = follower
        self._local_routes = local_routes
        self._timeout = connection.settings.request_timeout_seconds
        self._publisher = os.urandom(PUBLISHER_BYTES)
        self._sending = threading.Lock()  # the sender and the blocks; held for as long as a broker takes
        self._knowing = threading.Lock()  # what is known of topics; never held while waiting
        self._numbered: dict[str, _Numbered] = {}
        self._numbered_locally: dict[str, _Numbered] = {}
        self._sender = TopicSender(sockets.endpoint_in, sockets.open_context, sockets.secure)
        self._blocks = MessageBlocks(directory_of(connection.settings), self._publisher)
        self._noted: replies.HelloAck | None = None  # of the broker that took what was published last

    @property
    def id(self) -> str:
        return self._publisher.hex()

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        headers: dict[str, Any] | None = None,
        timeout: float | None = None,
        local: bool = False,
    ) -> int:
        """Send bytes, a JSON value or an Arrow batch to all who subscribe now, and return the message's number.

        A message comes at most once, and is not stored for who is not there. Of a retained topic (`hub.topic`) it is
        stored when this returns, and its number is its offset. `local` stays in this hub object and needs no broker.
        """
        timeout = self._timeout if timeout is None else seconds(timeout)
        if self._sockets.is_stopped:
            self._sockets.check_open()
        kind, body, large = (BYTES, payload, None) if type(payload) is bytes else _encoded(payload)
        head = encode_headers(headers) if headers else b""
        began_at = time.monotonic()
        if type(topic) is not str:
            topic = check_topic(text(topic, "topic"))
        if local is not False and flag(local, "local"):
            return self._publish_locally(topic, kind, head, body, large, began_at + timeout)
        numbered = self._numbered.get(topic)
        hello = self._connection.hello
        if numbered is None or began_at >= numbered.ask_at or hello is None or hello is not self._noted:
            numbered = self._ask_whether_retained(topic, timeout)
        if numbered.retained is not None:
            kind, body = (kind, body) if large is None else encode_payload(large)
            message = RetainedMessage(payload=body, kind=NAME_OF[kind], headers=headers or {})
            remaining = max(began_at + timeout - time.monotonic(), 0.0)
            return self._publish_retained(numbered, numbered.retained, [message], remaining)
        deadline = began_at + timeout
        if not self._sending.acquire(blocking=False):
            self._await_turn(deadline)
        try:
            numbered = self._numbered.get(topic) or self._new_topic(topic, self._numbered)
            number = numbered.number
            if large is not None:
                body = self._blocks.put(large)
            if len(head) + len(body) <= PIECE_BYTES:  # as nearly all are
                rest = REST.pack(number, time.time(), len(head), kind)
                self._sender.send(numbered.start + rest + head + body, deadline)
            else:
                check_size(len(head) + len(body))
                for frame in frames_of(numbered.start, number, time.time(), kind, head, body):
                    self._sender.send(frame, deadline)
            numbered.number = number + 1
            return number
        finally:
            self._sending.release()

    def publish_all(self, topic: str, payloads: Sequence[Any], *, timeout: float) -> int:
        """Publish many to a retained topic and return the offset of the first; 0 where there are none.

        All of them are stored, in their order, when this returns. They are sent in pieces, each of which has the
        timeout for itself; when one fails, those before it are stored.
        """
        if isinstance(payloads, str | bytes | bytearray | memoryview | Mapping):
            kind = type(payloads).__name__
            raise InvalidRequest(f"payloads is a list of messages, not one {kind}: use publish, or [message]")
        encoded = [_encoded_item(index, payload) for index, payload in enumerate(payloads)]
        if not encoded:
            return 0
        numbered = self._ask_whether_retained(topic, timeout)
        if numbered.retained is None:
            raise TopicNotFound(f"topic {topic!r} is not retained", topic=topic)
        messages = [RetainedMessage(payload=body, kind=NAME_OF[kind]) for kind, body in encoded]
        offsets = [self._publish_retained(numbered, numbered.retained, piece, timeout) for piece in pieces(messages)]
        return offsets[0]

    def close(self) -> None:
        with self._sending:
            self._sender.close()

    # -- inside --------------------------------------------------------------------------------------------

    def _publish_locally(self, topic: str, kind: int, head: bytes, body: bytes, large: Any, deadline: float) -> int:
        check_size(len(head) + len(body))
        self._await_turn(deadline)
        try:
            numbered = self._numbered_locally.get(topic) or self._new_topic(topic, self._numbered_locally)
            number = numbered.number
            if large is not None:
                body = self._blocks.put(large)
            rest = REST.pack(number, time.time(), len(head), kind)
            self._local_routes.deliver(numbered.start + rest + head + body)
            self._local_routes.wake()
            numbered.number = number + 1
            return number
        finally:
            self._sending.release()

    def _await_turn(self, deadline: float) -> None:
        """Take the lock of what is sent; raise SendTimeout if other threads hold it for too long."""
        if not self._sending.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            raise SendTimeout("other threads were publishing until the timeout was over")

    def _ask_whether_retained(self, topic: str, timeout: float) -> _Numbered:
        numbered = self._numbered.get(topic) or self._new_topic(topic, self._numbered)
        asked_at = time.monotonic()
        try:
            is_retained = bool(
                self._follower.topics([topic], timeout=timeout, asked_by=(self._publisher.hex(), self._process))
            )
        except BrokerUnavailable as missing:
            if numbered.retained is not None:
                return numbered  # it waits for the broker to come back
            raise without_broker(missing) from missing
        with self._knowing:
            self._note_broker()
            if not is_retained:
                numbered.retained = None
            elif numbered.retained is None:
                numbered.retained = RetainedPublisher(self._connection, topic, client=self._publisher.hex())
            numbered.ask_at = asked_at + PLAIN_SECONDS
        return numbered

    def _publish_retained(
        self, numbered: _Numbered, retained: RetainedPublisher, messages: list[RetainedMessage], timeout: float
    ) -> int:
        try:
            return retained.publish(messages, timeout=timeout)
        except TopicNotFound:
            numbered.ask_at, numbered.retained = 0.0, None
            raise

    def _note_broker(self) -> None:
        """Count a restart of the broker: one that is killed loses the messages that it had not yet sent on."""
        hello, noted = self._connection.hello, self._noted
        if hello is None:
            return  # lost again already: the next publication asks
        self._noted = hello
        if noted is not None and noted.broker_id != hello.broker_id:
            self.interruptions += 1
            log.warning(
                "the broker was restarted: what this client published to topics that are not retained in the moments"
                " before may not have reached its subscribers"
            )

    def _new_topic(self, topic: str, known: dict[str, _Numbered]) -> _Numbered:
        numbered = _Numbered(topic, self._publisher)
        with self._knowing:
            if len(known) >= MOST_TOPICS and topic not in known:
                del known[next(iter(known))]
            return known.setdefault(topic, numbered)


def _encoded(payload: Any) -> tuple[int, bytes, Any]:
    """Return the kind of a payload and its bytes; of large Arrow data no bytes, but the data, for shared memory."""
    if type(payload) not in PLAIN_TYPES:
        payload = as_arrow(payload)
        if is_large(payload):
            return arrow_kind(payload) | IN_BLOCK, b"", payload
    return *encode_payload(payload), None


def _encoded_item(index: int, payload: Any) -> tuple[int, bytes]:
    try:
        kind, body = encode_payload(payload)
        check_retained_size(len(body))
    except HubError as error:
        raise type(error)(f"payloads[{index}]: {error.message}", **error.details) from None
    return kind, body
