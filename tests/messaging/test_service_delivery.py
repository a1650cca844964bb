"""What becomes of a message: retries, dead letters, mailboxes, the registry, every error, exact numbers."""

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import (
    BrokerRequired,
    ConfigurationError,
    DuplicateRegistration,
    HubError,
    MailboxClosed,
    MailboxFull,
    NameNotFound,
    NoResponse,
    NotInitialised,
    NotRegistered,
    RegistryError,
    RequestTimeout,
    RouteError,
    SendTimeout,
    ServiceNotFound,
)
from messagehub.services.context import ServiceContext, ServiceMessage
from registry import commands, replies
from registry.services.workers import MOST_ADDRESSES
from tests.integration.harness import Peer, Served, eventually
from tests.messaging.service_harness import (
    SECONDS,
    SOON,
    Gate,
    WorkerProcess,
    connection_of,
    connections,
    has_waiting,
    metrics,
    patient_hub,
    sender_of,
    worker_of,
)

# -- delivery, retries, dead letters ---------------------------------------------------------------------------


def test_send_returns_when_the_mailbox_has_it_and_keeps_order(
    worker: Callable[..., WorkerProcess], caller: MessageHub, tmp_path: Path
) -> None:
    worker("name:log", mailbox=1000)
    for number in range(200):
        caller.send("name:log", {"touch": str(tmp_path / "log"), "mark": number}, timeout=SECONDS)
    caller.request("name:log", {}, timeout=SECONDS)
    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(200)]


