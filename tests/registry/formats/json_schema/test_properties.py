"""No document contradicts an answer: random schemas, small changes to them, and documents near both."""

import copy
import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema.validators import validator_for  # type: ignore[import-untyped]  # publishes no types
from referencing import Registry

from registry.formats import json_schema
from registry.formats.differences import BudgetExceeded, InvalidSchema
from tests.levels import examples

Draw = Callable[[st.SearchStrategy[Any]], Any]
NAMES = st.sampled_from(["a", "b", "x1"])
PATTERNS = st.sampled_from(["^x", "a", "^[ab]$", "^.{2}$", "1$", "b+"])
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, -1, 0.5, 1.0, "", "a", "b", "ab", "x1"])
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "x1", "c", "bb"]), inner, max_size=4),
    ),
    max_leaves=8,
)
COUNTS = st.integers(0, 2)
URIS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}


class Writer:
    """Writes random schemas of one draft."""

    def __init__(self, draw: Draw, version: int) -> None:
        self.draw = draw
        self.version = version
        late = [
            "dependentRequired",
            "dependentSchemas",
            "unevaluatedProperties",
            "unevaluatedItems",
            "minContains",
        ]
        self.keywords = [
            *("type", "enum", "minimum", "maximum", "multipleOf", "length", "pattern", "items", "tuple"),
            *("uniqueItems", "itemCount", "properties", "properties", "required", "patternProperties"),
            *("additionalProperties", "propertyCount", "allOf", "anyOf", "oneOf", "not", "self"),
            *(["const", "contains", "propertyNames"] if version >= 6 else []),
            *(["if"] if version >= 7 else []),
            *(late if version >= 2019 else ["dependencies"]),
        ]

    def schema(self, depth: int) -> Any:
        if self.version > 4 and self.draw(st.integers(0, 12)) == 0:
            return self.draw(st.sampled_from([True, False, {}]))
        schema: dict[str, Any] = {}
        for keyword in self.draw(st.lists(st.sampled_from(self.keywords), min_size=1, max_size=3)):
            self.add(schema, keyword, depth)
        return schema

    def inner(self, depth: int) -> Any:
        return self.schema(depth - 1) if depth > 0 else {"type": self.draw(TYPES)}

    def several(self, depth: int) -> list[Any]:
        return [self.inner(depth) for _ in range(self.draw(st.integers(1, 2)))]

    def add(self, schema: dict[str, Any], keyword: str, depth: int) -> None:
        draw = self.draw
        match keyword:
            case "type":
                schema["type"] = draw(st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True)))
            case "enum":
                schema["enum"] = draw(st.lists(DOCUMENTS, min_size=1, max_size=3, unique_by=json.dumps))
            case "const":
                schema["const"] = draw(DOCUMENTS)
            case "minimum" | "maximum":
                schema[keyword] = draw(st.sampled_from([-1, 0, 1, 1.5, 2]))
                if draw(st.booleans()):
                    exclusive = "exclusive" + keyword.capitalize()
                    schema[exclusive] = True if self.version == 4 else schema.pop(keyword)
            case "multipleOf":
                schema["multipleOf"] = draw(st.sampled_from([1, 2, 3, 0.5, 1.5]))
            case "length" | "itemCount" | "propertyCount":
                unit = {"length": "Length", "itemCount": "Items", "propertyCount": "Properties"}[keyword]
                schema[draw(st.sampled_from(["min", "max"])) + unit] = draw(COUNTS)
            case "pattern":
                schema["pattern"] = draw(PATTERNS)
            case "uniqueItems":
                schema["uniqueItems"] = True
            case "required":
                schema["required"] = draw(st.lists(NAMES, min_size=1, max_size=2, unique=True))
            case "dependentRequired":
                schema["dependentRequired"] = {draw(NAMES): [draw(NAMES)]}
            case "self":
                schema.setdefault("properties", {})[draw(NAMES)] = {"$ref": "#"}
            case _:
                self.add_nested(schema, keyword, depth)

    def add_nested(self, schema: dict[str, Any], keyword: str, depth: int) -> None:
        draw = self.draw
        match keyword:
            case "tuple":
                schema["prefixItems" if self.version >= 2020 else "items"] = self.several(depth)
                if self.version < 2020 and draw(st.booleans()):
                    schema["additionalItems"] = draw(st.sampled_from([False, self.inner(depth)]))
            case "minContains":
                schema["contains"] = self.inner(depth)
                schema[draw(st.sampled_from(["minContains", "maxContains"]))] = draw(COUNTS)
            case "properties" | "patternProperties" | "dependentSchemas" | "dependencies":
                name = draw(PATTERNS if keyword == "patternProperties" else NAMES)
                schema.setdefault(keyword, {})[name] = self.inner(depth)
            case "allOf" | "anyOf" | "oneOf":
                schema[keyword] = self.several(depth)
            case "if":
                schema["if"] = self.inner(depth)
                schema[draw(st.sampled_from(["then", "else"]))] = self.inner(depth)
            case "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems":
                schema[keyword] = draw(st.sampled_from([False, self.inner(depth)]))
            case "propertyNames":
                schema[keyword] = draw(st.sampled_from([{"maxLength": 1}, {"enum": ["a", "b"]}, {"pattern": "^x"}]))
            case _:
                schema[keyword] = self.inner(depth)

    def changed(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema with one keyword taken out or put in, at the root or in one of its properties."""
        result = copy.deepcopy(schema)
        places = [
            result,
            *(inner for inner in result.get("properties", {}).values() if isinstance(inner, dict)),
        ]
        place = self.draw(st.sampled_from([place for place in places if "$ref" not in place]))
        if place and self.draw(st.booleans()):
            place.pop(self.draw(st.sampled_from(sorted(place))))
        else:
            self.add(place, self.draw(st.sampled_from(self.keywords)), 1)
        return result


@st.composite
def pairs(draw: Draw) -> tuple[dict[str, Any], dict[str, Any]]:
    version = draw(st.sampled_from(sorted(URIS)))
    writer = Writer(draw, version)
    old = writer.schema(2)
    old = old if isinstance(old, dict) else {}
    new = writer.changed(old) if draw(st.integers(0, 3)) else writer.schema(2)
    new = new if isinstance(new, dict) else {}
    return {"$schema": URIS[version], **old}, {"$schema": URIS[version], **new}


def is_valid(document: Any, schema: dict[str, Any]) -> bool:
    if schema["$schema"] == URIS[2019]:
        # jsonschema 4.26 does not count what `additionalProperties` evaluates in this draft.
        return bool(jsonschema_rs.Draft201909Validator(schema, offline=True).is_valid(document))
    return bool(validator_for(schema)(schema, registry=Registry()).is_valid(document))


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(pairs(), st.lists(DOCUMENTS, min_size=5, max_size=25))
def test_no_document_contradicts_an_answer(
    schemas: tuple[dict[str, Any], dict[str, Any]], documents: list[Any]
) -> None:
    old, new = schemas
    try:
        parsed = [json_schema.parse(json.dumps(schema), {}) for schema in schemas]
        differences = json_schema.compare(parsed[0], parsed[1])
    except (InvalidSchema, BudgetExceeded):
        return  # `$ref` to "#" in a property of a branch may run in circles: then there is nothing to compare
    if not differences:
        for document in documents:
            assert not is_valid(document, old) or is_valid(document, new)
    for difference in differences:
        if difference.counterexample is not None:
            document = json.loads(difference.counterexample)
            assert is_valid(document, old)
            assert not is_valid(document, new)


@settings(max_examples=examples(50), suppress_health_check=list(HealthCheck))
@given(pairs())
def test_a_schema_is_compatible_with_itself_and_with_its_normal_form(
    schemas: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    text = json.dumps(schemas[0])
    try:
        schema = json_schema.parse(text, {})
    except InvalidSchema:
        return
    again = json_schema.parse(json_schema.normalize(text, {}), {})
    assert json_schema.compare(schema, again) == json_schema.compare(again, schema) == []


KEYWORDS = st.sampled_from(
    [
        *(
            "$id",
            "id",
            "$ref",
            "$anchor",
            "$schema",
            "$defs",
            "$recursiveRef",
            "$dynamicRef",
            "definitions",
            "type",
        ),
        *(
            "enum",
            "const",
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "propertyNames",
        ),
        *("dependencies", "dependentRequired", "dependentSchemas", "items", "prefixItems", "additionalItems"),
        *(
            "contains",
            "minContains",
            "maxContains",
            "unevaluatedItems",
            "unevaluatedProperties",
            "if",
            "then",
        ),
        *(
            "else",
            "not",
            "allOf",
            "anyOf",
            "oneOf",
            "format",
            "contentEncoding",
            "exclusiveMinimum",
            "minimum",
        ),
        *("a", "b"),
    ]
)
VALUES = st.one_of(SCALARS, st.sampled_from([*URIS.values(), "#", "#/a", "#/definitions/a", "b.json", "object", "^a"]))
ANY_JSON = st.recursive(
    VALUES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYWORDS, inner, max_size=4)),
    max_leaves=10,
)


@settings(max_examples=examples(200), suppress_health_check=list(HealthCheck))
@given(ANY_JSON, ANY_JSON)
def test_any_json_at_all_is_compared_or_refused(one: Any, two: Any) -> None:
    try:
        old, new = (json_schema.parse(json.dumps(text), {"b.json": "{}"}) for text in (one, two))
        json_schema.compare(old, new)
        json_schema.compare(new, old)
    except (InvalidSchema, BudgetExceeded):
        return


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(st.one_of(st.text(max_size=30), st.text('{}[]":,$ref#/0e9\\u', max_size=30)))
def test_any_text_at_all_is_read_or_refused(text: str) -> None:
    try:
        json_schema.parse(text, {})
    except InvalidSchema:
        return
