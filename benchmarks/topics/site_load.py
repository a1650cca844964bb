"""A site under load: many hosts at once, many channels, and what one command costs everybody."""

import itertools
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks import clients
from benchmarks.brokers import Broker, client_socket, hub_broker
from benchmarks.harness import Bench, CannotMeasure, Measure, comparison
from benchmarks.native import Native, zmq_clients
from benchmarks.peers import Peer, etcd_server
from benchmarks.processes import cpu_seconds, resident_bytes
from benchmarks.topics.durable_writes import CHANNEL
from benchmarks.topics.several_hosts import member_arguments, site_of
from benchmarks.topics.start_up import Started, channels_made, fill_sqlite
from benchmarks.verdicts import at_least, at_most, beside, percentile
from messagehub.store.etcd.access import EtcdAccess
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.leadership import LeaderKey
from messagehub.store.etcd.store import EtcdStore
from messagehub.store.memory import MemoryStore

HOSTS = 10
COMMANDS_A_SECOND = 1_000
CLIENTS_OF_A_HOST = 4
WRITTEN_AT_ONCE = 2_000
REPETITIONS = 5
_fresh = itertools.count(1)


def _first() -> int:
    """The number of the first of some channels that nobody has made."""
    return next(_fresh) * 1_000_000


@comparison("1,000 durable CHANNEL_CREATE a second from 10 hosts of a site")
def commands_of_ten_hosts(bench: Bench) -> None:
    """p50 is the middle one of the hosts', p99 that of the worst host; both against the p50 of a put beside nothing."""
    native = zmq_clients(bench.directory)
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_server(bench.directory))
        names = [f"host{number}" for number in range(HOSTS)]
        hosts = stack.enter_context(site_of(bench, etcd, names, "--no-gateway"))
        for host in hosts:  # a hub that has just joined is let in by the leader once that has read its key
            native.run(
                endpoint=host.endpoint,
                request=CHANNEL,
                expect="_ACK",
                first=_first(),
                clients=1,
                operations=1,
                seconds=10,
            )
        call = stack.enter_context(clients.etcd_calls(etcd))
        put = clients.protobuf(b"bench.c0", clients.RECORD)
        puts = clients.p50_us(clients.timed(lambda: bool(call("Put", put))), bench.seconds)
        ours, worst, bare, rate = "p50", "p99 of the worst host", "etcd put (grpcio), p50", "answered"
        seconds = bench.scaled(3, 1)
        found: dict[str, list[float]] = {ours: [], worst: [], bare: [], rate: []}

        def load() -> float:
            middle, late, answered = _paced(native, hosts, seconds)
            found[worst].append(late)
            found[rate].append(answered)
            return middle

        def floor() -> float:
            found[bare].append(puts())
            return found[bare][-1]

        claims = [at_most(4.0, ours, bare)]
        bench.compare({ours: load, bare: floor}, unit="µs", claims=claims, repetitions=REPETITIONS)
        bench.judge(found, unit="µs", claims=[at_most(15.0, worst, bare)])
        bench.judge(found, unit="/s", claims=[at_least(0.95 * COMMANDS_A_SECOND, rate)])


def _paced(native: Native, hosts: list[Broker], seconds: int) -> tuple[float, float, float]:
    """Return the middle p50 and the worst p99 of the hosts in microseconds, and how many commands a second had
    answers."""
    rate = COMMANDS_A_SECOND // len(hosts)
    running = [
        native.start(
            endpoint=host.endpoint,
            request=CHANNEL,
            expect="_ACK",
            first=_first(),
            clients=CLIENTS_OF_A_HOST,
            rate=rate,
            operations=rate * seconds,
            seconds=seconds * 3,
        )
        for host in hosts
    ]
    loads = [each.result() for each in running]
    answered = sum(each.operations for each in loads) / max(each.seconds for each in loads)
    return percentile([each.p50_us for each in loads], 0.5), max(each.p99_us for each in loads), answered


