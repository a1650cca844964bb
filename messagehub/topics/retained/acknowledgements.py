"""What a durable subscriber tells the broker of the messages that it holds: done, or given back."""

import time
from collections.abc import Callable, Sequence

from messagehub.client.connection import Connection
from messagehub.errors import (
    BrokerUnavailable,
    ConfigurationError,
    HubError,
    NotRegistered,
    RateLimited,
    SendTimeout,
    is_unable,
)
from registry import commands
from registry.records import TopicPosition

RETRY_SECONDS = 0.02
MOST_AT_ONCE = 1_000


class Acknowledgements:
    """The acknowledgements of one subscription. Its messages refer to this, and to nothing else of the subscription."""

    def __init__(self, connection: Connection, position: TopicPosition, member_id: str, lease: str) -> None:
        self.on_said: Callable[[int, bool], None] = _nothing
        """Called with the offset of a message that its reader has acknowledged (True) or given back (False)."""
        self.is_abandoned = False
        self._connection = connection
        self._position = position
        self._member_id = member_id
        self._lease = lease

    def acknowledge(self, offset: int, timeout: float | None) -> None:
        self.say_done([offset], timeout)
        self.on_said(offset, True)

    def say_done(self, offsets: Sequence[int], timeout: float | None) -> None:
        """Acknowledge messages. When this returns, that is on the broker's disk."""
        of = self._position
        for begin in range(0, len(offsets), MOST_AT_ONCE):
            command = commands.AcknowledgeMessages(
                topic=of.topic,
                position=of.name,
                incarnation=of.incarnation,
                offsets=list(offsets[begin : begin + MOST_AT_ONCE]),
            )
            self._say(command, timeout)

    def give_back(self, offset: int, timeout: float | None) -> None:
        self._say(self._return([offset], unseen=False), timeout)
        self.on_said(offset, False)

    def say_unseen(self, offsets: Sequence[int], timeout: float) -> None:
        """Give back messages that no reader got, so that they do not count as delivered."""
        for begin in range(0, len(offsets), MOST_AT_ONCE):
            self._say(self._return(offsets[begin : begin + MOST_AT_ONCE], unseen=True), timeout)

    def _return(self, offsets: Sequence[int], *, unseen: bool) -> commands.ReturnMessages:
        of = self._position
        return commands.ReturnMessages(
            topic=of.topic,
            position=of.name,
            incarnation=of.incarnation,
            member_id=self._member_id,
            lease=self._lease,
            offsets=list(offsets),
            unseen=unseen,
        )

    def _say(self, command: commands.Command, timeout: float | None) -> None:
        """Send it until the broker has it or refuses it, or until the timeout. Saying it twice is harmless."""
        if self.is_abandoned:
            raise ConfigurationError("the message was received by the parent process, which has to acknowledge it")
        limit = self._connection.settings.request_timeout_seconds
        timeout = limit if timeout is None else timeout
        deadline = time.monotonic() + timeout
        why: HubError | None = None
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                self._connection.request(command, timeout=min(remaining, limit))
            except (BrokerUnavailable, RateLimited, NotRegistered) as failed:  # registered again after a restart, soon
                why = failed
            except HubError as failed:
                if not is_unable(failed):
                    raise
                why = failed
            else:
                return
            time.sleep(max(min(RETRY_SECONDS, deadline - time.monotonic()), 0.0))
        raise SendTimeout(
            f"the broker did not confirm in {timeout:g} s what position {self._position.name!r} of topic"
            f" {self._position.topic!r} acknowledged: the message may come again"
        ) from why


def _nothing(_: int, __: bool) -> None:
    """Do nothing: no subscription listens yet."""
