"""Two versions that are alike are compared in few steps, however many alternatives and definitions they have."""

import copy
import json
from typing import Any

import pytest

from registry.formats import json_schema
from registry.formats.json_schema.nodes import negate
from registry.formats.json_schema.solver import Solver
from registry.formats.json_schema.structural_proof import StructuralProof
from tests.registry.formats.json_schema.cases.table import Table
from tests.registry.formats.json_schema.test_cases import TABLES

NUMBER = 30


def kinds(is_closed: bool, is_marked: bool) -> dict[str, Any]:
    """A model of many kinds of object, each with fields that hold others, and a place that takes any of them."""
    definitions: dict[str, Any] = {"any": {"oneOf": [{"$ref": f"#/definitions/k{n}"} for n in range(NUMBER)]}}
    for number in range(NUMBER):
        properties = {
            "name": {"type": "string"},
            "next": {"$ref": f"#/definitions/k{(number * 7 + 3) % NUMBER}"},
            "parts": {"type": "array", "items": {"$ref": f"#/definitions/k{(number * 5 + 1) % NUMBER}"}},
            "attached": {"type": "object", "additionalProperties": {"$ref": "#/definitions/any"}},
            "pair": {"items": [{"$ref": f"#/definitions/k{(number + 2) % NUMBER}"}, {"type": "null"}]},
        }
        definition: dict[str, Any] = {"type": "object", "properties": properties}
        if is_marked:
            properties["kind"] = {"const": f"k{number}"}
            definition["required"] = ["kind"]
        if is_closed:
            definition["additionalProperties"] = False
        definitions[f"k{number}"] = definition
    return {"definitions": definitions, "$ref": "#/definitions/any"}


def compare(old: dict[str, Any], new: dict[str, Any]) -> bool:
    first, second = (json_schema.parse(json.dumps(schema), {}) for schema in (old, new))
    differences = json_schema.compare(first, second)
    assert all(difference.counterexample is not None for difference in differences)
    return not differences


def changed(schema: dict[str, Any], name: str, value: dict[str, Any]) -> dict[str, Any]:
    """One kind in the middle has another schema for one property."""
    result = copy.deepcopy(schema)
    result["definitions"]["k11"]["properties"][name] = value
    return result


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("is_closed", [True, False])
def test_what_only_a_reader_sees_changes_nothing(is_closed: bool, is_marked: bool) -> None:
    schema = kinds(is_closed, is_marked)
    assert compare(schema, changed(schema, "name", {"type": "string", "description": "how it is called"}))


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_property_that_takes_more_deep_inside_is_compatible_and_not_back(is_closed: bool) -> None:
    schema = kinds(is_closed, True)
    wider = changed(schema, "name", {"type": ["string", "null"]})
    assert compare(schema, wider)
    assert not compare(wider, schema)


def test_a_property_that_joins_a_closed_kind_is_compatible_and_not_back() -> None:
    schema = kinds(True, True)
    wider = changed(schema, "more", {"$ref": "#/definitions/any"})
    assert compare(schema, wider)
    assert not compare(wider, schema)


def test_references_that_become_copies_of_what_they_lead_to_change_nothing() -> None:
    schema = kinds(True, True)
    spelled_out = changed(schema, "next", schema["definitions"]["k20"])  # 11 * 7 + 3 is 20 of 30
    assert compare(schema, spelled_out)
    assert compare(spelled_out, schema)


def marked(number: int) -> list[dict[str, Any]]:
    return [
        {"type": "object", "properties": {"kind": {"const": f"k{n}"}, "a": {"type": "string"}}, "required": ["kind"]}
        for n in range(number)
    ]


def test_one_of_many_marked_alternatives_takes_more() -> None:
    old, new = marked(100), marked(100)
    new[50]["properties"]["a"] = {"type": ["string", "null"]}
    assert compare({"oneOf": old}, {"oneOf": new})
    assert not compare({"oneOf": new}, {"oneOf": old})
    assert compare({"oneOf": old}, {"oneOf": [{"type": "null"}, *reversed(new)]})


def test_one_of_many_overlapping_alternatives_takes_more() -> None:
    old = [{"type": "object", "properties": {f"a{n}": {"type": "string"}}, "required": [f"a{n}"]} for n in range(40)]
    new = copy.deepcopy(old)
    new[20]["properties"] = {}
    assert compare({"anyOf": old}, {"anyOf": new})
    assert not compare({"anyOf": new}, {"anyOf": old})


def test_one_of_many_conditions_demands_less() -> None:
    def conditions(*demanded: str) -> dict[str, Any]:
        demands = [*([f"a{n}"] for n in range(60)), list(demanded)]
        tests = [{"properties": {"kind": {"const": f"k{n}"}}, "required": ["kind"]} for n in range(len(demands))]
        return {
            "allOf": [{"if": test, "then": {"required": names}} for test, names in zip(tests, demands, strict=True)]
        }

    assert compare(conditions("b", "c"), conditions("b"))
    assert not compare(conditions("b"), conditions("b", "c"))


def test_alternatives_that_are_the_same_exclude_each_other() -> None:
    twice = {"items": {"maxItems": 1, "oneOf": [{}, {}]}}
    assert not compare({"items": {"maxItems": 1}}, twice)
    assert compare(twice, {"items": {"maxItems": 1}})


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_what_the_quick_proof_proves_holds(table: Table) -> None:
    for case in table.cases:
        old, new = (json_schema.parse(json.dumps(schema), {}) for schema in (case.old, case.new))
        if StructuralProof(Solver()).prove(old.node, new.node):
            assert case.kinds is None, case.why
            assert Solver().solve((old.node, negate(new.node))).impossible, case.why
