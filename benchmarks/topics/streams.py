"""Correlated streams: what it costs to find the queue of one message."""

from queue import SimpleQueue
from time import perf_counter

from benchmarks.harness import Bench, comparison
from benchmarks.placement import Placement
from benchmarks.verdicts import at_most, beside
from messagehub.streams import JUPYTER_CATEGORIES, StreamMessage, StreamRouter


@comparison("routing one correlated message", placements=[Placement.SAME_CORE])
def routing(bench: Bench) -> None:
    """Among a hundred requests under way, each message to its request and its category."""
    router = StreamRouter()
    queues: list[SimpleQueue[StreamMessage]] = []
    for number in range(100):
        queue: SimpleQueue[StreamMessage] = SimpleQueue()
        router.register(f"r{number}", dict.fromkeys(JUPYTER_CATEGORIES, queue), now=0.0)
        queues.append(queue)
    messages = [StreamMessage(f"r{number % 100}", "stream") for number in range(1000)]
    rounds = bench.scaled(50, 10)

    def route() -> float:
        start = perf_counter()
        for _ in range(rounds):
            for message in messages:
                router.route(message, now=0.0)
        taken = perf_counter() - start
        _empty(queues)
        return taken / rounds / len(messages) * 1e6

    def put() -> float:
        """The floor: a dict lookup and a put."""
        by_request = {f"r{number}": queue.put_nowait for number, queue in enumerate(queues)}
        start = perf_counter()
        for _ in range(rounds):
            for message in messages:
                by_request[str(message.request_id)](message)
        taken = perf_counter() - start
        _empty(queues)
        return taken / rounds / len(messages) * 1e6

    bench.compare(
        {"route": route, "dict lookup and put": put},
        unit="µs",
        claims=[at_most(2.0, "route"), beside("route", "dict lookup and put")],
    )


def _empty(queues: list[SimpleQueue[StreamMessage]]) -> None:
    for queue in queues:
        while not queue.empty():
            queue.get_nowait()
