"""Any history of registrations, silences and deaths keeps the promises of the registry of services.

A model says who serves what under which lease; a watcher knows the addresses from events alone.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from messagehub.protocol import decode_event, encode
from registry import commands, replies
from registry.channels.leases import Member, Terms
from registry.errors import AddressNotFound, DuplicateRegistration, PolicyMismatch, PoolEmpty, Refusal
from registry.events import ServiceChanged
from registry.records import Service
from registry.registry import Registry
from tests.levels import examples
from tests.registry.observing import members_of_leases, whole_state

TERMS = Terms(heartbeat_seconds=1.0, stall_seconds=4.0, lease_seconds=20.0)
ADDRESSES = ["name:n", "service:s", "pool:p", "pool:q", "id:w1"]
WORKERS = ["w1", "w2", "w3"]
LEASES = ["L1", "L2"]
addresses, workers, leases = st.sampled_from(ADDRESSES), st.sampled_from(WORKERS), st.sampled_from(LEASES)
strategies = st.sampled_from([None, None, "random", "least_busy"])
seconds = st.sampled_from([0.5, 1.0, 3.5, 4.0, 20.0])


class ServicesHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry(terms=TERMS)
        self.now = 100.0
        self.workers: dict[str, tuple[str, str]] = {}  # id: address, lease
        self.renewed_at: dict[str, float] = {}
        self.pools: set[str] = set()
        self.heard: dict[str, Service] = {}
        self.revision = 0

    def apply(self, command: commands.Command) -> replies.Reply | Refusal:
        before = whole_state(self.registry)
        try:
            reply = self.registry.apply(command, now=self.now).reply
        except Refusal as refused:
            assert whole_state(self.registry) == before, "a refused command changes nothing"
            return refused
        self.listen()
        return reply

    def listen(self) -> None:
        for event in self.registry.services.take_happened():
            heard = decode_event(encode(event))
            assert isinstance(heard, ServiceChanged)
            assert heard.revision == self.revision + 1
            self.revision = heard.revision
            known = self.heard.get(heard.address)
            assert heard.previous == (known.revision if known else 0)
            if heard.service is None:
                del self.heard[heard.address]
            else:
                self.heard[heard.address] = heard.service

    def is_alive(self, lease: str) -> bool:
        return self.now - self.renewed_at.get(lease, -1e9) < TERMS.stall_seconds

    @rule(address=addresses, worker_id=workers, lease=leases, strategy=strategies, concurrency=st.integers(1, 2))
    def register(
        self, address: str, worker_id: str, lease: str, strategy: replies.Strategy | None, concurrency: int
    ) -> None:
        if address.startswith("id:") and address != f"id:{worker_id}":
            return
        command = commands.RegisterWorker(
            address=address,
            worker_id=worker_id,
            endpoint="unix:@e",
            key="k",
            lease=lease,
            strategy=strategy if address.startswith("pool:") else None,
            concurrency=concurrency,
        )
        in_the_way = {
            other
            for other, (where, owner) in self.workers.items()
            if (other == worker_id or (where == address and not address.startswith("pool:")))
            and not (other == worker_id and owner == lease)
        }
        reply = self.apply(command)
        if isinstance(reply, DuplicateRegistration):
            assert any(self.is_alive(self.workers[other][1]) for other in in_the_way)
            return
        if isinstance(reply, PolicyMismatch):
            return
        assert isinstance(reply, replies.WorkerRegistered), reply
        assert not any(self.is_alive(self.workers[other][1]) for other in in_the_way), "nobody living is replaced"
        for other in in_the_way:
            del self.workers[other]
        self.workers[worker_id] = (address, lease)
        self.renewed_at[lease] = self.now
        self.pools |= {address} if address.startswith("pool:") else set()
        assert self.apply(command) == reply, "saying it again gives the same answer"

    @rule(worker_id=workers, lease=leases)
    def unregister(self, worker_id: str, lease: str) -> None:
        is_owner = self.workers.get(worker_id, ("", ""))[1] == lease
        reply = self.apply(commands.UnregisterWorker(worker_id=worker_id, lease=lease))
        assert isinstance(reply, replies.WorkerUnregistered) == is_owner
        if is_owner:
            del self.workers[worker_id]

    @rule(lease=leases)
    def heartbeat(self, lease: str) -> None:
        ack = self.apply(commands.Heartbeat(lease=lease))
        assert isinstance(ack, replies.HeartbeatAck)
        assert ack.known == any(owner == lease for _, owner in self.workers.values())
        if lease in self.renewed_at:
            self.renewed_at[lease] = self.now

    @rule(address=addresses)
    def remove_pool(self, address: str) -> None:
        is_empty = address in self.pools and all(where != address for where, _ in self.workers.values())
        assert isinstance(self.apply(commands.RemovePool(address=address)), replies.PoolRemoved) == is_empty
        if is_empty:
            self.pools.discard(address)

    @rule(worker_id=workers)
    def die(self, worker_id: str) -> None:
        self.registry.host_events.died([Member("worker", "", worker_id)], now=self.now)
        self.workers.pop(worker_id, None)
        self.listen()

    @rule(passing=seconds)
    def wait(self, passing: float) -> None:
        self.now += passing
        self.registry.expire(now=self.now)
        self.listen()
        ended = {lease for lease, at in self.renewed_at.items() if self.now - at >= TERMS.lease_seconds}
        for lease in ended:
            del self.renewed_at[lease]
        self.workers = {w: held for w, held in self.workers.items() if held[1] not in ended}

    @invariant()
    def agree(self) -> None:
        for address in ADDRESSES:
            expected = {w for w, (where, _) in self.workers.items() if address in (where, f"id:{w}")}
            try:
                reply = self.registry.apply(commands.ResolveService(address=address), now=self.now).reply
                assert isinstance(reply, replies.ServiceResolved)
                found = reply.service.workers
            except PoolEmpty:
                found = []
                assert address in self.pools
            except AddressNotFound:
                found = []
                assert address not in self.pools
            assert {worker.worker_id for worker in found} == expected
            for worker in found:
                assert worker.status == ("active" if self.is_alive(worker.lease) else "stalled")
        assert self.heard == {service.address: service for service in self.registry.services.addresses()}
        listed = {member for members in members_of_leases(self.registry).values() for member in members}
        assert listed == {("worker", where, w) for w, (where, _) in self.workers.items()}


TestServicesHistory = ServicesHistory.TestCase
TestServicesHistory.settings = settings(max_examples=examples(30), stateful_step_count=40)
