"""JSON near the wire messages: samples, and values a little or very wrong in one place or two."""

import json
from functools import cache
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tools import schema_files

SAMPLES: dict[str, dict[str, Any]] = {sample["type"]: sample for sample in schema_files.samples().values()}
KINDS = {name: kind for kind, members in schema_files.MESSAGES.items() for name in members}


@cache
def validator(wire_type: str) -> Draft202012Validator:
    return Draft202012Validator(schema_files.schema(KINDS[wire_type], wire_type))


NUMBERS = [0, 1, -1, 1.0, 0.5, 1e300, 2**53, 2**53 + 1, 2**63, 2**64, 10**25, float("inf"), float("nan")]
WORDS = ["", "x", "1.0", "2.0", "1.9", "high", "exclusive", "JSON", "active", "\0", "\xe9\U0001f600", "\ud800"]
LENGTHS = ["x" * 256, "x" * 257, "x" * 1024, "x" * 1025]
scalars = st.sampled_from([None, True, False, *NUMBERS, *WORDS, *LENGTHS])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "shm_name", "name"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def near_messages(draw: st.DrawFn, kinds: tuple[str, ...] = ("request", "reply", "event")) -> dict[str, Any]:
    """A sample with a few fields changed, dropped or added; changes may go into nested objects."""
    wire_type = draw(st.sampled_from(sorted(name for name, kind in KINDS.items() if kind in kinds)))
    message: dict[str, Any] = json.loads(json.dumps(SAMPLES[wire_type]))
    properties = sorted(validator(wire_type).schema["properties"].keys() - {"type"})
    for _ in range(draw(st.integers(0, 3))):
        target = message
        nested: list[dict[str, Any]] = [value for value in message.values() if isinstance(value, dict) and value]
        nested += [
            item for value in message.values() if isinstance(value, list) for item in value if isinstance(item, dict)
        ]
        is_nested = draw(st.booleans())
        if nested and is_nested:
            target = draw(st.sampled_from(nested))
            name = draw(st.sampled_from(sorted(target)) if target else st.just("a"))
        else:
            name = draw(st.sampled_from([*properties, "not_a_field"]))
        if draw(st.integers(0, 4)) == 0:
            target.pop(name, None)
        else:
            target[name] = draw(values)
    return message
