"""A request that is dropped for inactivity is warned about, its reader is told, and kernels take limits."""

import queue

import pytest

from messagehub.errors import ConfigurationError, HubError
from messagehub.jupyter import outputs as kernel_outputs
from messagehub.jupyter.kernel import Kernel, KernelOutputUnreadable, StreamExpired, Text
from messagehub.streams import Collector, StreamLimits, StreamMessage, StreamRouter
from messagehub.streams import router as streams
from tests.integration.harness import eventually
from tests.messaging.test_jupyter import LONG, Puppet

QUICK = StreamLimits(idle_seconds=4.0, cleanup_seconds=0.01)


@pytest.fixture
def puppet(tmp_path):
    puppet = Puppet(tmp_path)
    yield puppet
    puppet.context.destroy(linger=0)


def test_the_owner_of_an_expired_request_is_warned_and_its_reader_told(caplog):
    router = StreamRouter()
    queues = {category: queue.SimpleQueue() for category in router.categories}
    router.register("r", queues, now=0.0)
    router.route(StreamMessage("r", "stream", "text"), now=1.0)
    router.cleanup(now=301.0)
    assert queues["stream"].get_nowait().body == "text"
    for each in queues.values():
        last = each.get_nowait()
        assert (last.request_id, last.kind, last.body.idle_seconds) == ("r", streams.EXPIRED, 300.0)
        assert each.empty()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "request r was dropped" in caplog.text
    stats = router.stats()
    assert stats.received == stats.routed == 1


def test_a_full_queue_does_not_stop_the_cleanup(caplog):
    router = StreamRouter({"all": {"k"}})
    full = queue.Queue(maxsize=1)
    router.register("slow", {"all": full}, now=0.0)
    router.register("other", {"all": queue.SimpleQueue()}, now=0.0)
    router.route(StreamMessage("slow", "k"), now=0.0)
    assert len(router.cleanup(now=300.0).expired) == 2
    assert "its queue is full" in caplog.text


def test_a_collector_ends_with_an_error_when_its_request_was_dropped():
    router = StreamRouter()
    with Collector(router, "r", timeout_seconds=LONG, clock=lambda: 0.0) as collector:
        router.cleanup(now=300.0)
        with pytest.raises(StreamExpired) as raised:
            collector.collect()
    assert raised.value.details == {"request_id": "r", "idle_seconds": 300.0}


def test_a_kernel_takes_limits_and_ends_what_is_silent_for_longer(puppet, monkeypatch, caplog):
    connect = Kernel.connect
    monkeypatch.setattr(Kernel, "connect", lambda path, **options: connect(path, limits=QUICK, **options))
    with puppet.accept() as kernel:
        assert kernel.router.limits == QUICK
        silent = kernel.execute("")
        _, request = puppet.next_request()
        puppet.session.send(puppet.iopub, "stream", {"name": "stdout", "text": "last"}, request)
        assert silent.read(LONG) == Text(kind="stream", name="stdout", text="last")
        for _ in range(2):
            with pytest.raises(StreamExpired):
                silent.read(LONG)
        eventually(lambda: kernel.router.stats().active_requests == 0)
        assert kernel.is_alive
    assert "was dropped" in caplog.text


def test_every_error_of_kernels_and_streams_is_a_hub_error_with_its_code():
    for module in (kernel_outputs, streams):
        raised = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Exception)]
        own = [kind for kind in raised if kind.__module__ == module.__name__]
        assert own
        for kind in own:
            assert issubclass(kind, HubError)
            assert "code" in vars(kind)


def test_limits_that_make_no_sense_are_a_configuration_error():
    with pytest.raises(ConfigurationError):
        StreamLimits(idle_seconds=0)


def test_no_bytes_of_a_kernel_end_the_thread_that_reads_them(puppet):
    with puppet.accept() as kernel:
        execution = kernel.execute("")
        _, request = puppet.next_request()
        parent, deep = puppet.session.pack(request["header"]), b"[" * 100_000 + b"]" * 100_000
        header = puppet.session.pack(puppet.session.msg_header("stream"))
        for parts in (
            [b"[]", parent, b"{}", b"{}"],
            [b"7", parent, b"{}", b"{}"],
            [header, b"[]", b"{}", b"{}"],
            [header, parent, b"{}", b"[]"],
            [header, parent, deep, b"{}"],
            [header, parent, b"{}", deep],
            [deep, parent, b"{}", b"{}"],
            [b'{"msg_id":"x","msg_type":[],"date":{}}', parent, b"{}", b"{}"],
            [b'{"msg_id":"x","msg_type":"stream","date":"9999999999999999-01-01"}', parent, b"{}", b"{}"],
            [header, parent, b"{}", b"\xff"],
        ):
            puppet.iopub.send_multipart([b"<IDS|MSG>", puppet.session.sign(parts), *parts])
        puppet.session.send(puppet.iopub, "status", {"execution_state": ["no", "state"]}, request)
        puppet.session.send(puppet.iopub, "stream", {"name": 7}, request)
        puppet.session.send(puppet.iopub, "stream", {"name": "stdout", "text": "fine"}, request)
        read = []
        while not read or read[-1] != "fine":
            try:
                read.append(execution.read(LONG).text)
            except KernelOutputUnreadable:
                read.append("unreadable")
        assert kernel.is_alive
    assert "unreadable" in read
