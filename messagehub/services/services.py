"""Services: a message to one participant, and its answer; caller and worker are connected directly.

The broker tells who serves an address and who is alive, and is not on the way of a message. `requests.py` has
the caller's side; here is what this hub serves: registered with the broker, with a key that callers get from it.
"""

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from msgspec.structs import replace

from messagehub.client.connection import Connection
from messagehub.client.heartbeats import Heartbeats
from messagehub.errors import BrokerRequired, BrokerUnavailable, HubError, NotInitialised
from messagehub.runtime.background import BackgroundThreads
from messagehub.runtime.handler_loop import HandlerLoop
from messagehub.services.between_hosts.relay import HostRelay
from messagehub.services.mailbox import Job, Overflow
from messagehub.services.metrics import ServiceMetrics
from messagehub.services.outgoing_requests import letter_of
from messagehub.services.payloads import PayloadEncoder
from messagehub.services.requests import Requests
from messagehub.services.server import ServiceServer
from messagehub.services.workers import DRAIN_SECONDS, Handler, ServiceWorker
from messagehub.shm.locks import check_spare_files
from registry import commands, replies
from registry.records import MailboxState, Priority, Strategy
from registry.services.workers import check_address

log = logging.getLogger("messagehub.services")

SERVICES_SITE = "services_site"
"""In HELLO_ACK: the address of this host on which workers of a site listen for callers of other hosts."""
SERVER_FILES = 6
"""How many descriptors a server needs before anybody calls it, with some to accept callers."""
MOST_REPORTED = 1000
"""How many mailboxes a heartbeat tells of."""


