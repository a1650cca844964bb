"""The stream router on its own: time is a number here and nothing sleeps."""

import itertools
import queue
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagehub.errors import ConfigurationError
from messagehub.streams import (
    EXPIRED,
    JUPYTER_CATEGORIES,
    AmbiguousKind,
    CategoryMismatch,
    Cleanup,
    Collector,
    DuplicateRequest,
    RequestExpired,
    Routed,
    StreamLimits,
    StreamMessage,
    StreamRouter,
)


def typed_queues(router):
    return {category: queue.SimpleQueue() for category in router.categories}


def one_queue(router):
    inbox = queue.SimpleQueue()
    return inbox, dict.fromkeys(router.categories, inbox)


def drain(inbox):
    taken = []
    while not inbox.empty():
        taken.append(inbox.get_nowait())
    return taken


def text(request_id, body=None):
    return StreamMessage(request_id, "stream", body)


def status(request_id, state):
    return StreamMessage(request_id, "status", {"content": {"execution_state": state}})


@pytest.fixture
def router():
    router = StreamRouter()
    yield router
    stats = router.stats()
    assert stats.received == stats.routed + stats.orphans + stats.dropped


def test_concurrent_requests_each_get_only_their_own_messages(router):
    inboxes = {}
    for request_id in ("a", "b", "c"):
        inboxes[request_id], queues = one_queue(router)
        router.register(request_id, queues, now=0.0)
    for number, request_id in enumerate("abcacbbca"):
        assert router.route(text(request_id, number), now=1.0) is Routed.DELIVERED
    assert [m.body for m in drain(inboxes["a"])] == [0, 3, 8]
    assert [m.body for m in drain(inboxes["b"])] == [1, 5, 6]
    assert [m.body for m in drain(inboxes["c"])] == [2, 4, 7]


@pytest.mark.parametrize(
    ("kind", "category"),
    [(kind, category) for category, kinds in JUPYTER_CATEGORIES.items() for kind in sorted(kinds)],
)
def test_each_jupyter_kind_lands_in_its_one_queue(router, kind, category):
    queues = typed_queues(router)
    router.register("r", queues, now=0.0)
    router.route(StreamMessage("r", kind), now=0.0)
    assert {name: inbox.qsize() for name, inbox in queues.items()} == {
        name: int(name == category) for name in JUPYTER_CATEGORIES
    }


def test_an_unknown_kind_is_kept_as_an_orphan_and_counted(router):
    inbox, queues = one_queue(router)
    router.register("r", queues, now=0.0)
    assert router.route(StreamMessage("r", "debug_event"), now=0.0) is Routed.ORPHANED
    assert router.route(StreamMessage(None, "status"), now=0.0) is Routed.ORPHANED
    assert inbox.empty()
    assert (router.stats().orphans, router.stats().unknown) == (2, 1)


def test_an_unknown_kind_stays_an_orphan_when_its_request_registers(router):
    router.route(text("r", "early"), now=0.0)
    router.route(StreamMessage("r", "debug_event"), now=0.0)
    inbox, queues = one_queue(router)
    assert router.register("r", queues, now=1.0) == 1
    assert [m.body for m in drain(inbox)] == ["early"]
    assert router.stats().orphans == 1
    assert router.cleanup(now=60.0).orphans_dropped == 1


def test_categories_are_configurable():
    router = StreamRouter({"part": ["PART"], "end": ["DONE", "FAILED"]})
    queues = typed_queues(router)
    router.register("r", queues, now=0.0)
    for kind in ("PART", "PART", "DONE"):
        router.route(StreamMessage("r", kind), now=0.0)
    assert (queues["part"].qsize(), queues["end"].qsize()) == (2, 1)


def test_a_kind_in_two_categories_is_refused():
    with pytest.raises(AmbiguousKind, match="'x' is in 'one' and 'two'") as refused:
        StreamRouter({"one": ["x"], "two": ["x"]})
    assert refused.value.code == "AMBIGUOUS_KIND"


@pytest.mark.parametrize("categories", [["status"], [*JUPYTER_CATEGORIES, "extra"]])
def test_queues_that_do_not_match_the_categories_are_refused_and_change_nothing(router, categories):
    with pytest.raises(CategoryMismatch) as refused:
        router.register("r", {category: queue.SimpleQueue() for category in categories}, now=0.0)
    assert refused.value.code == "CATEGORY_MISMATCH"
    assert router.stats().active_requests == 0


def test_a_second_registration_of_a_request_is_refused_and_the_first_goes_on(router):
    inbox, queues = one_queue(router)
    router.register("r", queues, now=0.0)
    with pytest.raises(DuplicateRequest) as refused:
        router.register("r", typed_queues(router), now=0.0)
    assert refused.value.code == "DUPLICATE_REQUEST"
    router.route(text("r"), now=0.0)
    assert inbox.qsize() == 1


