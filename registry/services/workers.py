"""Services: who serves which address; the rules of request-reply's registry.

    id:<worker>      one participant, by its own id; every worker can be reached by it
    name:<name>      one participant, by a name of its own
    service:<name>   one participant, by what it does
    pool:<name>      any of several participants, chosen by the pool's strategy

Rule 1: an address other than a pool has one worker; a second one is refused while the first lives, whoever asks.
Rule 2: a pool is there from its first worker on and stays when the last one leaves: empty is not missing.
Rule 3: the same worker of the same lease saying the same again gets the same answer, and no event.
Rule 4: whoever applies a registration renews its lease with it, and tells here when one stalls, recovers or ends.
Rule 5: every change of an address is an event that carries its whole record, and changes nothing but by it. A hub on
its own stores none of them; in a site they stand in the log, as those of channels do, so that all hubs follow them.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from registry import commands, names, replies
from registry.channels.leases import Leases, Member
from registry.channels.state import SortedNames
from registry.errors import (
    AddressNotFound,
    DuplicateRegistration,
    IdNotFound,
    InvalidName,
    InvalidRequest,
    NameNotFound,
    NotOwner,
    NotRegistered,
    PolicyMismatch,
    PoolEmpty,
    PoolNotEmpty,
    PoolNotFound,
    RegistryError,
    ServiceNotFound,
)
from registry.events import ServiceChanged
from registry.records import MailboxState, MemberStatus, Service, Strategy, Worker
from registry.services.dead_letters import DeadLetters

MOST_ADDRESSES = 20_000
_NOT_FOUND: dict[str, type[AddressNotFound]] = {
    "id": IdNotFound,
    "name": NameNotFound,
    "service": ServiceNotFound,
    "pool": PoolNotFound,
}
_BY_REGISTRY = ("status", "registered_at")


def check_address(address: str) -> tuple[str, str]:
    """Return kind and name of a well-formed address."""
    kind, colon, name = address.partition(":")
    if not colon or kind not in _NOT_FOUND:
        raise InvalidName(
            f"address {address[:220]!r} must be id:…, name:…, service:… or pool:…", name=address[:220], rule=names.RULE
        )
    return kind, names.check_role(kind, name)


class ServiceDecisions:
    def __init__(
        self, leases: Leases, *, lease_seconds: float, emit: Callable[[ServiceChanged, float], None] | None = None
    ) -> None:
        """`emit` gives an event its revision and puts it into the log of a site; without it revisions of services are
        counted apart, and events wait for `take_happened`."""
        self.is_logged = emit is not None
        self._emit = emit or self._note
        self.revision = 0
        self.letters = DeadLetters()
        self._leases = leases
        self._lease_seconds = lease_seconds
        self._services: dict[str, Service] = {}
        self._workers: dict[str, Worker] = {}
        self._mailboxes: dict[str, MailboxState] = {}  # by worker, as of its last heartbeat
        self._turns: dict[str, int] = {}
        self._names = SortedNames(self._services)
        self._happened: list[ServiceChanged] = []

    @property
    def worker_count(self) -> int:
        return len(self._workers)

    @property
    def address_count(self) -> int:
        """How many addresses are served, as they are listed: the id of a worker that has an address is not another."""
        return sum(not _is_implied(service) for service in self._services.values())

    def decide(self, command: commands.Command, now: float) -> replies.Reply:
        return SERVICE_COMMANDS[type(command)](self, command, now)

    def take_happened(self) -> list[ServiceChanged]:
        happened, self._happened = self._happened, []
        return happened

    def get(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def workers(self) -> list[Worker]:
        return list(self._workers.values())

    def addresses(self) -> list[Service]:
        return list(self._services.values())

    def revision_of(self, address: str) -> int:
        service = self._services.get(address)
        return service.revision if service else 0

    def move(self, leases: Leases, *, now: float) -> None:
        """Go on under the leases of a registry that starts over from its store, which knows nothing of services."""
        for worker in self._workers.values():
            before = self._leases.get(worker.lease)
            leases.attach(worker.lease, _member(worker), now=now)
            leases.hold(worker.lease, is_held=before is not None and before.is_held)
        self._leases = leases

    def restore_copy(self, services: Iterable[Service]) -> None:
        """Take over the records of another registry as they are, to follow it from there. No lease begins."""
        for service in services:
            self.follow(ServiceChanged(address=service.address, service=service, revision=service.revision))

    def take_over_unlogged(self, before: "ServiceDecisions") -> None:
        """Take over what no log has: dead letters, whose turn it is, and what mailboxes said last."""
        self.letters, self._turns = before.letters, before._turns
        self._mailboxes = {key: state for key, state in before._mailboxes.items() if key in self._workers}

    def lead(self, *, now: float) -> None:
        """Decide from now on: every worker gets a full new term, so nobody is stalled any more."""
        for worker in self.workers():
            self._leases.attach(worker.lease, _member(worker), now=now, is_restored=True)
            if worker.status == "stalled":
                self.mark(worker.worker_id, "active", now)

    def note_mailboxes(self, lease: str, mailboxes: dict[str, MailboxState]) -> None:
        """Take over what a process says of the mailboxes of its workers."""
        for worker_id, state in mailboxes.items():
            worker = self._workers.get(worker_id)
            if worker is not None and worker.lease == lease:
                self._mailboxes[worker_id] = state

    # -- commands ------------------------------------------------------------------------------------------

    def register(self, command: commands.RegisterWorker, now: float) -> replies.Reply:
        kind, name = check_address(command.address)
        names.check_role("worker", command.worker_id)
        if kind == "id" and name != command.worker_id:
            raise InvalidName(
                f"a worker of {command.address!r} has that id, not {command.worker_id!r}", name=command.worker_id
            )
        if kind != "pool" and command.strategy is not None:
            said = f"{command.address} has one worker, so nothing is chosen by a strategy: leave it out"
            raise InvalidRequest(said, field="strategy")
        worker = _worker(command)
        present = self._workers.get(worker.worker_id)
        is_again = present is not None and _says_the_same(present, worker)
        if not is_again:
            replaced = self._check_free(worker, kind)
            service = self._services.get(worker.address)
            strategy = self._check_strategy(service, command.strategy)
            added = sum(a not in self._services for a in {worker.address, f"id:{worker.worker_id}"})
            if added and len(self._services) + added > MOST_ADDRESSES:
                raise RegistryError(
                    f"the registry of services is full: {MOST_ADDRESSES} addresses", limit=MOST_ADDRESSES
                )
            worker = replace(worker, registered_at=now)
            if present is not None and (present.lease, present.address) == (worker.lease, worker.address):
                self._change_worker(worker, now)
            else:
                for other in replaced:
                    self._remove(other, now)
                self._place(worker, worker.address, strategy, now)
                self._place(worker, f"id:{worker.worker_id}", "round_robin", now)
        return replies.WorkerRegistered(
            address=worker.address,
            worker_id=worker.worker_id,
            lease=worker.lease,
            lease_seconds=self._lease_seconds,
            revision=self.revision_of(worker.address),
        )

    def unregister(self, command: commands.UnregisterWorker, now: float) -> replies.Reply:
        worker = self._workers.get(command.worker_id)
        if worker is None:
            raise NotRegistered(f"no worker {command.worker_id!r} is registered", worker_id=command.worker_id)
        if worker.lease != command.lease:
            raise NotOwner(f"worker {command.worker_id!r} belongs to another process", worker_id=command.worker_id)
        self._remove(worker, now)
        return replies.WorkerUnregistered(address=worker.address, worker_id=worker.worker_id, revision=self.revision)

    def resolve(self, command: commands.ResolveService, now: float) -> replies.Reply:  # noqa: ARG002  one signature
        service = self._find(command.address)
        if not service.workers:
            raise PoolEmpty(f"{service.address} has no worker now", address=service.address)
        turn = self._turns[service.address] = self._turns.get(service.address, -1) + 1
        return replies.ServiceResolved(service=service, turn=turn)

    def list_services(self, command: commands.ListServices, now: float) -> replies.Reply:  # noqa: ARG002
        page, following = self._names.page(prefix=command.prefix, after=command.after, limit=command.limit)
        found = [self._services[address] for address in page]
        listed = [_summary(service, self._mailboxes) for service in found if command.prefix or not _is_implied(service)]
        return replies.ServiceList(services=listed, next=following, revision=self.revision)

    def remove_pool(self, command: commands.RemovePool, now: float) -> replies.Reply:
        kind, _ = check_address(command.address)
        if kind != "pool":
            raise InvalidName(f"{command.address!r} is no pool", name=command.address)
        service = self._find(command.address)
        if service.workers:
            raise PoolNotEmpty(f"{service.address} has {len(service.workers)} workers", address=service.address)
        self._change(service.address, None, now)
        return replies.PoolRemoved(address=service.address, revision=self.revision)

    def report(self, command: commands.ReportDeadLetter, now: float) -> replies.Reply:
        self.letters.add(replace(command.letter, at=command.letter.at or now))
        return replies.DeadLetterReported(kept=len(self.letters))

    def list_letters(self, command: commands.ListDeadLetters, now: float) -> replies.Reply:  # noqa: ARG002
        found = self.letters.newest(command.address, command.limit)
        return replies.DeadLetterList(letters=found, kept=len(self.letters), dropped=self.letters.dropped)

    def remove_letters(self, command: commands.RemoveDeadLetters, now: float) -> replies.Reply:  # noqa: ARG002
        removed = self.letters.remove(set(command.numbers))
        return replies.DeadLettersRemoved(removed=removed, kept=len(self.letters))

    # -- what leases and the host watcher say -------------------------------------------------------------------------

    def ended(self, worker_id: str, now: float) -> None:
        """End a worker whose process is gone or was silent for too long. One that is not registered is passed over."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            self._remove(worker, now)

    def mark(self, worker_id: str, status: MemberStatus, now: float) -> None:
        self._change_worker(replace(self._workers[worker_id], status=status), now)

    # -- inside --------------------------------------------------------------------------------------------

    def _change_worker(self, worker: Worker, now: float) -> None:
        """Change the status or the key of a worker, which stays in its place."""
        for address in dict.fromkeys((worker.address, f"id:{worker.worker_id}")):
            service = self._services.get(address)
            if service is not None:
                workers = [worker if w.worker_id == worker.worker_id else w for w in service.workers]
                self._change(address, replace(service, workers=workers), now)

    def _find(self, address: str) -> Service:
        service = self._services.get(address)
        if service is None:
            kind, _ = check_address(address)
            raise _NOT_FOUND[kind](f"nobody serves {address}", address=address)
        return service

    def _check_free(self, worker: Worker, kind: str) -> list[Worker]:
        """Return whom this worker replaces: itself, or a silent one in the same place.

        Refuse it if a living one is there.
        """
        wanted = self._services.get(worker.address) if kind != "pool" else None
        named = self._workers.get(worker.worker_id)
        found = {w.worker_id: w for w in (*(wanted.workers if wanted else ()), *((named,) if named else ()))}
        for present in found.values():
            is_same = present.worker_id == worker.worker_id and present.lease == worker.lease
            if not is_same and self._leases.is_alive(present.lease):
                raise DuplicateRegistration(
                    f"{worker.address} is served by {present.worker_id!r} already{_place(present)}: end that one"
                    f" first, or {_way_out(worker, present)}",
                    address=worker.address,
                    worker_id=present.worker_id,
                    pid=present.pid,
                    host=present.host,
                )
        return list(found.values())

    def _check_strategy(self, service: Service | None, asked: Strategy | None) -> Strategy:
        if service is None:
            return asked or "round_robin"
        if asked not in (None, service.strategy):
            raise PolicyMismatch(
                f"{service.address} has strategy {service.strategy}, asked for was {asked}",
                what="strategy",
                expected=service.strategy,
                actual=asked,
            )
        return service.strategy

    def _place(self, worker: Worker, address: str, strategy: Strategy, now: float) -> None:
        service = self._services.get(address) or Service(address=address, strategy=strategy)
        if worker not in service.workers:
            self._change(address, replace(service, workers=[*service.workers, worker]), now)

    def _remove(self, worker: Worker, now: float) -> None:
        self._leases.detach(worker.lease, _member(worker), now=now)
        for address in (worker.address, f"id:{worker.worker_id}"):
            service = self._services.get(address)
            if service is None:
                continue  # a worker of `id:` has one address, not two
            left = [w for w in service.workers if w.worker_id != worker.worker_id]
            stays = left or address.startswith("pool:")
            self._change(address, replace(service, workers=left) if stays else None, now)

    def _change(self, address: str, service: Service | None, now: float) -> None:
        event = ServiceChanged(address=address, service=service, previous=self.revision_of(address))
        self._emit(event, now)
        if service is not None:
            event.service = replace(service, revision=event.revision)
        self.follow(event)

    def _note(self, event: ServiceChanged, now: float) -> None:
        event.revision, event.at = self.revision + 1, now
        self._happened.append(event)

    def follow(self, event: ServiceChanged) -> None:
        """Take over a change, also one of another registry, of which this one is a copy."""
        address, service = event.address, event.service
        self.revision = max(self.revision, event.revision)
        if service is None:
            self._services.pop(address, None)
            self._turns.pop(address, None)
        else:
            if address not in self._services:
                self._names.add(address)
            self._services[address] = service
        kind, _, name = address.partition(":")
        if kind == "id":  # every worker has this address, and none shares it
            if service is None:
                self._workers.pop(name, None)
                self._mailboxes.pop(name, None)
            else:
                (self._workers[name],) = service.workers