class Services:
    def __init__(
        self,
        connection: Connection,
        heartbeats: Heartbeats,
        *,
        sender: str,
        owner: dict[str, Any],
        default_timeout: float,
        background: BackgroundThreads,
    ) -> None:
        """`owner` names this process in registrations, and `sender` it in messages."""
        self.metrics = ServiceMetrics()
        self._encoder = PayloadEncoder(connection.settings)
        self._relay = HostRelay(connection.count_defect)
        self._listening: tuple[str, str] | None = None
        """Where callers of other hosts reach this process, and the key that it has there."""
        self.requests = Requests(
            connection,
            self.metrics,
            sender=sender,
            default_timeout=default_timeout,
            background=background,
            encoder=self._encoder,
            host=owner["host"],
            relay=self._relay,
        )
        report = self.requests.report

        def on_dropped(served: ServiceWorker, job: Job, error: HubError) -> None:
            """Report a message that a worker dropped, and that its sender believes to be delivered."""
            report(letter_of(served.address, job, error))

        self._on_dropped = on_dropped
        self._connection = connection
        self._heartbeats = heartbeats
        self._owner = owner
        self._default_timeout = default_timeout
        self._handler_loop = HandlerLoop()
        self._serving = threading.Lock()
        self._server: ServiceServer | None = None
        self._served: list[ServiceWorker] = []
        self._is_closed = False
        self._access: str | None = None
        self._changing_keys: set[ServiceWorker] = set()
        hear_access = weakref.WeakMethod(self._hear_access)  # the I/O thread must not hold what this hub serves
        mailboxes = weakref.WeakMethod(self._mailboxes)
        heartbeats.mailboxes = lambda: found() if (found := mailboxes()) is not None else {}
        heartbeats.on_access = lambda access, is_settled: _call(hear_access(), access, is_settled)

    def serve(
        self,
        address: str,
        handler: Handler,
        *,
        worker_id: str,
        concurrency: int,
        mailbox: int,
        overflow: Overflow | Mapping[Priority, Overflow] | None,
        strategy: Strategy | None,
        timeout: float,
        loop: asyncio.AbstractEventLoop | None,
    ) -> ServiceWorker:
        """Register a worker and serve its address.

        An asynchronous handler is awaited in `loop`, or in one of the hub's own.
        """
        kind, name = check_address(address)
        worker_id = name if kind == "id" else worker_id
        server = self._serving_now()
        served = ServiceWorker(
            address,
            worker_id,
            handler,
            concurrency=concurrency,
            mailbox=mailbox,
            overflow=overflow,
            metrics=self.metrics,
            server=server,
            asks=self.requests,
            on_dropped=self._on_dropped,
            loop=loop,
            own_loop=self._handler_loop,
            encoder=self._encoder,
        )
        server.add(served)  # before anybody can be told of it
        try:
            tcp_endpoint, tcp_key = self._listen_for_other_hosts(server, timeout)
            command = commands.RegisterWorker(
                address=address,
                worker_id=worker_id,
                endpoint=server.endpoint,
                key=served.keys.current,
                strategy=strategy,
                concurrency=concurrency,
                tcp_endpoint=tcp_endpoint,
                tcp_key=tcp_key,
                **self._owner,
            )
            served.registration = self._heartbeats.register(command, timeout=timeout, required=True)
        except BrokerUnavailable as missing:
            server.remove(served)
            raise BrokerRequired(f"services need a broker: {missing.message}", **missing.details) from missing
        except BaseException:
            server.remove(served)
            raise
        with self._serving:
            self._served.append(served)
        return served

    def _mailboxes(self) -> dict[str, MailboxState]:
        return {served.worker_id: served.mailbox.state() for served in list(self._served)[:MOST_REPORTED]}

    def _hear_access(self, access: str, is_settled: bool) -> None:
        """Change the keys of all workers when the rights of any peer have changed. Called on the I/O thread.

        A worker that is being registered again would bring its old key back: then the next heartbeat says the same.
        """
        if self._access is None:
            self._access = access
        if access == self._access or self._changing_keys or not is_settled:
            return
        with self._serving:
            served = [each for each in self._served if each.is_registered]
        if not served:
            self._access = access
            return
        failed: list[ServiceWorker] = []
        self._changing_keys = set(served)
        for each in served:
            self._change_key(each, access, failed)

    def _change_key(self, served: ServiceWorker, access: str, failed: list[ServiceWorker]) -> None:
        registration = served.registration
        assert registration is not None
        assert isinstance(registration.command, commands.RegisterWorker)
        command = replace(registration.command, key=served.keys.propose())

        def done(reply: replies.AnyReply | None, error: HubError | None) -> None:  # noqa: ARG001
            if isinstance(reply, replies.WorkerRegistered):
                registration.command = command
                served.keys.adopt(command.key)
            else:
                failed.append(served)  # the next heartbeat has it tried again
            self._changing_keys.discard(served)
            if not self._changing_keys and not failed:
                self._access = access

        try:
            self._connection.submit(command, done, timeout=self._default_timeout)
        except HubError as error:  # must not end the thread that all of the hub needs
            done(None, error)

    def _serving_now(self) -> ServiceServer:
        with self._serving:
            if self._is_closed:
                raise NotInitialised("this hub is closed")
            if self._server is None:
                check_spare_files(SERVER_FILES)
                self._server = ServiceServer(self.metrics, self._on_dropped, self._connection.count_defect)
            return self._server

    def _listen_for_other_hosts(self, server: ServiceServer, timeout: float) -> tuple[str | None, str | None]:
        """Return where callers of other hosts reach the server and the key that it shows there; none without a site."""
        hello = self._connection.hello or self._connection.ask_hello(timeout=timeout)
        found = hello.endpoints.get(SERVICES_SITE)
        if found is None:
            return None, None
        with self._serving:
            if self._listening is None:
                address = found.removeprefix("tcp://").rpartition(":")[0]
                try:
                    self._listening = self._relay.listen(address, server.accept)
                except OSError as error:
                    said = "services of this process are found on this host only: nothing can listen at %s: %s"
                    log.warning(said, address, error)
                    return None, None
            return self._listening

    # -- ending --------------------------------------------------------------------------------------------

    def close(self, *, timeout: float = DRAIN_SECONDS) -> None:
        """End what is served, after what was taken has been handled; requests under way end. Idempotent."""
        with self._serving:
            self._is_closed = True
            served, self._served = self._served, []
            server, self._server = self._server, None
        deadline = monotonic() + timeout  # for all of them
        for each in served:
            each.stop_taking(timeout=max(deadline - monotonic(), 0.0))
        for each in served:
            each.close(timeout=max(deadline - monotonic(), 0.0))
        if server is not None:
            server.close()
        self._handler_loop.close()
        self.requests.close()
        self._relay.close()

    def abandon(self) -> None:
        """End in a forked child: the sockets and the workers are the parent's."""
        self._is_closed = True
        for served in self._served:
            served.abandon()
        if self._server is not None:
            self._server.abandon()
        self.requests.abandon()
        self._relay.abandon()


def _call(hear: Callable[[str, bool], None] | None, access: str, is_settled: bool) -> None:
    if hear is not None:
        hear(access, is_settled)