def test_a_full_queue_drops_and_counts_without_blocking(router):
    narrow = queue.Queue(maxsize=1)
    router.register("r", dict.fromkeys(router.categories, narrow), now=0.0)
    assert router.route(text("r"), now=0.0) is Routed.DELIVERED
    assert router.route(text("r"), now=0.0) is Routed.DROPPED
    assert (router.stats().routed, router.stats().dropped) == (1, 1)


def test_late_registration_replays_in_order_and_only_once(router):
    for number in range(3):
        assert router.route(text("r", number), now=0.0) is Routed.ORPHANED
        router.route(text("other", number), now=0.0)
    inbox, queues = one_queue(router)
    assert router.register("r", queues, now=1.0) == 3
    router.route(text("r", 3), now=1.0)
    assert [m.body for m in drain(inbox)] == [0, 1, 2, 3]
    assert router.unregister("r")
    assert router.register("r", queues, now=1.0) == 0
    assert router.stats().orphans == 3


def test_orphans_are_bounded_and_the_oldest_goes_first(router):
    for number in range(1003):
        router.route(text(f"r{number}", number), now=0.0)
    assert (router.stats().orphans, router.stats().dropped) == (1000, 3)
    inbox, queues = one_queue(router)
    assert router.register("r2", queues, now=0.0) == 0
    assert router.register("r3", queues, now=0.0) == 1
    assert [m.body for m in drain(inbox)] == [3]


@pytest.mark.parametrize(("age", "replayed"), [(59.9, 1), (60.0, 0)])
def test_an_orphan_is_gone_after_its_time_even_before_the_next_cleanup(router, age, replayed):
    router.route(text("r"), now=100.0)
    assert router.register("r", typed_queues(router), now=100.0 + age) == replayed


def test_cleanup_drops_old_orphans(router):
    router.route(text("old"), now=0.0)
    router.route(text("young"), now=30.0)
    assert router.cleanup(now=60.0) == Cleanup(expired=(), orphans_dropped=1)
    assert (router.stats().orphans, router.stats().dropped) == (1, 1)


def test_no_orphans_are_kept_when_the_limit_is_zero():
    router = StreamRouter(limits=StreamLimits(orphan_limit=0))
    router.route(text("r"), now=0.0)
    assert (router.stats().orphans, router.stats().dropped) == (0, 1)


def test_a_request_without_activity_is_dropped_and_reported(router):
    for request_id in ("idle", "active"):
        router.register(request_id, typed_queues(router), now=0.0)
    router.route(text("active"), now=200.0)
    assert router.cleanup(now=299.9).expired == ()
    assert router.cleanup(now=300.0).expired == (RequestExpired("idle", 300.0),)
    assert router.stats().active_requests == 1
    assert router.route(text("idle"), now=301.0) is Routed.ORPHANED
    assert not router.unregister("idle")


def test_cleanup_is_due_at_once_and_then_every_thirty_seconds(router):
    assert router.next_cleanup_at <= 0.0
    router.cleanup(now=100.0)
    assert router.next_cleanup_at == 130.0


def test_every_limit_is_configurable():
    limits = StreamLimits(orphan_limit=2, orphan_seconds=5.0, idle_seconds=7.0, cleanup_seconds=3.0)
    router = StreamRouter(limits=limits)
    router.register("r", typed_queues(router), now=0.0)
    for number in range(3):
        router.route(text("none", number), now=0.0)
    assert router.stats().orphans == 2
    assert router.cleanup(now=5.0) == Cleanup((), 2)
    assert router.next_cleanup_at == 8.0
    assert router.cleanup(now=8.0).expired == (RequestExpired("r", 8.0),)


@pytest.mark.parametrize("limits", [{"orphan_limit": -1}, {"idle_seconds": 0}, {"cleanup_seconds": -1}])
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(ConfigurationError, match="must be positive"):
        StreamLimits(**limits)


def test_a_tap_sees_every_message_before_routing_in_order(router):
    seen_first = []

    class Watching(queue.SimpleQueue):
        def put_nowait(self, item):
            seen_first.append(tap.read(timeout_seconds=0.0))
            super().put_nowait(item)

    tap = router.tap()
    router.register("r", dict.fromkeys(router.categories, Watching()), now=0.0)
    delivered, orphan, unknown = text("r"), text("nobody"), StreamMessage("r", "whatever")
    for message in (delivered, orphan, unknown):
        router.route(message, now=0.0)
    assert seen_first == [delivered]
    tap.close()
    assert list(tap) == [orphan, unknown]


