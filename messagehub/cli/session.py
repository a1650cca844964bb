"""One command's use of the hub: connected or refused, and closed at the end."""

import difflib
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from messagehub.cli.output import complain
from messagehub.errors import BrokerUnavailable, ChannelNotFound, Forbidden
from messagehub.settings import Settings

if TYPE_CHECKING:
    from messagehub.hub import MessageHub

Answer = TypeVar("Answer")
TURN_SECONDS = 0.2


def settings_for(endpoint: str | None, dir: Path | None, timeout: float | None) -> Settings:
    """A timeout that was asked for also holds for the first contact, which otherwise is given up early."""
    return Settings.for_client(
        endpoint=endpoint, dir=dir, request_timeout_seconds=timeout, hello_timeout_seconds=timeout
    )


@contextmanager
def opened(endpoint: str | None, dir: Path | None, timeout: float | None) -> Iterator["MessageHub"]:
    """A hub, whether a broker answers or not."""
    from messagehub.hub import MessageHub

    with MessageHub(settings_for(endpoint, dir, timeout)) as hub:
        yield hub


@contextmanager
def connected(endpoint: str | None, dir: Path | None, timeout: float | None) -> Iterator["MessageHub"]:
    """A hub that a broker answers; BrokerUnavailable is raised when none does."""
    with opened(endpoint, dir, timeout) as hub:
        hub.connect(required=True)
        yield hub


def found_in(hub: "MessageHub", ask: Callable[[], Answer]) -> Answer:
    """Return the broker's answer or, while none answers, what the directory of this host knows.

    Where that knows nothing either, nobody was asked who could say so: BrokerUnavailable is raised.
    """
    unavailable = None
    try:
        hub.connect(required=True)
    except BrokerUnavailable as error:
        unavailable = error
    answer = ask()
    if unavailable is None:
        return certain(hub, answer)
    if not answer:
        raise unavailable
    complain("messagehub: no broker answers; this is what the directory of this host knows")
    return answer


def schema_mode(hub: "MessageHub") -> str | None:
    """Return the mode that holds for all subjects, or None if this user may not ask for it."""
    from registry import commands, replies

    try:
        found = hub.ask(commands.RequestSchemaMode(default_to_global=True))
    except Forbidden:
        return None
    assert isinstance(found, replies.SchemaModeFound)
    return found.mode


def certain(hub: "MessageHub", answer: Answer) -> Answer:
    """The facade answers falsy when the broker went away; here nothing found and nobody asked must differ."""
    if not answer and (not hub.is_connected or hub.metrics()["timeouts"]):
        raise BrokerUnavailable("the broker ended before it answered", endpoint=hub.settings.endpoint)
    return answer


def check_known(hub: "MessageHub", channel: str) -> None:
    """Raise ChannelNotFound where nobody knows a channel of which nothing came: its name may be misspelled."""
    if hub.discover(channel) is None:
        said = f"nothing came, and nobody knows channel {channel!r}{near_name(hub, channel)}"
        raise ChannelNotFound(said, channel=channel)


def near_name(hub: "MessageHub", channel: str) -> str:
    """Return a hint at the channel whose name is nearest, blank where none is near."""
    near = difflib.get_close_matches(channel, [each.channel for each in hub.channels()], n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def connections(hub: "MessageHub") -> int:
    """Grows with every connection, so that a restart too quick to be seen as a loss is noticed too."""
    return int(hub.metrics()["connects"])


class Interrupt:
    """Whether SIGINT or SIGTERM has come. A flag, not an Event: a handler must not take a lock."""

    has_come = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        self.has_come = True


@contextmanager
def interrupt() -> Iterator[Interrupt]:
    """Ctrl-C and SIGTERM end the block's loop between two turns, so that it can say goodbye."""
    noted = Interrupt()
    before = {number: signal.signal(number, noted.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
