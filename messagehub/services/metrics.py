"""Exact numbers of a hub's requests and services, whatever the number of threads."""

import threading

NAMES = (
    "sent",  # messages that left for a worker, each attempt by itself
    "retried",  # attempts after the first
    "timeouts",  # requests whose answer did not come in time
    "late_replies",  # answers that came after their request had ended
    "dead_letters",  # messages that were given up
    "received",  # messages that reached workers of this hub
    "handled",  # of these, given to a handler
    "dropped",  # of these, dropped by a full mailbox
    "refused",  # of these, refused by a full or closed mailbox
    "expired",  # of these, dropped unseen since their deadline had passed
    "malformed",  # connections that ended since they spoke something else
)


class ServiceMetrics:
    def __init__(self) -> None:
        self._counts = dict.fromkeys(NAMES, 0)
        self._lock = threading.Lock()

    def count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self._counts[name] += by

    def report(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