SERVICE_COMMANDS: dict[type[commands.Command], Callable[[ServiceDecisions, Any, float], replies.Reply]] = {
    commands.RegisterWorker: ServiceDecisions.register,
    commands.UnregisterWorker: ServiceDecisions.unregister,
    commands.ResolveService: ServiceDecisions.resolve,
    commands.ListServices: ServiceDecisions.list_services,
    commands.RemovePool: ServiceDecisions.remove_pool,
    commands.ReportDeadLetter: ServiceDecisions.report,
    commands.ListDeadLetters: ServiceDecisions.list_letters,
    commands.RemoveDeadLetters: ServiceDecisions.remove_letters,
}


def _member(worker: Worker) -> Member:
    return Member("worker", worker.address, worker.worker_id)


def _worker(command: commands.RegisterWorker) -> Worker:
    return Worker(
        worker_id=command.worker_id,
        address=command.address,
        endpoint=command.endpoint,
        key=command.key,
        lease=command.lease,
        concurrency=command.concurrency,
        host=command.host,
        pid=command.pid,
        start_time=command.start_time,
        boot_id=command.boot_id,
        tcp_endpoint=command.tcp_endpoint,
        tcp_key=command.tcp_key,
    )


def _says_the_same(present: Worker, candidate: Worker) -> bool:
    return replace(candidate, **{name: getattr(present, name) for name in _BY_REGISTRY}) == present


def _place(worker: Worker) -> str:
    said = [f"{what} {value}" for what, value in (("pid", worker.pid), ("host", worker.host)) if value is not None]
    return f" ({', '.join(said)})" if said else ""


def _way_out(worker: Worker, present: Worker) -> str:
    if worker.worker_id == present.worker_id:
        return "give this worker an id of its own"
    return "have both serve a pool, `pool:NAME`, which takes several workers"


def _summary(service: Service, mailboxes: dict[str, MailboxState]) -> replies.ServiceSummary:
    return replies.ServiceSummary(
        address=service.address,
        strategy=service.strategy,
        workers=[
            replies.WorkerSummary(
                worker_id=worker.worker_id,
                status=worker.status,
                concurrency=worker.concurrency,
                host=worker.host,
                pid=worker.pid,
                tcp_endpoint=worker.tcp_endpoint,
                registered_at=worker.registered_at,
                mailbox=mailboxes.get(worker.worker_id),
            )
            for worker in service.workers
        ],
        revision=service.revision,
    )


def _is_implied(service: Service) -> bool:
    """Return whether the address is the id of a worker that has an address of its own."""
    return service.address.startswith("id:") and service.workers[0].address != service.address
