"""The methods of a hub about services: `serve`, `request`, `send`, `stream`, and their asynchronous forms."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from messagehub.arguments import whole_from
from messagehub.client.identity import ClientIdentity
from messagehub.client.pages import pages
from messagehub.discovery.registry_client import RegistryClient
from messagehub.display.listing import Listing
from messagehub.errors import BrokerRequired, BrokerTimeout, BrokerUnavailable
from messagehub.runtime.background import BackgroundThreads
from messagehub.runtime.callbacks import check_callback
from messagehub.runtime.event_loop import running_loop
from messagehub.services.frames import REQUEST, SEND
from messagehub.services.mailbox import Overflow
from messagehub.services.replies import PendingReply
from messagehub.services.resending import Resent, resend
from messagehub.services.services import Services
from messagehub.services.streams import StreamedReply
from messagehub.services.workers import Handler, ServiceWorker
from messagehub.topics.publishing import TopicPublisher
from registry import commands, replies
from registry.records import Priority, Strategy
from registry.services.dead_letters import MOST_LETTERS

PAGE = 1000


class ServiceCalls:
    def __init__(
        self,
        services: Services,
        registry: RegistryClient,
        publisher: TopicPublisher,
        background: BackgroundThreads,
        identity: ClientIdentity,
        *,
        hub: Callable[[], object],
    ) -> None:
        """`publisher` is for dead letters of topics. `hub` gives what all that is made here keeps alive."""
        self._services = services
        self._requests = services.requests
        self._registry = registry
        self._publisher = publisher
        self._background = background
        self._identity = identity
        self._hub = hub

    def _ask_broker(self, command: commands.Command, *, timeout: float | None) -> replies.AnyReply:
        """As `ask`; without a broker it raises what `serve`, `request` and the methods about topics raise."""
        try:
            return self._registry.ask(command, timeout=timeout)
        except BrokerTimeout:
            raise
        except BrokerUnavailable as missing:
            raise BrokerRequired(f"services need a broker: {missing.message}", **missing.details) from missing

    def serve(
        self,
        address: str,
        handler: Handler,
        *,
        concurrency: int = 1,
        mailbox: int = 100,
        overflow: Overflow | Mapping[Priority, Overflow] | None = None,
        strategy: Strategy | None = None,
        timeout: float | None = None,
    ) -> ServiceWorker:
        """Have `handler(message, context)` called for what is sent to the address; what it returns is the reply.

        `id:`, `name:` and `service:` have one worker, `pool:` any number, chosen by the pool's strategy: round_robin
        (default), random or least_busy. Up to `concurrency` handlers run at once and up to `mailbox` messages wait;
        `overflow` says what becomes of more: block, drop or error, for all or by priority (high blocks, normal is an
        error, low is dropped). Registered until closed, also across restarts of the broker.

        What a generator yields is streamed. An `async def` handler is awaited in the event loop that runs here now, or
        without one in a loop of the hub's own.
        """
        check_callback(handler, name="handler", arguments=("message", "context"), may_stream=True)
        served = self._services.serve(
            address,
            handler,
            worker_id=self._identity.role("worker"),
            concurrency=concurrency,
            mailbox=mailbox,
            overflow=overflow,
            strategy=strategy,
            timeout=self._registry.limit(timeout),
            loop=running_loop(),
        )
        served.keeps = self._hub()
        return served

    async def serve_async(
        self,
        address: str,
        handler: Handler,
        *,
        concurrency: int = 1,
        mailbox: int = 100,
        overflow: Overflow | Mapping[Priority, Overflow] | None = None,
        strategy: Strategy | None = None,
        timeout: float | None = None,
    ) -> ServiceWorker:
        """As `serve`, to be awaited."""
        check_callback(handler, name="handler", arguments=("message", "context"), may_stream=True)
        loop = asyncio.get_running_loop()
        served = await self._background.call(
            lambda remaining: self._services.serve(
                address,
                handler,
                worker_id=self._identity.role("worker"),
                concurrency=concurrency,
                mailbox=mailbox,
                overflow=overflow,
                strategy=strategy,
                timeout=remaining,
                loop=loop,
            ),
            timeout=self._registry.limit(timeout),
        )
        served.keeps = self._hub()
        return served

    def request(
        self,
        address: str,
        payload: Any = None,
        *,
        timeout: float | None = None,
        retries: int = 0,
        headers: dict[str, Any] | None = None,
        priority: Priority = "normal",
        idempotent: bool = False,
    ) -> Any:
        """Return the reply of the worker that serves the address. What its handler raises is raised here.

        `timeout` bounds it all. `retries` are for what was certainly not handled (nobody there, not reached, mailbox
        full or closed), with growing pauses; with `idempotent` also for workers that ended before they answered.
        """
        return self._requests.request(
            address,
            payload,
            timeout=timeout,
            retries=retries,
            headers=headers,
            priority=priority,
            idempotent=idempotent,
        )

    async def request_async(
        self,
        address: str,
        payload: Any = None,
        *,
        timeout: float | None = None,
        retries: int = 0,
        headers: dict[str, Any] | None = None,
        priority: Priority = "normal",
        idempotent: bool = False,
    ) -> Any:
        """As `request`, to be awaited. When the task is cancelled, so is the request."""
        return await self._requests.ask_async(
            REQUEST,
            address,
            payload,
            timeout=timeout,
            retries=retries,
            headers=headers,
            priority=priority,
            idempotent=idempotent,
        )

    def begin_request(
        self,
        address: str,
        payload: Any = None,
        *,
        timeout: float | None = None,
        retries: int = 0,
        headers: dict[str, Any] | None = None,
        priority: Priority = "normal",
        idempotent: bool = False,
    ) -> PendingReply:
        """Send a request without waiting for its reply, which `result()` and `await` give. Many may be on their way.

        The request is sent when this returns. In a running event loop it does not wait for that either, and what goes
        wrong on the way is raised with the result.
        """
        pending = self._requests.begin(
            address,
            payload,
            timeout=timeout,
            retries=retries,
            headers=headers,
            priority=priority,
            idempotent=idempotent,
        )
        pending.keeps = self._hub()
        return pending

    def send(
        self,
        address: str,
        payload: Any = None,
        *,
        timeout: float | None = None,
        retries: int = 0,
        headers: dict[str, Any] | None = None,
        priority: Priority = "normal",
    ) -> None:
        """Send a message that wants no reply, and return when it is in the worker's mailbox."""
        self._requests.send(address, payload, timeout=timeout, retries=retries, headers=headers, priority=priority)

    async def send_async(
        self,
        address: str,
        payload: Any = None,
        *,
        timeout: float | None = None,
        retries: int = 0,
        headers: dict[str, Any] | None = None,
        priority: Priority = "normal",
    ) -> None:
        """As `send`, to be awaited."""
        await self._requests.ask_async(
            SEND, address, payload, timeout=timeout, retries=retries, headers=headers, priority=priority
        )

    def stream(
        self,
        address: str,
        payload: Any = None,
        *,
        timeout: float | None = None,
        retries: int = 0,
        headers: dict[str, Any] | None = None,
        priority: Priority = "normal",
        idempotent: bool = False,
    ) -> StreamedReply:
        """Send a request and iterate its partial results (`context.stream`) as they come; `result` is the reply.

        Also `async for`, and `await` for the reply: in a running event loop this does not wait for anything. A request
        is tried again only until its first partial result.
        """
        reply = self._requests.stream(
            address,
            payload,
            timeout=timeout,
            retries=retries,
            headers=headers,
            priority=priority,
            idempotent=idempotent,
        )
        reply.keeps = self._hub()
        return reply

    def services(self, prefix: str = "", *, timeout: float | None = None) -> list[replies.ServiceSummary]:
        """Return all addresses that start with the prefix, and who serves them."""

        def ask(after: str, seconds: float) -> replies.ServiceList:
            page = self._ask_broker(commands.ListServices(prefix=prefix, after=after, limit=PAGE), timeout=seconds)
            assert isinstance(page, replies.ServiceList)
            return page

        return Listing(each for page in pages(ask, timeout=self._registry.limit(timeout)) for each in page.services)

    def remove_pool(self, address: str, *, timeout: float | None = None) -> None:
        """Remove an empty pool. Its workers have to leave first."""
        self._ask_broker(commands.RemovePool(address=address), timeout=timeout)

    def dead_letters(
        self, address: str | None = None, *, limit: int = 100, timeout: float | None = None
    ) -> replies.DeadLetterList:
        """Return the newest messages that were given up, by any process. The broker keeps a bounded number."""
        listed = self._ask_broker(commands.ListDeadLetters(address=address, limit=limit), timeout=timeout)
        assert isinstance(listed, replies.DeadLetterList)
        return listed

    def resend_dead_letters(
        self,
        address: str | None = None,
        *,
        numbers: Collection[int] | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Resent:
        """Send dead letters again, all or those to one address, oldest first, and forget those that were sent.

        `numbers` are those of single letters, as `dead_letters` has them; one that is not there is not counted.
        With a `limit` it ends when so many were sent. Nobody waits for replies: a request is sent as a message. One of
        a topic is published to it again, for all who read it. `timeout` is for all of them. Those beyond the limit, or
        without time, are counted as `left`.
        """
        deadline = time.monotonic() + self._registry.limit(timeout)
        if limit is not None:
            limit = whole_from(limit, "limit", 1, MOST_LETTERS)
        letters = self.dead_letters(address, limit=MOST_LETTERS, timeout=timeout).letters
        return resend(
            letters if numbers is None else [letter for letter in letters if letter.number in numbers],
            lambda to, payload, headers, seconds: self._resend(to, payload, headers or None, seconds),
            lambda number, seconds: self._ask_broker(commands.RemoveDeadLetters(numbers=[number]), timeout=seconds),
            limit=limit,
            deadline=deadline,
        )

    def _resend(self, address: str, payload: Any, headers: dict[str, Any] | None, timeout: float) -> None:
        """Send a dead letter again. One of a topic is published to it once more."""
        kind, _, name = address.partition(":")
        if kind == "topic":
            self._publisher.publish(name, payload, headers=headers, timeout=timeout)
        else:
            self._requests.send(address, payload, timeout=timeout, headers=headers, is_reported=False)
