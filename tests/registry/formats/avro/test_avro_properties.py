"""Avro against the two libraries: no verdict differs, no datum contradicts a verdict, no text escapes."""

import io
import json
from typing import Any

import avro.compatibility
import avro.schema
import fastavro
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.formats import avro as avro_format
from registry.formats.differences import BudgetExceeded, MalformedSchema
from tests.levels import examples

PRIMITIVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    """Schemas over few names, so that pairs of them meet often."""
    used: set[str] = set()

    def kind(depth: int, in_union: bool) -> Any:
        choice = draw(st.integers(0, 9))
        if depth == 0 or choice < 4:
            return draw(PRIMITIVES)
        if choice == 4:
            return {"type": "array", "items": kind(depth - 1, False)}
        if choice == 5:
            return {"type": "map", "values": kind(depth - 1, False)}
        if choice == 6 and not in_union:
            branches: dict[str, Any] = {}
            for _ in range(draw(st.integers(1, 3))):
                branch = kind(depth - 1, True)
                branches.setdefault(branch if isinstance(branch, str) else branch.get("name", branch["type"]), branch)
            return list(branches.values())
        name = draw(st.sampled_from([name for name in ("P", "Q", "S", "T", "U", "V", "W", "X") if name not in used]))
        used.add(name)
        if choice == 7:
            symbols = draw(st.lists(st.sampled_from("ABC"), min_size=1, unique=True))
            default = {"default": symbols[0]} if draw(st.booleans()) else {}
            return {"type": "enum", "name": name, "symbols": symbols, **default}
        if choice == 8:
            return {"type": "fixed", "name": name, "size": draw(st.integers(1, 2))}
        fields = []
        for label in draw(st.lists(st.sampled_from("abc"), unique=True)):
            inner = draw(st.sampled_from([None, None, ["null", name]]))
            field = {"name": label, "type": inner or kind(depth - 1, False)}
            if inner and draw(st.booleans()):
                field["default"] = None
            fields.append(field)
        return {"type": "record", "name": name, "fields": fields}

    return kind(3, False)


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[Any, Any]:
    """A schema and itself after a few edits, so that many pairs are nearly or wholly readable."""

    def often() -> bool:
        return draw(st.integers(0, 4)) > 0

    def edit(kind: Any) -> Any:
        if isinstance(kind, str):
            return kind if often() or kind[0].isupper() else draw(PRIMITIVES)
        if isinstance(kind, list):
            return list({str(branch): branch for branch in map(edit, kind) if often()}.values())
        kept = dict(kind)
        for part in ("items", "values"):
            if part in kept:
                kept[part] = edit(kept[part])
        if "symbols" in kept and "default" not in kept:
            kept["symbols"] = [symbol for symbol in kept["symbols"] if often()]
        if "fields" in kept:
            kept["fields"] = [
                {**field, "type": field["type"] if "default" in field else edit(field["type"])}
                for field in kept["fields"]
                if often()
            ]
        return kept

    old = draw(schemas())
    return (old, edit(old)) if draw(st.booleans()) else (edit(old), old)


def library_verdict(old: Any, new: Any) -> bool:
    reader, writer = (avro.schema.parse(json.dumps(schema)) for schema in (new, old))
    checker = avro.compatibility.ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    verdict = checker.get_compatibility(reader, writer)
    return verdict.compatibility is avro.compatibility.SchemaCompatibilityType.compatible


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(schemas(), schemas()) | evolutions())
def test_verdict_equals_that_of_the_avro_library(pair: tuple[Any, Any]) -> None:
    old, new = pair
    found = avro_format.compare(avro_format.parse(json.dumps(old), {}), avro_format.parse(json.dumps(new), {}))
    assert (not found) == library_verdict(old, new)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(schemas(), st.data())
def test_a_schema_reads_itself_and_its_canonical_form_is_stable(schema: Any, data: st.DataObject) -> None:
    parsed = avro_format.parse(json.dumps(schema), {})
    assert avro_format.compare(parsed, parsed) == []
    assert avro_format.normalize(parsed.canonical, {}) == parsed.canonical


WRITERS = [
    ("int", 7),
    ("string", "text"),
    (["null", "int"], None),
    ({"type": "array", "items": "int"}, [1, 2]),
    ({"type": "enum", "name": "P", "symbols": ["A", "B"]}, "B"),
    (
        {
            "type": "record",
            "name": "P",
            "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}],
        },
        {"a": 1, "b": "x"},
    ),
]


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(WRITERS), schemas())
def test_what_is_called_readable_is_read_by_fastavro(writer: tuple[Any, Any], new: Any) -> None:
    old, datum = writer
    if avro_format.compare(avro_format.parse(json.dumps(old), {}), avro_format.parse(json.dumps(new), {})):
        return
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, fastavro.parse_schema(old), datum)
    encoded.seek(0)
    fastavro.schemaless_reader(encoded, fastavro.parse_schema(old), fastavro.parse_schema(new))


WORDS = st.sampled_from(
    [
        "type",
        "name",
        "fields",
        "items",
        "values",
        "record",
        "array",
        "map",
        "enum",
        "fixed",
        "symbols",
        "size",
        "int",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | WORDS,
    lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner),
    max_leaves=6,
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(st.text() | JSON.map(json.dumps))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    try:
        avro_format.parse(text, {})
    except (MalformedSchema, BudgetExceeded):
        pass
