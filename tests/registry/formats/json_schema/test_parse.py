"""Reading schemas: canonical text, dialects, references, refusals that say where."""

import hashlib
import json

import pytest

from registry.formats import json_schema
from registry.formats.differences import InvalidSchema, TooLarge
from registry.formats.json_schema.keywords import MAX_SCHEMAS

DRAFT_7 = "http://json-schema.org/draft-07/schema"


def test_canonical_text_ignores_white_space_only() -> None:
    spaced = json_schema.parse('{ "type" : "string",\n "maxLength": 3 }', {})
    tight = json_schema.parse('{"type":"string","maxLength":3}', {})
    turned = json_schema.parse('{"maxLength":3,"type":"string"}', {})
    assert spaced.canonical == tight.canonical == '{"type":"string","maxLength":3}'
    assert spaced.hash == tight.hash == hashlib.sha256(tight.canonical.encode()).hexdigest()
    assert turned.hash != tight.hash
    assert tight.schema_type == "JSON"


def test_normalized_text_ignores_the_order_of_keys_and_sets() -> None:
    one = '{"type": ["string", "null"], "enum": ["b", "a", null]}'
    two = '{"enum": [null, "a", "b"], "type": ["null", "string"]}'
    assert json_schema.normalize(one, {}) == json_schema.normalize(two, {})


def test_normalizing_keeps_what_has_an_order() -> None:
    text = '{"items":[{"type":"string"},{"type":"null"}]}'
    assert json_schema.normalize(text, {}) == text
    listed = '{"properties":{"required":{"const":["b","a"]}}}'
    assert json_schema.normalize(listed, {}) == listed


def test_normalizing_is_idempotent_and_keeps_the_meaning() -> None:
    text = '{"required":["b","a"],"oneOf":[{"type":"object"},{"enum":[2,1]}]}'
    once = json_schema.normalize(text, {})
    assert json_schema.normalize(once, {}) == once
    old, new = json_schema.parse(text, {}), json_schema.parse(once, {})
    assert json_schema.compare(old, new) == json_schema.compare(new, old) == []


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("{}", DRAFT_7),
        ("true", DRAFT_7),
        ('{"$schema": "http://json-schema.org/draft-04/schema#"}', "http://json-schema.org/draft-04/schema"),
        ('{"$schema": "https://json-schema.org/draft-07/schema"}', DRAFT_7),
        ('{"$schema": "http://json-schema.org/draft-06/schema"}', "http://json-schema.org/draft-06/schema"),
        ('{"prefixItems": [true]}', "https://json-schema.org/draft/2020-12/schema"),
        ('{"properties": {"a": {"$defs": {}}}}', "https://json-schema.org/draft/2020-12/schema"),
        ('{"$defs": {}, "items": [true]}', "https://json-schema.org/draft/2019-09/schema"),
        ('{"properties": {"prefixItems": {}, "$defs": {}}}', DRAFT_7),
        ('{"const": {"prefixItems": 1}}', DRAFT_7),
        ('{"items": {"minimum": 1, "exclusiveMinimum": true}}', "http://json-schema.org/draft-04/schema"),
        ('{"properties": {"exclusiveMinimum": true}}', DRAFT_7),
    ],
)
def test_the_dialect_is_named_or_told_by_keywords_that_only_some_drafts_have(text: str, dialect: str) -> None:
    assert json_schema.parse(text, {}).dialect == dialect


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("{", "", "not JSON: Expecting property name"),
        ("", "", "not JSON"),
        ("[]", "#", "is not of type"),
        ("1", "#", "is not of type"),
        ('{"type": "strin"}', "#/type", "'strin'"),
        ('{"properties": {"a": {"minLength": -1}}}', "#/properties/a/minLength", "-1"),
        ('{"properties": {"a": {"pattern": "("}}}', "#/properties/a/pattern", "not a regular expression"),
        ('{"patternProperties": {"[": {}}}', "#/patternProperties/[", "not a regular expression"),
        ('{"maximum": 1, "exclusiveMaximum": true, "const": 0}', "#/exclusiveMaximum", "True is not of type"),
        ('{"$schema": "http://example.com/mine"}', "#/$schema", "none of"),
        ('{"$schema": "http://json-schema.org/draft-03/schema#"}', "#/$schema", "none of"),
        ('{"maximum": NaN}', "", "NaN"),
        ('{"maximum": 1e999}', "", "too large"),
        ('{"const": "\\ud800"}', "", "surrogate"),
        ('{"$ref": "#/definitions/none"}', "#/$ref", "nothing is fetched"),
        ('{"$ref": "#none"}', "#/$ref", "nothing is fetched"),
        ('{"definitions": {"unused": {"$ref": "other.json"}}}', "#/definitions/unused/$ref", "other.json"),
        ('{"$ref": "#/title", "title": "no schema"}', "#/$ref", "not a schema"),
        ('{"$ref": "#/x", "x": {"type": 1}}', "#/$ref/type", "1"),
        (
            '{"properties": {"a": {"$id": "http://x/y", "$schema": "http://json-schema.org/draft-04/schema#"}}}',
            "#/properties/a/$schema",
            "mixes two drafts",
        ),
        (
            '{"exclusiveMinimum": 1, "minimum": 0, "$schema": "http://json-schema.org/draft-04/schema#"}',
            "#/exclusiveMinimum",
            "1",
        ),
        ('{"items": [true], "$schema": "https://json-schema.org/draft/2020-12/schema"}', "#/items", ""),
        ('{"$ref": "#"}', "#", "without end"),
        ('{"allOf": [{"$ref": "#"}]}', "#/allOf/0", "without end"),
        (
            '{"anyOf": [{"$ref": "#/definitions/a"}], "definitions": {"a": {"not": {"$ref": "#"}}}}',
            "#/anyOf/0/not",
            "without end",
        ),
        (
            '{"properties": {"b": {"$ref": "#/definitions/a"}}, "dependencies": {"c": {"$ref": "#/definitions/a"}},'
            ' "definitions": {"a": {"$ref": "#"}}}',
            "#/properties/b",
            "without end",
        ),
    ],
)
def test_an_invalid_schema_is_refused_with_the_place_and_the_reason(text: str, path: str, words: str) -> None:
    with pytest.raises(InvalidSchema) as refusal:
        json_schema.parse(text, {})
    assert refusal.value.path == path
    assert words in refusal.value.message
    assert len(str(refusal.value)) < 1000


