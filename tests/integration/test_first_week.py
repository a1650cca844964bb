"""What people typed in their first week, and what must not harm them."""

import copy
import enum
import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from messagehub import MessageHub
from messagehub.errors import InvalidName, ProducerAlreadyRegistered
from messagehub.shm.errors import PayloadRefused
from tests.conftest import QUICK
from tests.integration.harness import Embedded, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[MessageHub]:
    with MessageHub(dir=tmp_path) as opened:
        yield opened


class Channel(str, enum.Enum):  # noqa: UP042  as people write it; a StrEnum is an ordinary text
    CAMERA = "lab.camera"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps, lambda one: copy.deepcopy([{"it": one}])])
def test_what_holds_descriptors_cannot_be_copied_and_goes_on(hub: MessageHub, copied: Any) -> None:
    with hub.producer("c") as producer, hub.consumer("c") as consumer:
        held = set(os.listdir("/proc/self/fd"))
        for one in (producer, consumer, hub):
            with pytest.raises(TypeError, match=rf"a {type(one).__name__} cannot be copied or pickled"):
                copied(one)
        eventually(lambda: held.issuperset(os.listdir("/proc/self/fd")))  # a thread may open one for a moment
        producer.write(b"1")
        assert consumer.read(timeout=30.0) == b"1"


def test_a_closed_consumer_knows_where_it_stood(hub: MessageHub) -> None:
    with hub.producer("c") as producer:
        for number in range(4):
            producer.write(b"%d" % number)
        with hub.consumer("c", start="oldest") as consumer:
            assert [consumer.read(timeout=30.0) for _ in range(2)] == [b"0", b"1"]
        with hub.consumer("c", start=json.loads(json.dumps(consumer.position))) as again:
            assert again.read(timeout=30.0) == b"2"


@pytest.mark.parametrize("name", [np.array(["lab.camera"])[0], Channel.CAMERA])
def test_names_may_be_texts_of_other_classes(hub: MessageHub, name: str) -> None:
    with hub.producer(name) as producer, hub.consumer(name) as consumer:
        assert (producer.channel, consumer.channel) == ("lab.camera", "lab.camera")
        assert producer.shm_name.startswith("/pylabhub_lab.camera")
        found = hub.discover(name)
        assert found is not None
        assert found.channel == "lab.camera"


def test_a_second_producer_of_this_process_is_told_so(hub: MessageHub) -> None:
    with hub.producer("c") as producer, pytest.raises(ProducerAlreadyRegistered, match="made here, by this hub"):
        hub.producer(producer.channel)


@pytest.mark.parametrize("name", ["", "a b"])
def test_a_bad_group_or_role_is_refused_before_anybody_produces(hub: MessageHub, name: str) -> None:
    with pytest.raises(InvalidName):
        hub.consumer("nobody", group=name)
    with pytest.raises(InvalidName):
        hub.consumer("nobody", consumer_id=name)


def test_a_loan_is_a_number_of_whole_elements(hub: MessageHub) -> None:
    with hub.producer("c", schema="<f4") as producer, hub.consumer("c") as consumer:
        with pytest.raises(PayloadRefused, match="size 10 is not a multiple of 4"):
            producer.loan(10)
        with producer.loan(8) as loan:
            loan.buffer[:] = np.ones(2, "<f4").tobytes()
            with pytest.raises(PayloadRefused, match="size 6 is not a multiple of 4"):
                loan.commit(6)
            with pytest.raises(PayloadRefused, match="from 0 to the 8 bytes that were lent"):
                loan.commit(99)
        assert consumer.read(timeout=30.0).tolist() == [1.0, 1.0]


def test_a_consumer_says_what_it_is(hub: MessageHub) -> None:
    with hub.producer("c"), hub.consumer("c") as consumer:
        assert repr(consumer) == "<Consumer 'c': files>"
    assert repr(consumer) == "<Consumer 'c': closed>"


def test_what_a_hub_gives_shows_what_it_is(embedded: Callable[..., Embedded]) -> None:
    hub = MessageHub(endpoint=embedded(**QUICK).endpoint)
    assert repr(hub) == f"<MessageHub at {hub.settings.endpoint}: not connected>"
    hub.connect(required=True)
    assert repr(hub) == f"<MessageHub at {hub.settings.endpoint}: connected>"
    with hub.subscribe("a.>") as subscription, hub.watch() as everything, hub.watch("c") as one:
        assert repr(subscription) == "<Subscription 'a.>': 0 buffered, 0 lost>"
        assert everything.wait_current(30)
        assert repr(everything).startswith("<Watch of all channels: revision ")
        assert repr(one).startswith("<Watch of 'c': ")
    assert repr(subscription) == "<Subscription 'a.>': closed>"
    assert repr(everything) == "<Watch of all channels: closed>"
    assert repr(hub.topic("t")) == "<Topic 't'>"
    hub.close()
    assert repr(hub).endswith(": closed>")