def test_a_dead_tap_is_pruned_and_the_others_go_on(router):
    alive, closed, forgotten = router.tap(), router.tap(), router.tap()
    assert router.stats().subscribers == 3
    router.route(text("r", 1), now=0.0)
    closed.close()
    router.route(text("r", 2), now=0.0)
    assert router.stats().subscribers == 2
    del forgotten
    router.route(text("r", 3), now=0.0)
    assert router.stats().subscribers == 1
    assert [alive.read(0.0).body for _ in range(3)] == [1, 2, 3]
    assert closed.read(0.0).body == 1
    assert closed.read(0.0) is None


def test_a_lagging_tap_loses_the_oldest_and_counts_it(router):
    with router.tap(limit=2) as tap:
        for number in range(5):
            router.route(text("r", number), now=0.0)
    assert [m.body for m in tap] == [3, 4]
    assert tap.dropped == 3


def test_closing_a_tap_ends_a_waiting_reader(router):
    tap = router.tap()
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(tap))
    reader.start()
    router.route(text("r", 1), now=0.0)
    tap.close()
    reader.join(10)
    assert not reader.is_alive()
    assert [m.body for m in seen] == [1]


def test_stats_count_requests_orphans_subscribers_routed_and_dropped(router):
    tap = router.tap()
    router.register("r", typed_queues(router), now=0.0)
    router.route(text("r"), now=0.0)
    router.route(text("none"), now=0.0)
    stats = router.stats()
    assert (stats.active_requests, stats.orphans, stats.subscribers) == (1, 1, 1)
    assert (stats.received, stats.routed, stats.dropped) == (2, 1, 0)
    tap.close()


def test_the_collector_returns_when_idle_follows_busy(router):
    sequence = [status("r", "idle"), status("r", "busy"), text("r", "out"), status("r", "idle")]
    with Collector(router, "r", timeout_seconds=30.0) as collector:
        for message in [*sequence, text("r", "after")]:
            router.route(message, now=time.monotonic())
        collected = collector.collect()
    assert collected.is_complete
    assert collected.messages == tuple(sequence)
    assert router.stats().active_requests == 0


def test_the_collector_returns_what_came_at_its_timeout(router):
    with Collector(router, "r", timeout_seconds=0.05) as collector:
        router.route(status("r", "idle"), now=time.monotonic())
        router.route(text("r", "out"), now=time.monotonic())
        collected = collector.collect()
        assert not collected.is_complete
        assert [m.kind for m in collected.messages] == ["status", "stream"]
        router.route(status("r", "busy"), now=time.monotonic())
        router.route(status("r", "idle"), now=time.monotonic())
        assert collector.collect().is_complete


def test_the_collector_waits_for_another_thread(router):
    def kernel():
        for message in (status("r", "busy"), text("r", "out"), status("r", "idle")):
            router.route(message, now=time.monotonic())

    with Collector(router, "r", timeout_seconds=30.0) as collector:
        threading.Thread(target=kernel).start()
        assert collector.collect().is_complete


def test_the_collector_unregisters_also_on_an_exception(router):
    collector = Collector(router, "r", timeout_seconds=1.0)
    with pytest.raises(ZeroDivisionError), collector:
        1 / router.stats().orphans
    assert router.stats().active_requests == 0


def test_a_collector_for_other_vocabularies(router):
    router = StreamRouter({"part": ["PART"], "end": ["END"]})
    states = {"PART": "busy", "END": "idle"}
    with Collector(router, "r", timeout_seconds=30.0, state_of=lambda m: states[m.kind]) as collector:
        for kind in ("PART", "PART", "END"):
            router.route(StreamMessage("r", kind), now=time.monotonic())
        assert len(collector.collect().messages) == 3


REQUESTS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), REQUESTS),
        st.tuples(st.just("unregister"), REQUESTS),
        st.tuples(st.just("route"), REQUESTS),
        st.tuples(st.just("strange"), REQUESTS),
        st.tuples(st.just("cleanup"), st.just("")),
        st.tuples(st.just("wait"), st.just("")),
    ),
    max_size=60,
)


