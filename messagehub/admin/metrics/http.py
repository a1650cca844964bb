"""How many HTTP requests were answered, with which status, and how long each took to be answered.

Labels come from our own tables: a path is counted under the template of its endpoint, and everything that matches none
under `other`. An answer counts when its head leaves, so an event stream counts when it begins.
"""

from messagehub.runtime.metrics import Histogram

OTHER = "other"
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"))


class AnswerMetrics:
    def __init__(self) -> None:
        self.by_label: dict[tuple[str, str, int], Histogram] = {}

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method if method in _METHODS else OTHER, route, status)
        histogram = self.by_label.get(key)
        if histogram is None:
            histogram = self.by_label[key] = Histogram()
        histogram.record(seconds)


answered = AnswerMetrics()
"""What this process answered."""
