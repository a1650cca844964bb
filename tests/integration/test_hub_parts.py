"""The hub's delegated methods: each reaches a part that has it, and looks like that part's own."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.runtime.delegation import delegate


class Lamp:
    def __init__(self, name: str) -> None:
        self.name = name

    def light(self, level: int = 1, *, colour: str = "white") -> str:
        """Light it."""
        return f"{self.name} {level} {colour}"

    async def light_async(self, level: int) -> str:
        return self.light(level)


class Room:
    def __init__(self, lamp: Lamp) -> None:
        self.lamp = lamp


class House:
    def __init__(self, room: Room) -> None:
        self.room = room

    light = delegate("room.lamp", Lamp.light)
    light_async = delegate("room.lamp", Lamp.light_async)


def test_a_delegated_method_is_called_on_the_part_of_now() -> None:
    house = House(Room(Lamp("first")))
    assert house.light(2, colour="red") == "first 2 red"
    house.room = Room(Lamp("second"))
    assert house.light() == "second 1 white"


def test_a_delegated_method_has_signature_and_docstring_of_the_parts_own() -> None:
    assert inspect.signature(House.light) == inspect.signature(Lamp.light)
    assert House.light.__doc__ == "Light it."
    assert House.light.__name__ == "light"


def test_a_delegated_coroutine_function_is_one() -> None:
    assert inspect.iscoroutinefunction(House.light_async)
    made = House(Room(Lamp("lamp"))).light_async(3)
    with pytest.raises(StopIteration) as ended:
        made.send(None)
    assert ended.value.value == "lamp 3 white"


def delegations() -> Iterator[tuple[str, Any, Any]]:
    """The name, the way to the part, and the part's own method, of every method that the hub delegates."""
    for name, method in inspect.getmembers(MessageHub, inspect.isfunction):
        wrapped = method
        while hasattr(wrapped, "__wrapped__"):
            held = inspect.getclosurevars(wrapped).nonlocals
            if "part_of" in held and "method" in held:
                yield name, held["part_of"], held["method"]
            wrapped = wrapped.__wrapped__


def test_every_delegated_method_of_the_hub_reaches_the_part_that_has_it(tmp_path: Path) -> None:
    found = list(delegations())
    assert len(found) > 50
    with MessageHub(dir=tmp_path) as hub:
        for name, part_of, method in found:
            reached = getattr(type(part_of(hub)), method.__name__, None)
            assert reached is method, name
