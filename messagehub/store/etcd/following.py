"""Follows the head of a site: every transaction of its leader, in order, on a thread of the caller's.

Rule 1: nothing is passed over in silence. What etcd has compacted away, or what was too large to be sent, is told as
`Missed`, and the caller loads the records anew.
Rule 2: a member that is cut off from the others goes on serving its watch, and never says anything. So the head is read
through the quorum every `check_seconds`; a watch that is behind it for that long goes to another member.
Rule 3: `confirmed_at` is when the quorum last confirmed that what was heard is all there is: the age of a copy.
"""

import threading
from collections.abc import Callable
from time import monotonic

from messagehub.errors import StoreError
from messagehub.runtime.supervision import Supervisor
from messagehub.store.etcd import messages
from messagehub.store.etcd.client import EtcdClient, EtcdStream, StreamBroken
from messagehub.store.etcd.head import Head, decoded_head, head_key

CHECK_SECONDS = 1.0
PAUSE_SECONDS = 0.1
STOP_SECONDS = 10.0


class Missed(StoreError):
    """Changes are gone that were not heard of: load the records anew, and follow from there."""


class HeadWatch:
    def __init__(
        self,
        client: EtcdClient,
        site: str,
        *,
        after: int,
        check_seconds: float = CHECK_SECONDS,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`after` is the revision of etcd that the caller's records are of (`EtcdStore.loaded_at`)."""
        self.confirmed_at = 0.0
        """By the monotonic clock; 0 if never."""
        self.heard = after
        """The revision of etcd of the last change that was heard of."""
        self._client = client
        self._key = head_key(site)
        self._check_seconds = check_seconds
        self._supervisor = supervisor or Supervisor()
        self._stopping = threading.Event()
        self._call: EtcdStream | None = None

    def stop(self) -> None:
        """Have `run` return. From any thread."""
        self._stopping.set()
        if (call := self._call) is not None:
            call.cancel()

    def run(self, on_head: Callable[[Head], None]) -> None:
        """Call `on_head` for each transaction until `stop`; raise Missed or, for data that is not ours, StoreError."""
        checking = self._supervisor.start("messagehub-head-check", self._check)
        try:
            while not self._stopping.is_set():
                try:
                    self._follow(on_head)
                except StreamBroken:
                    self._client.pass_over()
                    self._stopping.wait(PAUSE_SECONDS)
        finally:
            self.stop()
            checking.join(STOP_SECONDS)

    def _follow(self, on_head: Callable[[Head], None]) -> None:
        self._call = call = self._client.stream(messages.WATCH, messages.watch(self._key, after=self.heard))
        if self._stopping.is_set():
            call.cancel()
        for response in call:
            if response.canceled:
                if response.compact_revision:
                    raise Missed("etcd has compacted changes that this hub had not heard of")
                return
            for event in response.events:
                self.heard = int(event.kv.mod_revision)
                if event.type != 0:
                    raise Missed("the head of the site was removed from etcd")
                on_head(decoded_head(event.kv.value, self._key))

    def _check(self) -> None:
        """Compare what was heard with what the quorum has, until `stop`."""
        was_at: int | None = None
        """What was heard when the watch was found to be behind."""
        while not self._stopping.wait(self._check_seconds):
            asked_at = monotonic()
            try:
                answer = self._client.ask(messages.RANGE, messages.RangeRequest(key=self._key))
            except StoreError:
                continue  # no quorum: the copy grows older
            newest = int(answer.kvs[0].mod_revision) if answer.kvs else 0
            if newest <= self.heard:
                self.confirmed_at, was_at = asked_at, None
            elif was_at == self.heard and (call := self._call) is not None:
                was_at = None
                call.cancel()  # and `run` tries another member
            else:
                was_at = self.heard