def test_a_text_of_too_many_schemas_is_refused_when_it_is_read() -> None:
    most = {"properties": {f"p{number}": {} for number in range(MAX_SCHEMAS - 1)}}
    assert json_schema.parse(json.dumps(most), {}).hash
    most["properties"]["one.more"] = {}
    with pytest.raises(TooLarge, match="schemas in one text"):
        json_schema.parse(json.dumps(most), {})


ADDRESS = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'


@pytest.mark.parametrize(
    ("root", "references"),
    [
        ({"$ref": "address.json"}, {"address.json": ADDRESS}),
        ({"$ref": "http://example.com/address"}, {"http://example.com/address": ADDRESS}),
        ({"$id": "http://example.com/root", "allOf": [{"$ref": "address"}]}, {"address": ADDRESS}),
        (
            {"$ref": "http://example.com/by-id"},
            {"whatever": json.dumps({"$id": "http://example.com/by-id", **json.loads(ADDRESS)})},
        ),
        (
            {"$ref": "a.json#/definitions/x"},
            {"a.json": '{"definitions": {"x": {"$ref": "b.json"}}}', "b.json": ADDRESS},
        ),
        ({"$ref": "a.json"}, {"a.json": f'{{"$ref": "#/definitions/x", "definitions": {{"x": {ADDRESS}}}}}'}),
    ],
)
def test_references_are_found_by_name_by_relative_name_and_by_id(
    root: dict[str, object], references: dict[str, str]
) -> None:
    whole = json_schema.parse(ADDRESS, {})
    split = json_schema.parse(json.dumps(root), references)
    assert json_schema.compare(whole, split) == json_schema.compare(split, whole) == []


def test_a_change_in_a_reference_is_a_difference_with_a_counterexample() -> None:
    old = json_schema.parse('{"items": {"$ref": "x"}}', {"x": '{"maximum": 5}'})
    new = json_schema.parse('{"items": {"$ref": "x"}}', {"x": '{"maximum": 4}'})
    (difference,) = json_schema.compare(old, new)
    assert difference.kind == "MAXIMUM_DECREASED"
    assert json.loads(difference.counterexample or "") == [5]


def test_a_reference_keeps_its_own_draft() -> None:
    root = '{"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "old"}'
    old = '{"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": true}'
    split = json_schema.parse(root, {"old": old})
    whole = json_schema.parse('{"exclusiveMinimum": 1}', {})
    assert json_schema.compare(whole, split) == json_schema.compare(split, whole) == []


def test_a_broken_reference_text_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidSchema, match="reference 'a' is not JSON"):
        json_schema.parse('{"$ref": "a"}', {"a": "{"})
    with pytest.raises(InvalidSchema) as refusal:
        json_schema.parse('{"$ref": "a"}', {"a": '{"type": 1}'})
    assert refusal.value.path == "a#/type"


def test_keywords_of_later_drafts_may_hold_anything_and_mean_nothing() -> None:
    later = {
        "const": 1,
        "contains": 5,
        "if": 3,
        "then": 4,
        "propertyNames": 7,
        "$defs": 5,
        "minContains": "x",
    }
    later |= {"unevaluatedProperties": 3, "prefixItems": 9, "dependentSchemas": [1], "dependentRequired": 5}
    draft_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
    old = json_schema.parse(json.dumps({**draft_4, **later}), {})
    empty = json_schema.parse(json.dumps(draft_4), {})
    assert json_schema.compare(old, empty) == json_schema.compare(empty, old) == []
    demands = {"dependencies": {"a": ["b"]}, "items": [{}], "additionalItems": False, "required": ["a"]}
    new = json_schema.parse(json.dumps({**draft_4, **later, **demands}), {})
    kinds = {difference.kind for difference in json_schema.compare(old, new)}
    assert kinds == {"DEPENDENCY_ARRAY_ADDED", "ADDITIONAL_ITEMS_REMOVED", "REQUIRED_ATTRIBUTE_ADDED"}
