"""Services between the hosts of a site: an address is found on every host, and caller and worker may be on two."""

import asyncio
import json
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
import zmq
from typer.testing import CliRunner

from messagehub import MessageHub
from messagehub.cli import app
from messagehub.cli.diagnosis.contact import check_services
from messagehub.errors import (
    BrokerUnavailable,
    DataLost,
    DuplicateRegistration,
    Forbidden,
    HandlerFailed,
    HubError,
    MailboxFull,
    NoResponse,
    PoolEmpty,
    RequestTimeout,
    RouteError,
    SendTimeout,
    ServiceNotFound,
    StoreReadOnly,
)
from messagehub.security.credentials import KeyPair
from messagehub.services.between_hosts.relay import BEGIN, END, FRAME, MOST_STRANGERS, VERSION
from messagehub.services.frames import Greeting, greeting
from registry import commands, replies
from registry.records import Worker
from tests.etcd_server import EtcdMember
from tests.integration.harness import PATIENCE_SECONDS, checked_broker, eventually
from tests.messaging.service_harness import Gate, metrics, worker_of
from tests.ports import own_ports
from tests.site.hosts import LONG_LEASE_SECONDS, Elsewhere, Site, SiteHub, on, process_on, site

T = TypeVar("T")
NAMES = ("alpha", "beta", "gamma")
SECONDS = PATIENCE_SECONDS

SERVING = """
import os, threading
seen, opened = [], threading.Event()

def handle(message, context):
    seen.append(message.payload)
    asked = message.payload
    if isinstance(asked, dict) and asked.get("wait"):
        assert opened.wait(60)
    if isinstance(asked, dict) and "raise" in asked:
        raise ValueError(asked["raise"])
    if isinstance(asked, dict) and "stream" in asked:
        for number in range(asked["stream"]):
            context.stream(bytes(asked.get("size", 1)) if asked.get("size") else number)
        return "end"
    if asked == "who":
        return {"pid": os.getpid(), "host": os.environ["MESSAGEHUB_HOST"], "sender": message.sender,
                "headers": message.headers, "left": context.remaining_seconds}
    return asked

def serve(address, **options):
    return hub.serve(address, handle, **options)
"""


