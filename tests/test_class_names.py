"""A class name means one thing: one that exists twice says here why (decision 0020)."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
EVENT_AND_REPLY = {"registry/events.py", "registry/replies.py"}
"""An event and the reply that acknowledges it: what happened, told to all and to the one who asked for it."""
REASONS = {
    "Collector": "of a stream's messages, which users import; of a column's statistics, inside shm",
    "Consumer": "a record of the registry; what a user holds and imports",
    "Message": "of a topic, which users import; a message type of a Protobuf schema, which is that language's word",
    "Producer": "a record of the registry; what a user holds and imports",
    "Reply": "the base of what the broker answers; an output of a Jupyter kernel, which users import",
    "_Column": "inside one module each: a column of Arrow data with its bounds; a column of Spark made from JSON",
    "_Types": "inside one module each, the same for two formats: the types of Spark for those of a schema",
}


@cache
def twice() -> dict[str, list[str]]:
    """The classes of the product whose name exists more than once, with the files that define them."""
    files = defaultdict(list)
    for top in ("registry", "messagehub"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    files[node.name].append(str(path.relative_to(ROOT)))
    return {name: found for name, found in files.items() if len(found) > 1 and set(found) != EVENT_AND_REPLY}


def test_a_class_name_that_exists_twice_has_a_reason() -> None:
    assert {name: found for name, found in twice().items() if name not in REASONS} == {}


def test_every_reason_is_of_a_name_that_exists_twice() -> None:
    assert REASONS.keys() - twice().keys() == set()