@comparison("a member of a site with 100,000 channels: start and memory")
def large_site(bench: Bench) -> None:
    """Filled through both stores. With --quick: a tenth of the channels."""
    count = bench.scaled(100_000, 10_000)
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_server(bench.directory))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="site-", dir=bench.directory)))
        single, member = directory / "single", directory / "member"
        site = uuid.uuid4().hex[:12]
        for made in (single, member):
            made.mkdir(mode=0o700)
        bench.step(f"writing {count:,} channels twice")
        fill_sqlite(single, channels_made(count))
        _fill_site(etcd, site, count)
        arguments = member_arguments(etcd, site, "--no-gateway")
        started: dict[str, list[Started]] = {}

        def start(called: str, directory: Path, arguments: list[str]) -> Measure:
            def measure() -> float:
                started.setdefault(called, []).append(_start(bench, directory, arguments, count))
                return started[called][-1].seconds

            return measure

        ours, theirs = "start of a member", "start of a single hub"
        contenders = {ours: start("member", member, arguments), theirs: start("single", single, [])}
        bench.compare(contenders, unit="s", claims=[at_most(1.3, ours, theirs)], repetitions=REPETITIONS)
        ours, theirs = "resident, a member", "resident, a single hub"
        mib = {
            name: [each.resident_bytes / 2**20 for each in started.get(called, [])]
            for name, called in ((ours, "member"), (theirs, "single"))
        }
        bench.judge(mib, unit="MiB", claims=[at_most(1.3, ours, theirs)])


def _fill_site(etcd: Peer, site: str, count: int) -> None:
    client = EtcdClient(EtcdAccess(endpoints=(f"http://127.0.0.1:{etcd.port}",)))
    leader = LeaderKey(client, site, ttl_seconds=600)
    if not leader.take(b"{}"):
        raise CannotMeasure("a site that nobody knows has a leader")
    store = EtcdStore(client, site, None, MemoryStore())
    store.begin(leader, *store.prepare(leader))
    happened = channels_made(count)
    while batch := list(itertools.islice(happened, WRITTEN_AT_ONCE)):
        rows = [row for event in batch for row in store.rows(event)]
        store.write(rows, revision=batch[-1].revision, durable=True)
    leader.give_up()
    client.close()


def _start(bench: Bench, directory: Path, arguments: list[str], count: int) -> Started:
    """A hub from the start of its process to its first reply; and its memory, once it is known to have the channels."""
    began = time.perf_counter()
    with hub_broker(bench, directory=directory, arguments=arguments, profiled=False) as broker:
        seconds = time.perf_counter() - began
        with client_socket(broker.endpoint) as socket:
            socket.send(b'{"type":"STATS_REQUEST"}')
            found = msgspec.json.decode(socket.recv())
        if found["channels"] != count:
            raise CannotMeasure(f"{found['channels']} channels instead of {count}")
        return Started(seconds, cpu_seconds(broker.pid), resident_bytes(broker.pid))


@comparison("what a durable CHANNEL_CREATE costs in a site of three hosts")
def cost_of_a_command(bench: Bench) -> None:
    """CPU time of each process, when 32 clients of one follower write: what `docs/explanation/size-of-a-site.md`
    reckons with."""
    native = zmq_clients(bench.directory)
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_server(bench.directory))
        names = ["leader", "forwarding", "following"]
        hosts = stack.enter_context(site_of(bench, etcd, names, "--no-gateway"))
        processes = dict(zip((f"CPU time of the hub: {name}" for name in names), hosts, strict=True))
        figures: dict[str, list[float]] = {name: [] for name in processes}
        operations = bench.scaled(4_000, 1_000)
        for repetition in range(REPETITIONS):
            bench.step(f"repetition {repetition + 1}")
            before = {name: cpu_seconds(host.pid) for name, host in processes.items()}
            done = native.run(
                endpoint=hosts[1].endpoint,
                request=CHANNEL,
                expect="_ACK",
                first=_first(),
                clients=32,
                operations=operations,
                seconds=10,
            )
            for name, host in processes.items():
                figures[name].append((cpu_seconds(host.pid) - before[name]) / done.operations * 1e6)
        bench.judge(figures, unit="µs", claims=[beside(name) for name in figures])
