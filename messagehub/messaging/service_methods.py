"""The facade's methods about services: `hub.serve`, `hub.request`, `hub.send`, `hub.stream`."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from messagehub.errors import ConfigurationError
from messagehub.messaging.service_mailbox import Overflow
from messagehub.messaging.service_replies import PendingReply
from messagehub.messaging.service_streams import StreamedReply
from messagehub.messaging.service_workers import Handler, Served
from messagehub.messaging.services import Services
from registry import commands, replies
from registry.records import Priority, Strategy

PAGE = 1000


class ServiceMethods(ABC):
    """What `MessageHub` provides to them is declared here; nobody else inherits."""

    _services: Services

    @abstractmethod
    def ask(self, command: commands.Command, *, timeout: float | None = None) -> replies.AnyReply: ...

    @abstractmethod
    def _limit(self, timeout: float | None) -> float: ...

    @abstractmethod
    def _role(self, kind: str) -> str: ...

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
    ) -> Served:
        """Have `handler(message, context)` called for what is sent to the address; what it returns is the reply.

        `id:`, `name:` and `service:` have one worker, `pool:` any number, chosen by the pool's strategy: round_robin
        (default), random or least_busy. Up to `concurrency` handlers run at once and up to `mailbox` messages wait;
        `overflow` says what becomes of more: block, drop or error, for all or by priority (high blocks, normal is an
        error, low is dropped). Registered until closed, also across restarts of the broker.
        """
        _check_handler(handler)
        return self._services.serve(
            address,
            handler,
            worker_id=self._role("worker"),
            concurrency=concurrency,
            mailbox=mailbox,
            overflow=overflow,
            strategy=strategy,
            timeout=self._limit(timeout),
        )

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
        """The reply of whoever serves the address. What its handler raises is raised here.

        `timeout` bounds it all. `retries` are for what was certainly not handled (nobody there, not reached, mailbox
        full or closed), with growing pauses; with `idempotent` also for workers that ended before they answered.
        """
        return self._services.request(
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
    ) -> PendingReply:
        """As `request`, without waiting: `result()` of what it returns does. Many may be on their way from one thread.

        Take every result: what nobody takes is given up only when the hub is closed.
        """
        return self._services.begin(
            address, payload, timeout=timeout, retries=retries, headers=headers, priority=priority
        )

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
        """A message that wants no reply; returns when it is in the worker's mailbox."""
        self._services.send(address, payload, timeout=timeout, retries=retries, headers=headers, priority=priority)

    def stream(
        self,
        address: str,
        payload: Any = None,
        *,
        timeout: float | None = None,
        retries: int = 0,
        headers: dict[str, Any] | None = None,
        priority: Priority = "normal",
    ) -> StreamedReply:
        """A request whose partial results (`context.stream`) are iterated as they come; `result` is the reply."""
        return self._services.stream(
            address, payload, timeout=timeout, retries=retries, headers=headers, priority=priority
        )

    def services(self, prefix: str = "", *, timeout: float | None = None) -> list[replies.ServiceSummary]:
        """All addresses that start with the prefix, and who serves them."""
        found: list[replies.ServiceSummary] = []
        after: str | None = ""
        while after is not None:
            page = self.ask(commands.ListServices(prefix=prefix, after=after, limit=PAGE), timeout=timeout)
            assert isinstance(page, replies.ServiceList)
            found += page.services
            after = page.next
        return found

    def remove_pool(self, address: str, *, timeout: float | None = None) -> None:
        """Forget an empty pool; its workers have to leave first."""
        self.ask(commands.RemovePool(address=address), timeout=timeout)

    def dead_letters(
        self, address: str | None = None, *, limit: int = 100, timeout: float | None = None
    ) -> replies.DeadLetterList:
        """The newest messages that were given up, by whichever process; the broker keeps a bounded number."""
        listed = self.ask(commands.ListDeadLetters(address=address, limit=limit), timeout=timeout)
        assert isinstance(listed, replies.DeadLetterList)
        return listed


def _check_handler(handler: Any) -> None:
    """Refuse at once what every request would fail with."""
    try:
        inspect.signature(handler).bind(None, None)
    except ValueError:
        return  # of a callable without a signature nothing is known
    except TypeError as error:
        raise ConfigurationError(f"handler {handler!r} is not called as handler(message, context): {error}") from None
