"""The accounts of a storm, with histories that are made up: each promise that is broken is seen, and named."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from messagehub import MessageHub
from tests.conftest import QUICK
from tests.faults.chaos import checker
from tests.faults.chaos.history import History, Writer
from tests.faults.chaos.roles import KEEP, RETAINED, checked, payload
from tests.integration.harness import Embedded, hub_of

pytestmark = pytest.mark.usefixtures("no_leaks")


class Told:
    """A history that a test writes itself, a process at a time."""

    def __init__(self, directory: Path) -> None:
        self.history = History(directory)
        self._writers: list[Writer] = []

    def process(self, role: str) -> Writer:
        self._writers.append(Writer(self.history.next_file(role), role))
        return self._writers[-1]

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path / "history")
    yield made
    made.close()


def test_a_loss_that_was_not_counted_is_seen(told: Told) -> None:
    subscriber = told.process("hear_plain")
    subscriber.note("missed", missed=3, lost=3)
    assert checker.losses_were_counted(told.history) == 3
    subscriber.note("missed", missed=5, lost=4)
    with pytest.raises(AssertionError, match=r"missed 5 messages of chaos\.plain, and `lost` said 4"):
        checker.losses_were_counted(told.history)


# -- services ----------------------------------------------------------------------------------------------------


@pytest.fixture
def answered(told: Told) -> Told:
    """One request of caller 7 that was handled and answered."""
    told.process("serve").note("handled", caller=7, number=1)
    told.process("call").note("replied", pid=7, numbers=[1])
    return told


def test_a_request_that_was_handled_twice_is_seen(answered: Told) -> None:
    assert checker.requests_were_handled_once(answered.history) == {"replies": 1, "unanswered": 0}
    answered.process("serve").note("handled", caller=7, number=1)
    with pytest.raises(AssertionError, match=r"request \(7, 1\) was handled twice"):
        checker.requests_were_handled_once(answered.history)


def test_a_reply_that_no_worker_gave_is_seen(answered: Told) -> None:
    answered.process("call").note("replied", pid=8, numbers=[4])
    with pytest.raises(AssertionError, match=r"nobody handled, but somebody answered \[\(8, 4\)\]"):
        checker.requests_were_handled_once(answered.history)


def test_no_response_is_explained_by_a_worker_that_ended_and_by_nothing_else(answered: Told) -> None:
    now = time.time()
    storm, caller = answered.process("storm"), answered.process("call")
    storm.note("ended", target="call", at=now)
    storm.note("ended", target="serve", at=now - 100)
    caller.note("unanswered", asked_at=now - 1, number=9, error="it ended", at=now)
    with pytest.raises(AssertionError, match="got no response although its worker lived: it ended"):
        checker.requests_were_handled_once(answered.history)
    storm.note("ended", target="serve", at=now)
    assert checker.requests_were_handled_once(answered.history) == {"replies": 1, "unanswered": 1}


# -- retained topics ---------------------------------------------------------------------------------------------


@pytest.fixture
def hub(embedded: Callable[..., Embedded]) -> Iterator[MessageHub]:
    with hub_of(embedded(**QUICK)) as connected:
        yield connected


@pytest.fixture
def stored(told: Told, hub: MessageHub) -> Told:
    """Three messages that were published, acknowledged and heard."""
    topic = hub.topic(RETAINED, keep=KEEP)
    publisher, subscriber = told.process("publish_retained"), told.process("replay")
    for number in (1, 2, 3):
        sent = payload(number, 100)
        offset = topic.publish(sent)
        publisher.note("stored", offset=offset, number=number)
        subscriber.note("heard", offset=offset, writer=checked(sent)[0], number=number)
    assert checker.retained_messages_are_whole(told.history, hub) == {"retained": 3, "replayed": 3}
    return told


def test_an_acknowledged_message_that_is_lost_is_seen(stored: Told, hub: MessageHub) -> None:
    stored.process("publish_retained").note("stored", offset=4, number=4)
    with pytest.raises(AssertionError, match="was acknowledged at offset 4, where None is stored"):
        checker.retained_messages_are_whole(stored.history, hub)


def test_a_message_that_is_stored_twice_is_seen(stored: Told, hub: MessageHub) -> None:
    hub.topic(RETAINED).publish(payload(2, 100))
    with pytest.raises(AssertionError, match="is stored twice, at 2 and at 4"):
        checker.retained_messages_are_whole(stored.history, hub)


def test_a_subscriber_that_got_a_message_that_was_never_stored_is_seen(stored: Told, hub: MessageHub) -> None:
    stored.process("replay").note("heard", pid=5, offset=3, writer=6, number=7)
    with pytest.raises(AssertionError, match=r"subscriber 5 got \(6, 7\) at offset 3"):
        checker.retained_messages_are_whole(stored.history, hub)


@pytest.mark.parametrize("offsets", [(1, 3), (2, 2)])
def test_a_subscriber_that_missed_a_message_or_got_it_twice_is_seen(
    stored: Told, hub: MessageHub, offsets: tuple[int, int]
) -> None:
    (writer, *_) = (line["pid"] for line in stored.history.lines("publish_retained"))
    subscriber = stored.process("replay")
    for offset in offsets:
        subscriber.note("heard", pid=5, offset=offset, writer=writer, number=offset)
    with pytest.raises(AssertionError, match=f"subscriber 5 got offset {offsets[1]} of .* after {offsets[0]}"):
        checker.retained_messages_are_whole(stored.history, hub)


def test_the_newest_line_of_a_kind_is_found_in_whichever_process(told: Told) -> None:
    assert told.history.last("replay", "heard") is None
    told.process("replay").note("heard", offset=1)
    told.process("replay").note("started")
    found = told.history.last("replay", "heard")
    assert found is not None
    assert found["offset"] == 1