@pytest.fixture(scope="module")
def hosts(member: EtcdMember, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(
        tmp_path_factory.mktemp("services"), member.url, *NAMES, host_lease_seconds=LONG_LEASE_SECONDS
    ) as started:
        yield started


@pytest.fixture(scope="module")
def clients(hosts: Site) -> Iterator[dict[str, MessageHub]]:
    """A client on each host, all in this process."""
    with ExitStack() as ending:
        yield {name: ending.enter_context(on(hosts[name])) for name in NAMES}


@pytest.fixture(scope="module")
def processes(hosts: Site) -> Iterator[dict[str, Elsewhere]]:
    """A process on each host that serves what it is told to, until it is told otherwise."""
    with ExitStack() as ending:
        yield {name: ending.enter_context(serving_on(hosts[name])) for name in NAMES}


@contextmanager
def serving_on(hub: SiteHub) -> Iterator[Elsewhere]:
    with process_on(hub) as started:
        started.do(SERVING)
        yield started


@contextmanager
def served(process: Elsewhere, address: str, **options: Any) -> Iterator[None]:
    name = f"w{random.randrange(10**9)}"
    words = "".join(f", {key}={value!r}" for key, value in options.items())
    process.do(f"{name} = serve({address!r}{words})")
    yield
    process.do(f"opened.set(); {name}.close(); opened.clear()")


def soon(ask: Callable[[], T], *passing: type[HubError]) -> T:
    """What comes once none of these errors does any more."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return ask()
        except passing:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def found_by(client: MessageHub, address: str) -> list[str | None]:
    """The hosts whose workers serve an address, as the hub of a host says."""
    try:
        resolved = client.ask(commands.ResolveService(address=address))
    except (ServiceNotFound, PoolEmpty):
        return []
    assert isinstance(resolved, replies.ServiceResolved)
    return [worker.host for worker in resolved.service.workers]


def known(clients: dict[str, MessageHub], address: str, *names: str) -> None:
    """Wait until every hub knows these hosts to serve an address."""
    for client in clients.values():
        eventually(lambda client=client: sorted(map(str, found_by(client, address))) == sorted(names))


def test_a_service_is_found_and_called_on_every_host(
    clients: dict[str, MessageHub], processes: dict[str, Elsewhere]
) -> None:
    with served(processes["beta"], "service:who"), served(processes["gamma"], "name:near"):
        known(clients, "service:who", "beta")
        known(clients, "name:near", "gamma")
        for name, client in clients.items():
            said = client.request("service:who", "who", timeout=SECONDS, headers={"from": name})
            assert said["host"] == "beta"
            assert said["headers"] == {"from": name}
            assert 0.0 < said["left"] <= SECONDS  # the clocks of hosts differ, so seconds travel
            worker = worker_of(client, "service:who")
            assert client.request(f"id:{worker.worker_id}", 7, timeout=SECONDS) == 7
            assert client.request("name:near", "who", timeout=SECONDS)["host"] == "gamma"
    known(clients, "service:who")
    for client in clients.values():
        with pytest.raises(ServiceNotFound):
            client.request("service:who", "who", timeout=SECONDS)


def test_payloads_of_every_kind_come_whole_and_a_table_in_shared_memory_says_where_it_is(
    clients: dict[str, MessageHub], processes: dict[str, Elsewhere]
) -> None:
    table = pa.table({"a": list(range(1000))})
    with served(processes["beta"], "service:echo"):
        known(clients, "service:echo", "beta")
        for payload in (b"\x00\xff" * 500_000, {"a": [1, None, "é"]}, table, b""):
            assert clients["alpha"].request("service:echo", payload, timeout=SECONDS) == payload
        with pytest.raises(HandlerFailed, match="no: alpha"):
            clients["alpha"].request("service:echo", {"raise": "no: alpha"}, timeout=SECONDS)
        large = pa.table({"a": pa.array(range(500_000))})
        with pytest.raises(DataLost, match=r"memory of host '\w+', and this is 'beta'"):
            clients["alpha"].request("service:echo", large, timeout=SECONDS)


def test_many_requests_at_once_from_threads_and_an_event_loop_get_their_own_replies(
    clients: dict[str, MessageHub], processes: dict[str, Elsewhere]
) -> None:
    with served(processes["beta"], "service:many", concurrency=4, mailbox=2000, overflow="block"):
        known(clients, "service:many", "beta")
        with ThreadPoolExecutor(8) as pool:
            asked = lambda number: clients["alpha"].request("service:many", number, timeout=SECONDS)  # noqa: E731
            assert list(pool.map(asked, range(400))) == list(range(400))
        pending = [clients["gamma"].begin_request("service:many", number, timeout=SECONDS) for number in range(400)]
        assert [each.result() for each in pending] == list(range(400))

        async def ask() -> list[Any]:
            asked = [clients["alpha"].request_async("service:many", number, timeout=SECONDS) for number in range(200)]
            return await asyncio.gather(*asked)

        assert asyncio.run(ask()) == list(range(200))


def test_an_async_handler_serves_another_host(hosts: Site, clients: dict[str, MessageHub]) -> None:
    async def double(message: Any, context: Any) -> Any:
        await asyncio.sleep(0)
        return 2 * message.payload

    with clients["gamma"].serve("service:double", double, concurrency=10):
        known(clients, "service:double", "gamma")
        assert [clients["alpha"].request("service:double", n, timeout=SECONDS) for n in range(20)] == list(
            range(0, 40, 2)
        )


def test_of_registrations_on_all_hosts_at_once_one_is_taken(clients: dict[str, MessageHub]) -> None:
    for attempt in range(5):
        begin = threading.Barrier(len(clients))

        def serve(client: MessageHub, address: str = f"service:once{attempt}", begin: Any = begin) -> Any:
            begin.wait(SECONDS)
            try:
                return client.serve(address, lambda message, context: None)
            except DuplicateRegistration:
                return None

        with ThreadPoolExecutor(len(clients)) as pool:
            workers = list(filter(None, pool.map(serve, clients.values())))
        assert len(workers) == 1
        workers[0].close()


def test_a_refused_registration_changes_nothing_on_any_host(
    clients: dict[str, MessageHub], processes: dict[str, Elsewhere]
) -> None:
    with served(processes["beta"], "service:first"):
        known(clients, "service:first", "beta")
        before = [client.ask(commands.ListServices(prefix="")).revision for client in clients.values()]
        for client in clients.values():
            with pytest.raises(DuplicateRegistration, match=r"service:first is served by .*host beta.*`pool:NAME`"):
                client.serve("service:first", lambda message, context: None)
        assert [client.ask(commands.ListServices(prefix="")).revision for client in clients.values()] == before


@pytest.mark.parametrize("strategy", ["round_robin", "random", "least_busy"])
def test_a_pool_takes_workers_of_all_hosts(
    strategy: str, clients: dict[str, MessageHub], processes: dict[str, Elsewhere]
) -> None:
    address = f"pool:{strategy}"
    with ExitStack() as ending:
        for process in processes.values():
            ending.enter_context(served(process, address, strategy=strategy))
        known(clients, address, *NAMES)
        for client in clients.values():
            said = [client.request(address, "who", timeout=SECONDS)["host"] for _ in range(30)]
            if strategy == "round_robin":
                assert said[:3] * 10 == said
                assert sorted(said[:3]) == list(NAMES)
            assert set(said) == set(NAMES)
    known(clients, address)
    with pytest.raises(PoolEmpty):  # also if this client has not heard of it yet, and asks a worker that has ended
        clients["gamma"].request(address, "who", timeout=SECONDS)
    clients["gamma"].remove_pool(address)
    eventually(lambda: address not in [each.address for each in clients["alpha"].services()])


def test_the_least_busy_worker_of_all_hosts_is_asked(
    clients: dict[str, MessageHub], processes: dict[str, Elsewhere]
) -> None:
    with served(processes["alpha"], "pool:busy", strategy="least_busy"), served(processes["beta"], "pool:busy"):
        known(clients, "pool:busy", "alpha", "beta")
        held = clients["gamma"].begin_request("pool:busy", {"wait": True}, timeout=SECONDS)
        said = Counter(clients["gamma"].request("pool:busy", "who", timeout=SECONDS)["host"] for _ in range(10))
        assert len(said) == 1
        for process in processes.values():
            process.do("opened.set()")
        assert held.result() == {"wait": True}
        for process in processes.values():
            process.do("opened.clear()")


def test_streams_come_in_order_and_wait_for_a_slow_reader(
    clients: dict[str, MessageHub], processes: dict[str, Elsewhere]
) -> None:
    with served(processes["beta"], "service:stream"):
        known(clients, "service:stream", "beta")
        assert list(clients["alpha"].stream("service:stream", {"stream": 500}, timeout=SECONDS)) == list(range(500))
        parts = clients["alpha"].stream("service:stream", {"stream": 40, "size": 1_000_000}, timeout=SECONDS)
        first = next(iter(parts))
        time.sleep(0.2)  # the worker has sent as far ahead as it may, which is far from all
        assert [len(first), *map(len, parts)] == [1_000_000] * 40


def test_a_worker_hears_that_nobody_waits_any_more(clients: dict[str, MessageHub], hosts: Site) -> None:
    begun, told = threading.Event(), threading.Event()

    def handle(message: Any, context: Any) -> None:
        begun.set()
        deadline = time.monotonic() + SECONDS
        while not context.is_cancelled and time.monotonic() < deadline:
            time.sleep(0.005)
        told.set()

    with clients["beta"].serve("service:cancelled", handle):
        known(clients, "service:cancelled", "beta")
        pending = clients["alpha"].begin_request("service:cancelled", 1, timeout=SECONDS)
        assert begun.wait(SECONDS)  # what has not begun when it is cancelled never does
        assert pending.cancel()
        assert told.wait(SECONDS)
        begun.clear()
        told.clear()
        with serving_on(hosts["gamma"]) as caller:  # and when the caller is killed
            caller.do("pending = hub.begin_request('service:cancelled', 1, timeout=60)")
            assert begun.wait(SECONDS)
            caller.kill()
            assert told.wait(SECONDS)
            caller.process.stdin.close()


def test_a_deadline_holds_across_hosts_and_a_late_reply_is_counted(clients: dict[str, MessageHub]) -> None:
    gate = Gate()
    with clients["beta"].serve("service:late", gate):
        known(clients, "service:late", "beta")
        before = metrics(clients["alpha"])["late_replies"]
        with pytest.raises(RequestTimeout, match="on host 'beta', asked from host 'alpha', did not answer in time"):
            clients["alpha"].request("service:late", 1, timeout=3.0)  # enough to reach the worker
        gate.opened.set()
        eventually(lambda: metrics(clients["alpha"])["late_replies"] == before + 1)


def test_a_full_mailbox_refuses_retries_and_leaves_a_dead_letter_at_the_host_of_its_sender(
    clients: dict[str, MessageHub],
) -> None:
    gate = Gate()
    with clients["beta"].serve("service:full", gate, mailbox=1, overflow="error"):
        known(clients, "service:full", "beta")
        held = clients["alpha"].begin_request("service:full", "first", timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        clients["alpha"].send("service:full", "second", timeout=SECONDS)
        retried = metrics(clients["alpha"])["retried"]
        with pytest.raises(MailboxFull):
            clients["alpha"].send("service:full", "third", timeout=SECONDS, retries=2)
        assert metrics(clients["alpha"])["retried"] == retried + 2
        (letter,) = eventually(lambda: clients["alpha"].dead_letters("service:full").letters)
        assert (letter.code, letter.attempts) == ("MAILBOX_FULL", 3)
        assert not clients["beta"].dead_letters("service:full").letters
        gate.opened.set()
        assert held.result() == "first"
        eventually(lambda: gate.seen == ["first", "second"])
        assert clients["alpha"].resend_dead_letters("service:full").sent == 1
        eventually(lambda: gate.seen == ["first", "second", "third"])


def test_a_hub_that_closes_gives_callers_of_other_hosts_the_answers_that_it_owes(
    hosts: Site, clients: dict[str, MessageHub]
) -> None:
    gate = Gate()
    with on(hosts["beta"]) as closing:
        closing.serve("service:closing", gate)
        known(clients, "service:closing", "beta")
        pending = clients["alpha"].begin_request("service:closing", bytes(900_000), timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        opening = threading.Timer(0.2, gate.opened.set)
        opening.start()
    opening.join(SECONDS)
    assert pending.result() == bytes(900_000)
    known(clients, "service:closing")


def test_a_mailbox_that_blocks_holds_a_caller_of_another_host_back(clients: dict[str, MessageHub]) -> None:
    gate = Gate()
    with clients["beta"].serve("service:blocks", gate, mailbox=1, overflow="block"):
        known(clients, "service:blocks", "beta")
        payload = bytes(1_000_000)
        pending = [clients["alpha"].begin_request("service:blocks", payload, timeout=SECONDS) for _ in range(10)]
        gate.opened.set()
        assert all(each.result() == payload for each in pending)


def test_a_worker_that_is_killed_ends_everywhere_at_once(hosts: Site, clients: dict[str, MessageHub]) -> None:
    with serving_on(hosts["beta"]) as process:
        process.do("w = serve('service:killed')")
        known(clients, "service:killed", "beta")
        pending = clients["alpha"].begin_request("service:killed", {"wait": True}, timeout=SECONDS)
        process.do("while not seen: time.sleep(0.01)")
        killed_at = time.monotonic()
        process.kill()
        with pytest.raises(NoResponse, match="on host 'beta', asked from host 'alpha',"):
            pending.result()
        known(clients, "service:killed")
        assert time.monotonic() - killed_at < SECONDS / 2
        with clients["gamma"].serve("service:killed", lambda message, context: "gamma"):
            known(clients, "service:killed", "gamma")
            assert clients["alpha"].request("service:killed", 1, timeout=SECONDS, retries=5) == "gamma"
        process.process.stdin.close()


def test_single_workers_that_cannot_be_reached_are_errors_that_name_both_hosts(
    clients: dict[str, MessageHub],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, unreachable(clients["beta"], "service:cut", silent):
        known(clients, "service:cut", "beta")
        for timeout, kind in ((0.5, SendTimeout), (SECONDS, RouteError)):
            began_at = time.monotonic()
            with pytest.raises(kind, match=r"on host 'beta' cannot be reached from host 'alpha' at tcp://127.0.0.1"):
                clients["alpha"].request("service:cut", 1, timeout=timeout)
            assert time.monotonic() - began_at < timeout + SECONDS / 6
    known(clients, "service:cut")
    with unreachable(clients["beta"], "service:nobody", None):
        known(clients, "service:nobody", "beta")
        with pytest.raises(RouteError, match=r"on host 'beta' cannot be reached from host 'alpha'.*nobody listens"):
            clients["alpha"].request("service:nobody", 1, timeout=SECONDS)


def test_a_pool_goes_on_without_the_worker_that_cannot_be_reached(
    clients: dict[str, MessageHub], processes: dict[str, Elsewhere]
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        unreachable(clients["beta"], "pool:cut", silent),
        served(processes["gamma"], "pool:cut"),
    ):
        known(clients, "pool:cut", "beta", "gamma")
        began_at = time.monotonic()
        said = [clients["alpha"].request("pool:cut", "who", timeout=SECONDS)["host"] for _ in range(20)]
        assert said == ["gamma"] * 20
        assert time.monotonic() - began_at < 15.0  # it was tried once or twice, 2 s each: beacons bring it back soon


class Link:
    """A TCP link between two hosts that can be cut: then nothing passes, and nobody is told."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._there = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_whole = threading.Event()
        self.is_whole.set()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, there = self._listener.accept()[0], socket.create_connection(self._there)
                self._ends += [here, there]
                for source, target in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.is_whole.wait(SECONDS)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in (self._listener, *self._ends):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_a_link_that_is_cut_in_silence_is_an_error_within_the_deadline_and_comes_back(
    clients: dict[str, MessageHub],
) -> None:
    with clients["beta"].serve("service:linked", lambda message, context: message.payload):
        known(clients, "service:linked", "beta")
        worker = worker_of(clients["beta"], "service:linked")
        link = Link(str(worker.tcp_endpoint))
        fields = {
            name: getattr(worker, name) for name in commands.RegisterWorker.__struct_fields__ if hasattr(worker, name)
        }
        clients["beta"].ask(commands.RegisterWorker(**fields | {"tcp_endpoint": link.endpoint}))
        eventually(lambda: worker_of(clients["gamma"], "service:linked").tcp_endpoint == link.endpoint)
        try:
            assert clients["gamma"].request("service:linked", 1, timeout=SECONDS) == 1
            link.is_whole.clear()
            began_at = time.monotonic()
            with pytest.raises(RequestTimeout, match="on host 'beta', asked from host 'gamma',"):
                clients["gamma"].request("service:linked", 2, timeout=0.5)
            with pytest.raises(SendTimeout, match="on host 'beta', asked from host 'gamma',"):
                clients["gamma"].send("service:linked", 2, timeout=0.5)
            with pytest.raises(RequestTimeout, match="on host 'beta', asked from host 'gamma',"):
                list(clients["gamma"].stream("service:linked", 2, timeout=0.5))
            assert time.monotonic() - began_at < SECONDS / 3  # three times half a second
            link.is_whole.set()
            assert clients["gamma"].request("service:linked", 3, timeout=SECONDS) == 3
        finally:
            link.close()


@contextmanager
def unreachable(hub: MessageHub, address: str, at: socket.socket | None) -> Iterator[None]:
    """A registration whose TCP endpoint is where nobody answers, or (None) nobody listens."""
    port = at.getsockname()[1] if at is not None else own_ports(1)[0]
    name = f"lost-{random.randrange(10**9)}"
    command = commands.RegisterWorker(
        address=address,
        worker_id=name,
        endpoint="unix:@messagehub-nowhere",
        key="00",
        lease=name,
        host="beta",
        tcp_endpoint=f"tcp://127.0.0.1:{port}",
        tcp_key=KeyPair.new().public,
    )
    hub.ask(command)
    yield
    hub.ask(commands.UnregisterWorker(worker_id=name, lease=name))


def test_who_has_no_key_of_a_worker_learns_nothing_from_it_and_harms_nobody(
    clients: dict[str, MessageHub], processes: dict[str, Elsewhere]
) -> None:
    with served(processes["beta"], "service:guarded"), zmq.Context() as context:
        known(clients, "service:guarded", "beta")
        worker = worker_of(clients["alpha"], "service:guarded")
        with _caller(context, worker, KeyPair.new().public) as other:  # who expects another process is not let in
            other.send(BEGIN + VERSION)
            assert not other.poll(500)
        guess = FRAME + greeting(Greeting(worker.worker_id, "0" * 16, "stranger", "nonce"))
        for said in (guess, FRAME + b"\xff" * 100, b"T" + b"\xff" * 8, b"?", FRAME + bytes(1_000_000)):
            with _caller(context, worker, str(worker.tcp_key)) as stranger:
                stranger.send(BEGIN + VERSION)
                stranger.send(said)
                eventually(lambda stranger=stranger: stranger.poll(100) and stranger.recv() == END)
        with ExitStack() as ending:
            crowd = [ending.enter_context(_caller(context, worker, str(worker.tcp_key))) for _ in range(MOST_STRANGERS)]
            for stranger in crowd:
                stranger.send(BEGIN + VERSION)
            assert clients["alpha"].request("service:guarded", 1, timeout=SECONDS) == 1


def _caller(context: "zmq.Context[zmq.Socket[bytes]]", worker: Worker, key: str) -> "zmq.Socket[bytes]":
    keys = KeyPair.new()
    made = context.socket(zmq.DEALER)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    made.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    made.setsockopt(zmq.CURVE_SERVERKEY, key.encode())
    made.connect(str(worker.tcp_endpoint))
    return made


def test_rights_are_those_that_a_caller_has_at_the_hub_of_its_host(
    hosts: Site, clients: dict[str, MessageHub], processes: dict[str, Elsewhere]
) -> None:
    delta = hosts.add("delta", "--no-http", "--no-gateway", "--endpoint", "tcp://127.0.0.1:0", "--curve")
    keys = {}
    for name, rights in (("may", "consume:service:shared"), ("not", "consume:other")):
        words = ["keys", "new", name, "--role", rights, "--dir", str(delta.dir), "--json"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        keys[name] = json.loads(done.stdout)["file"]
    with served(processes["beta"], "service:shared"):
        known(clients, "service:shared", "beta")
        with keyed(delta, keys["may"]) as allowed:
            assert soon(lambda: allowed.request("service:shared", 5, timeout=SECONDS), ServiceNotFound) == 5
        with keyed(delta, keys["not"]) as refused, pytest.raises(Forbidden):
            refused.request("service:shared", 5, timeout=SECONDS)
        before = worker_of(clients["alpha"], "service:shared").key
        done = CliRunner().invoke(app, ["keys", "revoke", "may", "--dir", str(delta.dir)])
        assert done.exit_code == 0, done.output
        # whoever lost the right at its hub has a key that is soon of no use, also on this host
        eventually(lambda: worker_of(clients["alpha"], "service:shared").key != before)
        assert clients["alpha"].request("service:shared", 6, timeout=SECONDS) == 6
    delta.stop()


@contextmanager
def keyed(hub: SiteHub, key_file: str) -> Iterator[MessageHub]:
    """A client on the host of a hub, with a key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESSAGEHUB_HOST", hub.name)
        with MessageHub(endpoint=hub.endpoint, key_file=key_file, hello_timeout_seconds=5) as client:
            yield client


def test_registrations_outlive_the_hub_that_leads(member: EtcdMember, tmp_path: Path) -> None:
    with (
        site(tmp_path, member.url, *NAMES, host_lease_seconds=LONG_LEASE_SECONDS) as started,
        serving_on(started["beta"]) as process,
    ):
        process.do("w = serve('service:lasting'); p = serve('pool:lasting')")
        with on(started["gamma"]) as caller:
            assert soon(lambda: caller.request("service:lasting", 1, timeout=SECONDS), ServiceNotFound) == 1
            started["alpha"].kill()
            assert [caller.request("service:lasting", n, timeout=SECONDS) for n in range(10)] == list(range(10))
            eventually(lambda: started["beta"].is_leader() or started["gamma"].is_leader())
            assert found_by(caller, "service:lasting") == ["beta"]
            with pytest.raises(DuplicateRegistration):
                soon(lambda: caller.serve("service:lasting", nothing), BrokerUnavailable, StoreReadOnly)
            started["beta"].kill()  # its worker lives on, and is taken over by the next hub there
            assert caller.request("service:lasting", 1, timeout=SECONDS) == 1
            started["beta"].start()
            eventually(lambda: found_by(caller, "service:lasting") == ["beta"])
            assert caller.request("pool:lasting", 2, timeout=SECONDS) == 2
            started["beta"].kill()
            process.kill()  # which nobody on its host sees
            started["beta"].start()
            eventually(lambda: found_by(caller, "service:lasting") == [])
            process.process.stdin.close()


def nothing(message: Any, context: Any) -> None:
    return None


def test_services_of_a_lost_host_end_and_come_back_with_its_hub(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha", "beta") as started, serving_on(started["beta"]) as process:
        process.do("w = serve('service:far')")
        with on(started["alpha"]) as caller:
            eventually(lambda: found_by(caller, "service:far") == ["beta"])
            started["beta"].kill()
            eventually(lambda: found_by(caller, "service:far") == [])
            started["beta"].start()
            eventually(lambda: found_by(caller, "service:far") == ["beta"])
            assert caller.request("service:far", 3, timeout=SECONDS) == 3


@pytest.mark.slow
def test_a_paused_worker_is_given_up_when_its_connection_is_silent(hosts: Site, clients: dict[str, MessageHub]) -> None:
    with serving_on(hosts["beta"]) as process:
        process.do("w = serve('service:paused')")
        known(clients, "service:paused", "beta")
        assert clients["alpha"].request("service:paused", 1, timeout=SECONDS) == 1
        process.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(NoResponse, match="the link to it is lost"):
                clients["alpha"].request("service:paused", 1, timeout=30.0)
        finally:
            process.process.send_signal(signal.SIGCONT)
        assert soon(lambda: clients["alpha"].request("service:paused", 1, timeout=SECONDS), RouteError) == 1


def test_outside_of_a_site_a_worker_has_one_endpoint_and_no_thread_for_other_hosts() -> None:
    before = set(threading.enumerate())
    with (
        checked_broker() as endpoint,
        MessageHub(endpoint=endpoint) as hub,
        hub.serve("service:alone", lambda message, context: 1),
    ):
        assert hub.request("service:alone", timeout=SECONDS) == 1
        assert worker_of(hub, "service:alone").tcp_endpoint is None
        assert "messagehub-relay" not in [thread.name for thread in set(threading.enumerate()) - before]


def test_the_command_line_shows_the_host_of_each_worker_and_where_dead_letters_are(
    hosts: Site, clients: dict[str, MessageHub], processes: dict[str, Elsewhere]
) -> None:
    there = ["--dir", str(hosts["gamma"].dir)]
    with served(processes["beta"], "service:shown"):
        known(clients, "service:shown", "beta")
        done = CliRunner().invoke(app, ["services", "list", *there])
        assert done.exit_code == 0, done.output
        (line,) = [line for line in done.output.splitlines() if line.startswith("service:shown")]
        assert " beta " in line
        assert "tcp://127.0.0.1:" in line
        assert list(check_services(clients["gamma"].services("service:shown"), "gamma")) == []
    letters = CliRunner().invoke(app, ["services", "dead-letters", *there])
    assert "those of senders on other hosts are with the hubs there: alpha, beta" in letters.output
    traced = [each for each in clients["alpha"].trace(limit=1000) if each["request"] == "SERVICE_REGISTER"]
    assert any(str(each.get("peer")).startswith("host:beta") for each in traced)  # alpha leads, and decided it


def test_doctor_names_workers_of_other_hosts_that_cannot_be_called(clients: dict[str, MessageHub]) -> None:
    with unreachable(clients["beta"], "service:ill", None):
        known(clients, "service:ill", "beta")
        (found,) = check_services(clients["alpha"].services("service:ill"), "alpha")
        assert (found.check, found.severity) == ("services", "error")
        assert "on host beta cannot be called from here: tcp://127.0.0.1:" in found.message
        assert list(check_services(clients["alpha"].services("service:ill"), "beta")) == []
