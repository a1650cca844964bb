"""Several processes race for an exclusive channel: exactly one gets it, by whichever way they reach the registry."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.block_processes import Place, place_in
from tests.integration.harness import Served

RACERS, ROUNDS = 4, 15
RACE = """
from messagehub.errors import ProducerAlreadyRegistered

say(ready=True)
for line in sys.stdin:
    channel, kind = line.split()
    try:
        held = hub.producer(channel) if kind == "block" else hub.register_producer(channel, schema_hash="h")
        say(won=bool(held) if kind == "nominal" else True)
    except ProducerAlreadyRegistered:
        say(won=False)
"""


@pytest.fixture(params=["broker", "files"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"r{os.getpid()}") as made:
        if request.param == "files":
            yield made
        else:
            with Served(made.dir):
                yield made


def test_exactly_one_of_many_gets_an_exclusive_channel(place: Place) -> None:
    racers = [place.process(RACE) for _ in range(RACERS)]
    for racer in racers:
        racer.hear()
    for number in range(ROUNDS):
        kind = "block" if number % 2 else "nominal"
        for racer in racers:
            racer.tell(f"raced{number} {kind}")
        won = [racer.hear()["won"] for racer in racers]
        assert sum(won) == 1, (number, kind, won)


def test_the_place_of_the_killed_is_raced_for_again(place: Place) -> None:
    racers = [place.process(RACE) for _ in range(RACERS)]
    for racer in racers:
        racer.hear()
    while len(racers) > 1:
        for racer in racers:
            racer.tell("inherited block")
        won = [racer.hear()["won"] for racer in racers]
        assert sum(won) == 1, won
        winner = racers.pop(won.index(True))
        winner.kill()
        _until_free(place)


def _until_free(place: Place) -> None:
    from tests.integration.harness import eventually

    hub = place.hub()
    eventually(lambda: hub.discover("inherited") is None)
