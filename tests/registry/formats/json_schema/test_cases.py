"""The tables of `cases`: results, names of differences, and counterexamples that `jsonschema` confirms."""

import json
from typing import Any

import pytest
from jsonschema.validators import validator_for  # type: ignore[import-untyped]  # publishes no types
from referencing import Registry

from registry.formats import json_schema
from tests.registry.formats.json_schema.cases import arrays, combined, objects, scalars, sizes
from tests.registry.formats.json_schema.cases.table import Case, Table

TABLES = {
    topic: table for module in (scalars, objects, arrays, combined, sizes) for topic, table in module.TABLES.items()
}


def is_valid(document: Any, schema: Any) -> bool:
    validator = validator_for(schema)(schema, registry=Registry())
    return bool(validator.is_valid(document))


def problem(case: Case) -> str | None:
    """What is wrong with the answer to a case, in words."""
    old = json_schema.parse(json.dumps(case.old), {})
    new = json_schema.parse(json.dumps(case.new), {})
    differences = json_schema.compare(old, new)
    if case.kinds is None:
        return None if not differences else f"compatible, but reported {differences}"
    if not {difference.kind for difference in differences} & case.kinds:
        return f"expected one of {set(case.kinds)}, got {differences}"
    shown = [difference for difference in differences if difference.counterexample is not None]
    for difference in shown:
        assert difference.counterexample is not None
        document = json.loads(difference.counterexample)
        if not is_valid(document, case.old) or is_valid(document, case.new):
            return f"{document!r} is no counterexample"
    if bool(shown) != case.is_shown:
        return f"a counterexample was {'not ' if case.is_shown else ''}expected in {differences}"
    if not all(difference.message.endswith(".") for difference in differences):
        return f"a message is no sentence in {differences}"
    return None


def test_there_are_at_least_three_hundred_cases_with_distinct_reasons() -> None:
    reasons = [(topic, case.why) for topic, table in TABLES.items() for case in table.cases]
    assert len(reasons) >= 300
    assert len(set(reasons)) == len(reasons)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_the_new_schema_takes_the_documents_of_the_old_exactly_when_the_table_says_so(table: Table) -> None:
    problems = {case.why: found for case in table.cases if (found := problem(case)) is not None}
    assert problems == {}


def test_a_difference_names_the_keyword_by_a_pointer_into_the_new_schema() -> None:
    old = json_schema.parse('{"properties": {"a/b": {"items": {"maxLength": 5}}}}', {})
    new = json_schema.parse('{"properties": {"a/b": {"items": {"maxLength": 4}}}}', {})
    (difference,) = json_schema.compare(old, new)
    assert (difference.kind, difference.path) == ("MAX_LENGTH_DECREASED", "#/properties/a~1b/items/maxLength")
    assert difference.message == "`maxLength` changed from 5 to 4."
    assert json.loads(difference.counterexample or "") == {"a/b": ["aaaaa"]}


def test_every_difference_is_reported_not_only_the_first() -> None:
    old = json_schema.parse('{"properties": {"a": {"maximum": 5}, "b": {"minimum": 1}}}', {})
    new = json_schema.parse('{"properties": {"a": {"maximum": 4}, "b": {"minimum": 2}}, "required": ["a"]}', {})
    kinds = [difference.kind for difference in json_schema.compare(old, new)]
    assert sorted(kinds) == ["MAXIMUM_DECREASED", "MINIMUM_INCREASED", "REQUIRED_ATTRIBUTE_ADDED"]


def test_a_required_property_without_need_for_recursion_is_reported_once() -> None:
    old = json_schema.parse('{"properties": {"next": {"$ref": "#"}}}', {})
    new = json_schema.parse('{"properties": {"next": {"$ref": "#"}}, "required": ["next"]}', {})
    differences = json_schema.compare(old, new)
    assert [(difference.kind, difference.path) for difference in differences] == [
        ("REQUIRED_ATTRIBUTE_ADDED", "#/required/0")
    ]


def test_answers_are_the_same_each_time() -> None:
    def answer() -> list[tuple[str, bytes]]:
        old = json_schema.parse('{"type": ["object", "array", "string"]}', {})
        new = json_schema.parse('{"oneOf": [{"minProperties": 2}, {"minItems": 1}, {"minLength": 1}]}', {})
        return [(found.kind, found.counterexample or "") for found in json_schema.compare(old, new)]

    assert answer() == answer()
