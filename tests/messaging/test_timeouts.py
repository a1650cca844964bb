"""What ends at its deadline is a TimeoutError, as everything else in Python is, and still a HubError."""

import pickle

import pytest

from messagehub import HubError, MessageHub
from messagehub.errors import BrokerTimeout, BrokerUnavailable, ReceiveTimeout, RequestTimeout, SendTimeout
from messagehub.jupyter.outputs import ExecutionTimedOut, KernelNotReady
from tests.integration.harness import Served
from tests.messaging.service_harness import SECONDS, Gate, patient_hub

KINDS = [RequestTimeout, BrokerTimeout, SendTimeout, ReceiveTimeout, ExecutionTimedOut, KernelNotReady]


@pytest.mark.parametrize("kind", KINDS)
def test_every_timeout_is_in_both_trees_and_keeps_its_details(kind: type[HubError]) -> None:
    error = pickle.loads(pickle.dumps(kind("too late", address="service:x")))
    assert isinstance(error, TimeoutError)
    assert isinstance(error, HubError)
    assert isinstance(error, BrokerUnavailable) == (kind is BrokerTimeout)
    assert (str(error), error.message, error.details) == ("too late", "too late", {"address": "service:x"})
    assert error.retryable


def test_a_request_that_is_not_answered_in_time_raises_timeout_error(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("service:slow", gate):
        with pytest.raises(TimeoutError):
            caller.request("service:slow", timeout=0.1)
        with pytest.raises(TimeoutError):
            caller.begin_request("service:slow", timeout=0.1).result()
        with pytest.raises(TimeoutError):
            list(caller.stream("service:slow", timeout=0.1))
        gate.opened.set()


def test_a_message_that_does_not_come_in_time_raises_timeout_error(caller: MessageHub) -> None:
    with caller.subscribe("nothing.comes", timeout=SECONDS) as subscription, pytest.raises(TimeoutError):
        subscription.receive(timeout=0.05)