@given(STEPS)
def test_nothing_is_lost_doubled_or_crossed_whatever_the_order_of_calls(steps):
    """The router against a plain list of (time, message): slow, and easy to believe."""
    limits = StreamLimits(orphan_limit=5, orphan_seconds=3.0, idle_seconds=4.0)
    router = StreamRouter(limits=limits)
    inboxes, active, expected = {}, {}, {name: [] for name in "abc"}
    orphans, now, numbers = [], 0.0, itertools.count()
    for step, name in steps:
        if step == "wait":
            now += 1.0
        elif step == "register" and name not in active:
            inboxes.setdefault(name, queue.SimpleQueue())
            router.register(name, dict.fromkeys(router.categories, inboxes[name]), now=now)
            active[name] = now
            orphans = [(at, m) for at, m in orphans if now - at < 3.0]
            early = [m for _, m in orphans if m.request_id == name and m.kind == "stream"]
            expected[name] += early
            orphans = [(at, m) for at, m in orphans if m not in early]
        elif step == "unregister":
            assert router.unregister(name) is (active.pop(name, None) is not None)
        elif step in ("route", "strange"):
            message = StreamMessage(name, "stream" if step == "route" else "strange", next(numbers))
            router.route(message, now=now)
            if name in active:
                active[name] = now
            if name in active and step == "route":
                expected[name].append(message)
            else:
                orphans = [(at, m) for at, m in [*orphans, (now, message)] if now - at < 3.0][-5:]
        elif step == "cleanup":
            ended = router.cleanup(now=now).expired
            gone = {event.request_id for event in ended}
            for event in ended:
                expected[event.request_id].append(StreamMessage(event.request_id, EXPIRED, event))
            assert gone == {request for request, at in active.items() if now - at >= 4.0}
            active = {request: at for request, at in active.items() if request not in gone}
            orphans = [(at, m) for at, m in orphans if now - at < 3.0]
        stats = router.stats()
        assert stats.received == stats.routed + stats.orphans + stats.dropped
    assert {name: drain(inbox) for name, inbox in inboxes.items()} == {n: expected[n] for n in inboxes}
    router.cleanup(now=now)
    assert router.stats().orphans == len([m for at, m in orphans if now - at < 3.0])


@pytest.fixture
def restless_threads():
    """Threads change over every few instructions instead of every 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless_threads")
def test_sixteen_threads_lose_and_cross_nothing():
    """Each thread routes to its neighbour's requests while it registers, leaves and takes up its own again.

    Whatever is not registered at the moment is an orphan and comes back on the next registration, so every
    request must end up with all of its messages in order.
    """
    threads, requests_each, messages_each = 16, 20, 20
    total = threads * requests_each * messages_each
    router = StreamRouter(limits=StreamLimits(orphan_limit=total))
    inboxes = {(t, r): queue.SimpleQueue() for t in range(threads) for r in range(requests_each)}
    start = threading.Barrier(threads)

    def register(me, number):
        queues = dict.fromkeys(router.categories, inboxes[me, number])
        router.register(f"{me}-{number}", queues, now=time.monotonic())

    def work(me):
        shuffle = random.Random(me)
        neighbour = (me + 1) % threads
        start.wait(30)
        for number in range(messages_each):
            for request in range(requests_each):
                router.route(text(f"{neighbour}-{request}", (neighbour, request, number)), now=time.monotonic())
            own = shuffle.randrange(requests_each)
            if not router.unregister(f"{me}-{own}"):
                register(me, own)
            router.cleanup(now=time.monotonic())
            router.tap(limit=1).close()
        for request in range(requests_each):
            router.unregister(f"{me}-{request}")
            register(me, request)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, t) for t in range(threads)]:
            done.result(60)
    for (t, r), inbox in inboxes.items():
        assert [m.body for m in drain(inbox)] == [(t, r, n) for n in range(messages_each)]
    stats = router.stats()
    assert (stats.received, stats.routed, stats.orphans, stats.dropped) == (total, total, 0, 0)
    assert (stats.active_requests, stats.subscribers) == (len(inboxes), 0)


@pytest.mark.usefixtures("restless_threads")
def test_many_threads_routing_to_one_request_keep_each_threads_order():
    router = StreamRouter()
    inbox, queues = one_queue(router)
    router.register("r", queues, now=0.0)

    def work(me):
        for number in range(500):
            router.route(text("r", (me, number)), now=0.0)

    workers = [threading.Thread(target=work, args=(t,)) for t in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    seen = Counter()
    for message in drain(inbox):
        me, number = message.body
        assert number == seen[me]
        seen[me] += 1
    assert set(seen.values()) == {500}


def test_memory_stays_flat_under_an_orphan_flood():
    router = StreamRouter()

    def flood(count, offset):
        for number in range(offset, offset + count):
            router.route(text(f"nobody-{number}", b"x" * 100), now=number / 1000)

    tracemalloc.start()
    try:
        flood(3000, 0)
        before = tracemalloc.get_traced_memory()[0]
        flood(30_000, 3000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert router.stats().orphans == 1000
    assert grown < 100_000
    assert router.cleanup(now=1e9).orphans_dropped == 1000
    assert router.stats().orphans == 0


def test_registering_and_unregistering_leaves_nothing_behind(router):
    for number in range(5000):
        router.register(str(number), typed_queues(router), now=0.0)
        router.unregister(str(number))
    assert router.stats().active_requests == 0


def test_the_router_does_not_need_jupyter():
    code = "import sys, messagehub.streams; sys.exit('jupyter_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