def test_what_is_not_there_yet_is_tried_again_with_growing_pauses_until_it_is(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(caller.request, "service:late", {}, timeout=60, retries=1000)
        eventually(lambda: metrics(caller)["retried"] >= 3)
        process = worker("service:late")
        assert asked.result(SECONDS)["pid"] == process.pid
    assert caller.dead_letters().letters == []


def test_after_n_retries_the_error_is_raised_and_the_message_is_kept(broker: Served, caller: MessageHub) -> None:
    started = time.monotonic()
    with pytest.raises(ServiceNotFound):
        caller.send("service:gone", {"n": 1}, headers={"trace": "t"}, retries=3, timeout=SECONDS)
    assert time.monotonic() - started >= (0.02 + 0.04 + 0.08) / 2  # the pauses, at their shortest
    assert metrics(caller)["retried"] == 3
    (letter,) = eventually(lambda: caller.dead_letters().letters)
    assert (letter.address, letter.code, letter.form, letter.attempts) == (
        *("service:gone", "SERVICE_NOT_FOUND", "send"),
        4,
    )
    assert (letter.headers, letter.payload_kind, letter.payload_base64) == ({"trace": "t"}, "json", "eyJuIjoxfQ==")
    assert letter.sender == sender_of(broker, caller)
    assert caller.dead_letters("service:other").letters == []


def test_what_a_handler_raised_is_neither_tried_again_nor_a_dead_letter(broker: Served, caller: MessageHub) -> None:
    """Although the same error would be, had it come from the way to the worker."""
    errors: list[HubError] = [ServiceNotFound("of its own"), MailboxFull("of its own"), NoResponse("of its own")]
    with patient_hub(broker) as hub:

        def fail(message: ServiceMessage, context: ServiceContext) -> None:
            raise errors[message.payload]

        hub.serve("name:failing", fail)
        for number, error in enumerate(errors):
            with pytest.raises(type(error), match="of its own"):
                caller.request("name:failing", number, retries=5, idempotent=True, timeout=SECONDS)
        eventually(lambda: metrics(hub)["handled"] == len(errors))
    assert (metrics(caller)["retried"], metrics(caller)["dead_letters"]) == (0, 0)


def test_retries_end_at_the_timeout(caller: MessageHub) -> None:
    started = time.monotonic()
    with pytest.raises(ServiceNotFound):
        caller.request("service:gone", b"", retries=1000, timeout=4.0)
    assert time.monotonic() - started < 4.0 + SOON


def test_a_large_dead_letter_is_kept_without_its_payload(caller: MessageHub) -> None:
    with pytest.raises(NameNotFound):
        caller.send("name:gone", b"x" * 100_000)
    (letter,) = eventually(lambda: caller.dead_letters().letters)
    assert (letter.payload_base64, letter.payload_bytes) == (None, 100_000)


# -- mailboxes -------------------------------------------------------------------------------------------------


def fill(hub: MessageHub, caller: MessageHub, address: str, gate: Gate, size: int) -> None:
    """One in the handler, `size` in the mailbox."""
    caller.send(address, "running", timeout=SECONDS)
    assert gate.entered.acquire(timeout=SECONDS)
    for number in range(size):
        caller.send(address, number, priority="high", timeout=SECONDS)


def test_a_full_mailbox_refuses_when_error_is_asked_for(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("name:full", gate, mailbox=2, overflow="error"):
        fill(hub, caller, "name:full", gate, 2)
        for ask in (caller.request, caller.send):
            with pytest.raises(MailboxFull):
                ask("name:full", "more", timeout=SECONDS)
        assert metrics(hub)["refused"] == 2
        gate.opened.set()
        assert caller.request("name:full", "more", retries=50, timeout=SECONDS) == "more"
    assert gate.seen == ["running", 0, 1, "more"]


def test_a_full_mailbox_drops_when_drop_is_asked_for(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("name:full", gate, mailbox=2, overflow="drop"):
        fill(hub, caller, "name:full", gate, 2)
        caller.send("name:full", "lost", timeout=SECONDS)
        with pytest.raises(NoResponse, match="dropped"):
            caller.request("name:full", "asked", timeout=SECONDS)
        assert metrics(hub)["dropped"] == 2
        (letter,) = eventually(lambda: caller.dead_letters().letters)
        assert (letter.payload_base64, letter.sender) == ("Imxvc3Qi", sender_of(broker, caller))
        gate.opened.set()
    assert gate.seen == ["running", 0, 1]


def test_a_full_mailbox_has_senders_wait_when_block_is_asked_for(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with (
        patient_hub(broker) as hub,
        patient_hub(broker) as impatient,
        hub.serve("name:full", gate, mailbox=2, overflow="block"),
        ThreadPoolExecutor(1) as threads,
    ):
        fill(hub, caller, "name:full", gate, 2)
        with pytest.raises(SendTimeout):
            impatient.send("name:full", "too late", timeout=4.0)  # time to reach the mailbox
        waiting = threads.submit(caller.request, "name:full", "patient", timeout=SECONDS)
        eventually(lambda: metrics(caller)["sent"] == 4)
        assert metrics(hub)["received"] == 3
        gate.opened.set()
        assert waiting.result(SECONDS) == "patient"
        eventually(lambda: metrics(hub)["expired"] == 1)
    assert gate.seen == ["running", 0, 1, "patient"]
    assert metrics(hub)["received"] == 5


def test_by_default_high_waits_normal_is_refused_low_is_dropped_and_high_goes_first(
    broker: Served, caller: MessageHub
) -> None:
    gate = Gate()
    with (
        patient_hub(broker) as hub,
        patient_hub(broker) as other,
        hub.serve("name:full", gate, mailbox=3) as full,
        ThreadPoolExecutor(1) as threads,
    ):
        caller.send("name:full", "running", timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        for priority in ("low", "normal", "high"):
            caller.send("name:full", priority, priority=priority, timeout=SECONDS)  # type: ignore[arg-type]
        caller.send("name:full", "dropped", priority="low", timeout=SECONDS)
        with pytest.raises(MailboxFull):
            caller.send("name:full", "refused", priority="normal", timeout=SECONDS)
        waiting = threads.submit(other.send, "name:full", "waited", priority="high", timeout=SECONDS)
        eventually(lambda: has_waiting(full))  # not only sent: else the mailbox may be empty before it is read
        assert not waiting.done()
        gate.opened.set()
        waiting.result(SECONDS)
    assert gate.seen[:2] == ["running", "high"]
    assert sorted(gate.seen) == sorted(["running", "high", "normal", "low", "waited"])
    assert gate.seen.index("waited") < gate.seen.index("low")
    counted = metrics(hub)
    assert (counted["received"], counted["handled"], counted["dropped"], counted["refused"]) == (7, 5, 1, 1)


def test_a_request_that_expired_in_the_mailbox_is_not_handled_but_what_was_sent_is(
    broker: Served, caller: MessageHub
) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("name:busy", gate):
        caller.send("name:busy", "running", timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        caller.send("name:busy", "sent", timeout=4.0)
        with pytest.raises(RequestTimeout):
            caller.request("name:busy", "asked", timeout=4.0)
        gate.opened.set()
        assert caller.request("name:busy", "last", timeout=SECONDS) == "last"
        # private: that a request expired unseen is told to a caller who has given up, and is counted nowhere
        eventually(lambda: connection_of(caller)._late == 0)
    assert gate.seen == ["running", "sent", "last"]
    assert metrics(hub)["expired"] == metrics(caller)["timeouts"] == 1
    assert metrics(caller)["late_replies"] == 0


def test_a_busy_service_does_not_hold_up_another_of_its_process(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("name:slow", gate), hub.serve("name:quick", lambda message, context: 1):
        slow = [caller.begin_request("name:slow", n, timeout=SECONDS) for n in range(3)]
        assert gate.entered.acquire(timeout=SECONDS)
        for _ in range(50):
            quick = [caller.begin_request(f"name:{name}", 0, timeout=SECONDS) for name in ("quick", "quick")]
            assert [each.result() for each in quick] == [1, 1]
        gate.opened.set()
        assert [each.result() for each in slow] == [0, 1, 2]


def test_a_policy_can_be_given_for_one_priority(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("name:full", gate, mailbox=1, overflow={"normal": "drop"}):
        fill(hub, caller, "name:full", gate, 1)
        caller.send("name:full", "lost", timeout=SECONDS)
        assert metrics(hub)["dropped"] == 1
        gate.opened.set()


# -- the registry ----------------------------------------------------------------------------------------------


def test_of_many_who_register_one_name_at_once_one_wins(broker: Served) -> None:
    hubs = [MessageHub(endpoint=broker.endpoint) for _ in range(8)]
    start = threading.Barrier(8)

    def register(hub: MessageHub) -> str:
        start.wait(SECONDS)
        try:
            return hub.serve("name:one", lambda message, context: None).worker_id
        except DuplicateRegistration:
            return ""

    try:
        with ThreadPoolExecutor(8) as threads:
            won = [worker_id for worker_id in threads.map(register, hubs) if worker_id]
        assert len(won) == 1
        (listed,) = hubs[0].services("name:")
        assert [each.worker_id for each in listed.workers] == won
    finally:
        for hub in hubs:
            hub.close()


def test_a_name_is_free_as_soon_as_its_process_was_killed(
    broker: Served, worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    first = worker("name:one")
    with pytest.raises(DuplicateRegistration) as caught:
        caller.serve("name:one", lambda message, context: None)
    assert caught.value.details["pid"] == first.pid
    first.kill()
    with caller.serve("name:one", lambda message, context: "second"), patient_hub(broker) as other:
        assert other.request("name:one") == "second"


def test_unregistering_an_unknown_is_an_error(caller: MessageHub) -> None:
    with pytest.raises(NotRegistered):
        caller.ask(commands.UnregisterWorker(worker_id="nobody", lease=caller.lease))


def test_a_refused_registration_leaves_nothing_behind(broker: Served, caller: MessageHub) -> None:
    with patient_hub(broker) as hub, hub.serve("name:one", lambda message, context: 1):
        with pytest.raises(DuplicateRegistration):
            caller.serve("name:one", lambda message, context: 2)
        assert [s.address for s in caller.services()] == ["name:one"]
        assert caller.request("name:one") == 1


# -- the eleven conditions (not found, both timeouts, duplicates and pools are above) --------------------------


def test_a_closed_mailbox_says_so(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, ThreadPoolExecutor(2) as threads:
        ending = hub.serve("name:ending", gate)
        worker = worker_of(hub, "name:ending")
        caller.send("name:ending", "running", timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        queued = threads.submit(caller.request, "name:ending", "queued", timeout=SECONDS)
        eventually(lambda: metrics(hub)["received"] == 2)
        closing = threads.submit(ending.close, timeout=0.3)
        eventually(lambda: ending.mailbox.is_closed)
        assert connections(worker) == 1 or queued.done()
        with pytest.raises((MailboxClosed, NameNotFound)):
            caller.request("name:ending", "more", timeout=SECONDS)
        with pytest.raises(MailboxClosed):
            queued.result(SECONDS)
        closing.result(SECONDS)
        ending.close()  # again
        gate.opened.set()


def test_closing_handles_what_was_taken(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, ThreadPoolExecutor(1) as threads:
        ending = hub.serve("name:ending", gate)
        for number in range(4):
            caller.send("name:ending", number, timeout=SECONDS)
        closing = threads.submit(ending.close)
        eventually(lambda: ending.mailbox.is_closed)
        gate.opened.set()
        closing.result(SECONDS)
    assert gate.seen == [0, 1, 2, 3]


def test_a_stopped_worker_gives_a_send_timeout_when_it_takes_nothing_more(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    process = worker("service:stopped")
    caller.request("service:stopped", {})
    process.signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(caller.request, "service:stopped", b"x" * 2**19, timeout=1.0)
        eventually(lambda: metrics(caller)["sent"] >= 1)
        with pytest.raises(SendTimeout):
            caller.request("service:stopped", b"y" * 2**19, timeout=0.5)
        with pytest.raises((SendTimeout, RequestTimeout)):
            first.result(SECONDS)
    process.signal(signal.SIGCONT)
    assert caller.request("service:stopped", b"again", timeout=SECONDS) == b"again"


def test_a_stopped_worker_that_was_never_reached_gives_a_send_timeout(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    process = worker("service:stopped")
    process.signal(signal.SIGSTOP)
    with pytest.raises(SendTimeout):
        caller.request("service:stopped", {}, timeout=4.0)


def test_a_worker_that_cannot_be_reached_is_a_route_error(broker: Served, caller: MessageHub) -> None:
    with Peer(broker.endpoint) as peer:
        for name, endpoint in (("one", "unix:@messagehub-nobody"), ("two", "tcp://elsewhere:1")):
            registered = peer.ask(
                {
                    "type": "SERVICE_REGISTER",
                    "address": f"name:{name}",
                    "worker_id": name,
                    "endpoint": endpoint,
                    "key": "k",
                    "lease": "L",
                }
            )
            assert registered["type"] == "SERVICE_REGISTER_ACK"
            with pytest.raises(RouteError):
                caller.request(f"name:{name}", timeout=SECONDS)


def test_a_stranger_in_the_place_of_a_worker_is_a_route_error_and_a_wrong_key_gets_nothing(
    broker: Served, caller: MessageHub
) -> None:
    handled: list[Any] = []
    with patient_hub(broker) as hub, hub.serve("name:one", lambda message, context: handled.append(1)):
        resolved = caller.ask(commands.ResolveService(address="name:one"))
        assert isinstance(resolved, replies.ServiceResolved)
        (real,) = resolved.service.workers
        with Peer(broker.endpoint) as peer:
            forged = {"address": "name:two", "worker_id": "two", "endpoint": real.endpoint, "key": "wrong"}
            peer.ask({"type": "SERVICE_REGISTER", "lease": "L", **forged})
        with pytest.raises(RouteError):
            caller.request("name:two", timeout=SECONDS)
        assert handled == []
        assert metrics(hub)["malformed"] == 1


def test_a_full_registry_is_a_registry_error(broker: Served, caller: MessageHub) -> None:
    with Peer(broker.endpoint, kind=5) as dealer:  # DEALER, many requests in flight
        most = MOST_ADDRESSES // 2
        for number in range(most):
            said = {"address": f"name:n{number}", "worker_id": f"w{number}", "endpoint": "unix:@x", "key": "k"}
            dealer.send({"type": "SERVICE_REGISTER", "lease": "L", **said})
        for _ in range(most):
            assert dealer.receive()["type"] == "SERVICE_REGISTER_ACK"
        with pytest.raises(RegistryError):
            caller.serve("name:more", lambda message, context: None)


def test_a_closed_hub_is_not_initialised(broker: Served) -> None:
    hub = MessageHub(endpoint=broker.endpoint)
    hub.close()
    for ask in (hub.request, hub.send, hub.stream):
        with pytest.raises(NotInitialised):
            ask("name:x", b"")
    with pytest.raises(NotInitialised):
        hub.serve("name:x", lambda message, context: None)


def test_without_a_broker_services_say_so_at_once(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path) as hub:
        started = time.monotonic()
        for ask in (hub.request, hub.send, hub.stream):
            with pytest.raises(BrokerRequired):
                ask("name:x", b"", timeout=SECONDS)
        with pytest.raises(BrokerRequired):
            hub.serve("name:x", lambda message, context: None, timeout=SECONDS)
        assert time.monotonic() - started < SOON


# -- metrics ---------------------------------------------------------------------------------------------------


def test_metrics_are_exact_under_many_threads(broker: Served, caller: MessageHub) -> None:
    handled = threading.Semaphore(0)

    def count(message: ServiceMessage, context: ServiceContext) -> None:
        handled.release()

    with patient_hub(broker) as hub, hub.serve("name:count", count, concurrency=4, mailbox=10, overflow="error"):

        def ask(_: int) -> int:
            refused = 0
            for number in range(200):
                try:
                    (caller.send if number % 2 else caller.request)("name:count", number, timeout=SECONDS)
                except MailboxFull:
                    refused += 1
            return refused

        with ThreadPoolExecutor(16) as threads:
            refused = sum(threads.map(ask, range(16)))
        for _ in range(3200 - refused):
            assert handled.acquire(timeout=SECONDS)
    sent, received = metrics(caller), metrics(hub)
    assert sent["sent"] == received["received"] == 3200
    assert (received["handled"], received["refused"], received["dropped"]) == (3200 - refused, refused, 0)
    assert sent["dead_letters"] == refused
    assert (sent["retried"], sent["timeouts"], sent["late_replies"]) == (0, 0, 0)


def test_dead_letters_are_sent_again_and_those_that_fail_stay_once(caller: MessageHub) -> None:
    for number in range(3):
        with pytest.raises(ServiceNotFound):
            caller.request("service:back", {"n": number}, headers={"trace": "a"})
    with pytest.raises(ServiceNotFound):
        caller.send("service:gone", b"x")
    with pytest.raises(ServiceNotFound):
        caller.send("service:back", b"x" * 100_000)
    eventually(lambda: len(caller.dead_letters().letters) == 5)
    assert len({letter.number for letter in caller.dead_letters().letters}) == 5
    before = {letter.address: letter.number for letter in caller.dead_letters().letters}
    seen: list[Any] = []
    with caller.serve("service:back", lambda message, _: seen.append((message.payload, message.headers))):
        done = caller.resend_dead_letters()
        assert (done.sent, done.without_payload) == (3, 1)
        assert [(one.address, one.code) for one in done.failed] == [("service:gone", "SERVICE_NOT_FOUND")]
        gone = [letter.number for letter in caller.dead_letters("service:gone").letters]
        assert gone == [before["service:gone"]], "it stays as it is"
        eventually(lambda: len(seen) == 3)
    assert seen == [({"n": number}, {"trace": "a"}) for number in range(3)]

    def left() -> list[str]:
        return sorted(letter.address for letter in caller.dead_letters().letters)

    eventually(lambda: left() == ["service:back", "service:gone"])
    assert caller.resend_dead_letters("service:other").sent == 0
    assert left() == ["service:back", "service:gone"]


def test_resending_ends_at_its_deadline_and_leaves_the_rest(broker: Served, caller: MessageHub) -> None:
    for number in range(3):
        with pytest.raises(NameNotFound):
            caller.send("name:full", number)
    eventually(lambda: len(caller.dead_letters().letters) == 3)
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("name:full", gate, mailbox=2, overflow="block"):
        fill(hub, caller, "name:full", gate, 2)
        done = caller.resend_dead_letters(timeout=6.0)
        assert (done.sent, done.left) == (0, 2)
        assert [one.code for one in done.failed] == ["SEND_TIMEOUT"]
        gate.opened.set()
        assert caller.resend_dead_letters().sent == 3
        eventually(lambda: sorted(gate.seen[-3:], key=str) == [0, 1, 2])
    eventually(lambda: caller.dead_letters().letters == [])


def test_all_dead_letters_are_sent_again_oldest_first_and_a_limit_says_what_it_left(caller: MessageHub) -> None:
    for number in range(150):
        with pytest.raises(ServiceNotFound):
            caller.send("service:many", number)
    eventually(lambda: caller.dead_letters().kept == 150)
    assert [letter.address for letter in caller.dead_letters(limit=2)] == ["service:many"] * 2
    seen: list[Any] = []
    with caller.serve("service:many", lambda message, _: seen.append(message.payload), mailbox=1000):
        done = caller.resend_dead_letters("service:many", limit=20, timeout=SECONDS)
        assert (done.sent, done.left, done.failed) == (20, 130, [])
        done = caller.resend_dead_letters(timeout=SECONDS)
        assert (done.sent, done.left, done.failed) == (130, 0, [])
        eventually(lambda: len(seen) == 150)
    assert seen == list(range(150))
    for wrong in (0, -1, "5", 1001):
        with pytest.raises(ConfigurationError, match="limit"):
            caller.resend_dead_letters(limit=wrong)  # type: ignore[arg-type]


def test_letters_that_fail_keep_no_others_from_being_sent_again(broker: Served, caller: MessageHub) -> None:
    for address, error in (("service:gone", ServiceNotFound), ("name:full", NameNotFound), ("name:back", NameNotFound)):
        for number in range(3):
            with pytest.raises(error):
                caller.send(address, number)
    eventually(lambda: caller.dead_letters().kept == 9)
    gate, seen = Gate(), list[Any]()
    with patient_hub(broker) as hub, hub.serve("name:full", gate, mailbox=2, overflow="block"):
        fill(hub, caller, "name:full", gate, 2)
        with hub.serve("name:back", lambda message, _: seen.append(message.payload)):
            done = caller.resend_dead_letters(limit=3, timeout=6.0)
            eventually(lambda: len(seen) == 3)
        gate.opened.set()
    assert (done.sent, done.left, seen) == (3, 2, [0, 1, 2])
    assert [one.address for one in done.failed] == ["service:gone"] * 3 + ["name:full"]


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", True])
def test_retries_are_a_number_from_0_on(caller: MessageHub, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="retries"):
        caller.request("service:none", 1, retries=wrong)
    with pytest.raises(ConfigurationError, match="retries"):
        caller.send("service:none", 1, retries=wrong)


def test_many_retries_wait_for_a_worker_until_the_timeout(broker: Served, caller: MessageHub) -> None:
    with ThreadPoolExecutor() as threads, patient_hub(broker) as hub:
        asked = threads.submit(caller.request, "service:later", 1, timeout=SECONDS, retries=100)
        eventually(lambda: metrics(caller)["retried"] >= 3)
        with hub.serve("service:later", lambda message, _: "here"):
            assert asked.result() == "here"
