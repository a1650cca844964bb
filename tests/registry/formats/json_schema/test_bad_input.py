"""Hostile and enormous schemas: always an answer or a refusal with its reason, soon, and nothing fetched."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from registry.formats import json_schema
from registry.formats.differences import BudgetExceeded, InvalidSchema


def compare(old: Any, new: Any) -> list[str]:
    parsed = [json_schema.parse(json.dumps(schema), {}) for schema in (old, new)]
    return [difference.kind for difference in json_schema.compare(parsed[0], parsed[1])]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"not":' * 5_000 + "{}" + "}" * 5_000,
        '{"const":' + "[" * 200 + "]" * 200 + "}",
    ],
)
def test_deep_nesting_is_refused_by_name(text: str) -> None:
    with pytest.raises(BudgetExceeded, match="nesting of a schema = 100"):
        json_schema.parse(text, {})


def test_huge_texts_and_numbers_are_refused_by_name() -> None:
    with pytest.raises(BudgetExceeded, match="characters of a schema"):
        json_schema.parse('{"title": "%s"}' % ("x" * 5_000_000), {})
    with pytest.raises(InvalidSchema, match="digits"):
        json_schema.parse('{"maximum": %s}' % ("9" * 5_000), {})
    with pytest.raises(BudgetExceeded, match="characters of all patterns"):
        json_schema.parse(json.dumps({"pattern": "a" * 200_000}), {})


def test_the_deepest_schema_that_is_read_is_compared_too() -> None:
    def nested(leaf: str) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": leaf}
        for _ in range(45):
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        return schema

    assert compare(nested("string"), nested("string")) == []
    assert compare(nested("string"), nested("integer")) == ["TYPE_CHANGED"]


def test_a_long_chain_of_references_is_compared() -> None:
    def chain(length: int, leaf: str) -> dict[str, Any]:
        links: dict[str, Any] = {
            f"d{index}": {"type": "object", "properties": {"n": {"$ref": f"#/definitions/d{index + 1}"}}}
            for index in range(length)
        }
        return {"$ref": "#/definitions/d0", "definitions": {**links, f"d{length}": {"type": leaf}}}

    assert compare(chain(150, "integer"), chain(150, "number")) == []
    assert compare(chain(30, "number"), chain(30, "integer")) == ["TYPE_NARROWED"]
    assert compare(chain(80, "number"), chain(80, "integer")) == ["SCHEMA_NARROWED"]


def test_many_definitions_that_need_each_other_are_compared() -> None:
    def web(leaf: str) -> dict[str, Any]:
        knots: dict[str, Any] = {
            f"d{index}": {
                "type": "object",
                "properties": {
                    "one": {"$ref": f"#/definitions/d{(index * 7 + 1) % 60}"},
                    "many": {"type": "array", "items": {"$ref": f"#/definitions/d{(index * 11 + 5) % 60}"}},
                    "value": {"type": leaf if index == 8 else "string"},
                },
            }
            for index in range(60)
        }
        return {"$ref": "#/definitions/d0", "definitions": knots}

    assert compare(web("integer"), web("integer")) == []
    assert compare(web("integer"), web("number")) == []
    assert "TYPE_NARROWED" in compare(web("number"), web("integer"))


@pytest.mark.parametrize("scheme", ["http", "https", "ftp"])
def test_a_url_is_never_fetched(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"{scheme}://127.0.0.1:{server.getsockname()[1]}/schema.json"
        for schema in (
            {"$ref": url},
            {"$ref": f"{url}#/definitions/a"},
            {"$id": url, "$ref": "other.json"},
            {"$schema": "https://json-schema.org/draft/2020-12/schema", "$dynamicRef": url},
        ):
            with pytest.raises(InvalidSchema, match="nothing is fetched"):
                json_schema.parse(json.dumps(schema), {})
        with pytest.raises(InvalidSchema, match="none of"):
            json_schema.parse(json.dumps({"$schema": url}), {})
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_counterexample_is_found_without_fetching_an_id() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        assert compare({"$id": url, "type": "number"}, {"$id": url, "type": "integer"}) == ["TYPE_NARROWED"]
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_file_is_never_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"type": "string"}')
    for reference in (secret.as_uri(), str(secret), f"{secret.as_uri()}#/type"):
        with pytest.raises(InvalidSchema, match="nothing is fetched"):
            json_schema.parse(json.dumps({"$ref": reference}), {})


@pytest.mark.parametrize(
    "pattern",
    [
        "^(a+)+$",
        "^(a|a)*b$",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        "(.*a){20}",
        "[ab]*a[ab]{14}$",
        "((a{1,100}){1,100}){1,100}",
        "a{1,50000}",
        "a?" * 500 + "a" * 500,
        "(a|b|c|d)*" * 30,
        "^(a*)*\\1$",
        "(?<=a)b",
        "a" * 3_000,
    ],
)
def test_patterns_that_explode_are_read_and_compared_soon(pattern: str) -> None:
    compare({"pattern": pattern}, {"pattern": pattern + "|b"})
    compare({"enum": ["a" * 5_000 + "!"]}, {"pattern": pattern})
    compare(
        {"patternProperties": {pattern: {"type": "string"}}, "required": ["a" * 50 + "!"]},
        {"minProperties": 2},
    )
    assert compare({"pattern": pattern}, {"pattern": pattern}) == []


def test_a_hard_puzzle_ends_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.formats.json_schema.solver.MAX_STEPS", 2_000)
    holes, pigeons = range(7), range(8)
    placed = [{"anyOf": [{"required": [f"p{p}h{h}"]} for h in holes]} for p in pigeons]
    alone = [
        {"not": {"required": [f"p{one}h{h}", f"p{two}h{h}"]}} for h in holes for one in pigeons for two in range(one)
    ]
    with pytest.raises(BudgetExceeded, match="comparison steps"):
        compare({"type": "object", "allOf": placed + alone}, {"not": {}})


def test_many_overlapping_alternatives_do_not_explode() -> None:
    def alternatives(number: int) -> list[dict[str, Any]]:
        return [{"type": "object", "required": [f"a{index}"]} for index in range(number)]

    assert compare({"anyOf": alternatives(30)}, {"anyOf": alternatives(31)}) == []
    assert compare({"oneOf": alternatives(12)}, {"anyOf": alternatives(12)}) == []
    assert compare({"oneOf": alternatives(12)}, {"oneOf": alternatives(13)}) == ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"]


def test_enormous_counts_are_compared_without_building_them() -> None:
    for smaller, keyword in (("minLength", 10**9), ("minItems", 10**9), ("minProperties", 10**9)):
        assert compare({smaller: keyword + 1}, {smaller: keyword}) == []
        assert len(compare({smaller: keyword}, {smaller: keyword + 1})) == 1


def test_a_large_list_of_values_is_compared_soon() -> None:
    values = [f"value {index}" for index in range(5_000)]
    assert compare({"enum": values}, {"enum": [*values, "one more"]}) == []
    assert compare({"enum": [*values, "one more"]}, {"enum": values}) == ["ENUM_ARRAY_NARROWED"]
