"""allOf, anyOf, oneOf, not, conditions, references and recursion."""

from typing import Any

from .table import DRAFT_4, DRAFT_6, DRAFT_2019, DRAFT_2020, Table

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
NULL = {"type": "null"}


def kind(name: str, **properties: Any) -> dict[str, Any]:
    """An object marked by its `kind`, the usual way to write alternatives."""
    return {"type": "object", "properties": {"kind": {"const": name}, **properties}, "required": ["kind"]}


sums = Table()
sums.widening("one more alternative", {"anyOf": [STRING]}, {"anyOf": [STRING, NULL]}, "SUM_TYPE_NARROWED")
sums.widening(
    "one more exclusive alternative",
    {"oneOf": [STRING, INTEGER]},
    {"oneOf": [STRING, INTEGER, NULL]},
    "SUM_TYPE_NARROWED",
)
sums.same("order does not matter", {"oneOf": [STRING, INTEGER]}, {"oneOf": [INTEGER, STRING]})
sums.same("alternatives of types are a list of types", {"anyOf": [STRING, NULL]}, {"type": ["string", "null"]})
sums.same("alternatives that exclude each other", {"oneOf": [STRING, NULL]}, {"anyOf": [STRING, NULL]})
sums.widening("a type becomes one of several", STRING, {"anyOf": [STRING, INTEGER]}, "TYPE_NARROWED")
sums.widening("a type becomes exactly one of several", STRING, {"oneOf": [STRING, INTEGER]}, "TYPE_NARROWED")
sums.widening(
    "an alternative takes more",
    {"oneOf": [STRING, INTEGER]},
    {"oneOf": [STRING, NUMBER]},
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
)
sums.unrelated(
    "an overlapping alternative excludes what both take",
    {"oneOf": [INTEGER, STRING]},
    {"oneOf": [INTEGER, STRING, NUMBER]},
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
    "SUM_TYPE_NARROWED",
)
sums.same(
    "integer or number but not both",
    {"oneOf": [INTEGER, NUMBER]},
    {"type": "number", "not": {"multipleOf": 1}},
)
sums.same("the same alternative twice excludes itself", {"oneOf": [STRING, STRING]}, False)
sums.same("the same alternative twice", {"anyOf": [STRING, STRING]}, STRING)
sums.widening(
    "exclusive to inclusive",
    {"oneOf": [{"minimum": 0}, {"maximum": 10}]},
    {"anyOf": [{"minimum": 0}, {"maximum": 10}]},
    "COMBINED_TYPE_CHANGED",
)
sums.same("ranges that meet cover all", {"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 4}]}, INTEGER)
sums.widening(
    "a range split in two",
    {"minimum": 0, "maximum": 10, "type": "number"},
    {"anyOf": [{"minimum": -1, "maximum": 5}, {"minimum": 5, "maximum": 11}]},
    "MINIMUM_ADDED",
)
sums.same("an impossible alternative", {"anyOf": [STRING, False]}, STRING)
sums.same("an alternative that takes all", {"anyOf": [STRING, {}]}, {})
sums.widening(
    "marked alternatives get one more",
    {"oneOf": [kind("a", x=STRING), kind("b", y=INTEGER)]},
    {"oneOf": [kind("a", x=STRING), kind("b", y=INTEGER), kind("c")]},
    "SUM_TYPE_NARROWED",
)
sums.widening(
    "one marked alternative takes more",
    {"oneOf": [kind("a", x=INTEGER), kind("b")]},
    {"oneOf": [kind("a", x=NUMBER), kind("b")]},
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
)
sums.same(
    "marked alternatives exclude each other",
    {"oneOf": [kind("a"), kind("b")]},
    {"anyOf": [kind("a"), kind("b")]},
)
sums.same(
    "alternatives over one property",
    {"oneOf": [kind("a"), kind("b")]},
    {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"]},
)
sums.widening("one alternative is left", {"anyOf": [STRING]}, {}, "SUM_TYPE_ADDED")
sums.unrelated(
    "alternatives replaced",
    {"anyOf": [STRING, NULL]},
    {"anyOf": [STRING, INTEGER]},
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
)
sums.widening(
    "null joins",
    {"properties": {"a": STRING}},
    {"properties": {"a": {"oneOf": [NULL, STRING]}}},
    "TYPE_NARROWED",
)

products = Table()
products.widening("one demand less", {"allOf": [STRING, {"maxLength": 3}]}, {"allOf": [STRING]}, "MAX_LENGTH_ADDED")
products.same("demands together or apart", {"allOf": [STRING, {"maxLength": 3}]}, {"type": "string", "maxLength": 3})
products.same("order does not matter", {"allOf": [{"minLength": 1}, STRING]}, {"allOf": [STRING, {"minLength": 1}]})
products.same("the same demand twice", {"allOf": [STRING, STRING]}, STRING)
products.widening("a demand is looser", {"allOf": [{"minimum": 3}]}, {"allOf": [{"minimum": 2}]}, "MINIMUM_INCREASED")
products.same(
    "additionalProperties does not see its neighbours",
    {
        "allOf": [
            {"properties": {"a": {}}, "additionalProperties": False},
            {"properties": {"b": {}}, "additionalProperties": False},
        ]
    },
    {"additionalProperties": False},
)
products.same("allOf of alternatives", {"allOf": [{"anyOf": [STRING, NULL]}, {"anyOf": [STRING, INTEGER]}]}, STRING)
products.same("an empty demand", {"allOf": [{}, STRING]}, STRING)

negations = Table()
negations.same("twice not", {"not": {"not": STRING}}, STRING)
negations.same(
    "not one type is all others", {"not": STRING}, {"type": ["null", "boolean", "number", "array", "object"]}
)
negations.widening("excluding less", {"not": NUMBER}, {"not": INTEGER}, "NOT_TYPE_EXTENDED")
negations.widening("not removed", {"not": STRING}, {}, "NOT_TYPE_EXTENDED")
negations.same("not either", {"not": {"anyOf": [STRING, NULL]}}, {"allOf": [{"not": STRING}, {"not": NULL}]})
negations.same(
    "not both",
    {"not": {"allOf": [{"minimum": 0}, {"maximum": 10}]}},
    {"anyOf": [{"not": {"minimum": 0}}, {"not": {"maximum": 10}}]},
)
negations.same("a forbidden property", {"not": {"required": ["a"]}}, {"type": "object", "properties": {"a": False}})
negations.widening(
    "keywords for objects hold for all other values",
    {"not": {"type": "object", "required": ["a"]}},
    {},
    "NOT_TYPE_EXTENDED",
)
negations.same("not less than 5", {"type": "number", "not": {"exclusiveMaximum": 5}}, {"type": "number", "minimum": 5})
negations.same(
    "not a pattern",
    {"type": "string", "not": {"pattern": "^[a-z]+$"}},
    {"type": "string", "pattern": "^$|[^a-z]"},
)
negations.same(
    "not closed",
    {"type": "object", "not": {"additionalProperties": False}},
    {"type": "object", "minProperties": 1},
)
negations.same(
    "not all items",
    {"type": "array", "not": {"items": STRING}},
    {"type": "array", "contains": {"not": STRING}},
)
negations.same("not exactly one", {"not": {"oneOf": [STRING, STRING]}}, {})

conditions = Table()
conditions.widening(
    "then asks less",
    {"if": {"required": ["a"]}, "then": {"required": ["b", "c"]}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "REQUIRED_ATTRIBUTE_ADDED",
)
conditions.widening("then removed", {"if": STRING, "then": {"minLength": 1}}, {"if": STRING}, "CONDITION_ADDED")
conditions.same("if alone asks nothing", {"if": STRING}, {})
conditions.same("then without if asks nothing", {"then": STRING}, {})
conditions.same(
    "a condition is an implication",
    {"if": STRING, "then": {"minLength": 1}},
    {"anyOf": [{"not": STRING}, {"minLength": 1}]},
)
conditions.same("else covers the rest", {"if": STRING, "else": INTEGER}, {"anyOf": [STRING, INTEGER]})
conditions.same("a condition that always holds", {"if": {}, "then": STRING, "else": NULL}, STRING)
conditions.same("a condition that never holds", {"if": False, "then": STRING, "else": NULL}, NULL)
conditions.widening(
    "the condition holds less often",
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {"if": {"required": ["a", "c"]}, "then": {"required": ["b"]}},
    "REQUIRED_ATTRIBUTE_ADDED CONDITION_CHANGED",
)
conditions.same(
    "a dependency is a condition",
    {"if": {"type": "object", "required": ["a"]}, "then": {"required": ["b"]}},
    {"dependencies": {"a": ["b"]}},
)

old_conditions = Table(DRAFT_6)
old_conditions.same("if is no keyword in draft 6", {"if": STRING, "then": False}, {})

DEFINED = {"definitions": {"s": STRING, "n": {"$ref": "#/definitions/m"}, "m": NUMBER}}
references = Table()
references.same("a reference is what it leads to", {"$ref": "#/definitions/s", **DEFINED}, STRING)
references.same(
    "through two steps",
    {"properties": {"a": {"$ref": "#/definitions/n"}}, **DEFINED},
    {"properties": {"a": NUMBER}},
)
references.same(
    "definitions may be renamed",
    {"items": {"$ref": "#/definitions/s"}, **DEFINED},
    {"items": {"$ref": "#/definitions/t"}, "definitions": {"t": STRING}},
)
references.same("unused definitions do not count", {"definitions": {"x": NULL}}, {})
references.widening(
    "the definition takes more",
    {"items": {"$ref": "#/definitions/x"}, "definitions": {"x": INTEGER}},
    {"items": {"$ref": "#/definitions/x"}, "definitions": {"x": NUMBER}},
    "TYPE_NARROWED",
)
references.same(
    "neighbours of $ref do not count in draft 7",
    {"allOf": [{"$ref": "#/definitions/s", "maxLength": 1}], **DEFINED},
    STRING,
)
references.same(
    "by $id",
    {
        "properties": {"a": {"$ref": "http://example.com/s"}},
        "definitions": {"s": {"$id": "http://example.com/s", "type": "string"}},
    },
    {"properties": {"a": STRING}},
)
references.same(
    "by a relative $id",
    {
        "$id": "http://example.com/root",
        "properties": {"a": {"$ref": "s"}},
        "definitions": {"s": {"$id": "s", "type": "string"}},
    },
    {"properties": {"a": STRING}},
)
references.same(
    "by a plain name",
    {"properties": {"a": {"$ref": "#s"}}, "definitions": {"s": {"$id": "#s", "type": "string"}}},
    {"properties": {"a": STRING}},
)
references.same("escaped pointers", {"$ref": "#/definitions/a~1b%25", "definitions": {"a/b%": STRING}}, STRING)
references.same(
    "the metaschema is known",
    {"$ref": "http://json-schema.org/draft-07/schema#"},
    {"allOf": [{"$ref": "http://json-schema.org/draft-07/schema#"}]},
)

old_references = Table(DRAFT_4)
old_references.same(
    "draft 4 writes id",
    {
        "properties": {"a": {"$ref": "http://example.com/s"}},
        "definitions": {"s": {"id": "http://example.com/s", "type": "string"}},
    },
    {"properties": {"a": STRING}},
)

late_references = Table(DRAFT_2020)
late_references.same(
    "neighbours of $ref count",
    {"$ref": "#/$defs/s", "maxLength": 1, "$defs": {"s": STRING}},
    {"type": "string", "maxLength": 1},
)
late_references.same("by $anchor", {"$ref": "#s", "$defs": {"x": {"$anchor": "s", "type": "string"}}}, STRING)
late_references.same(
    "a dynamic reference without rivals is a reference",
    {"$dynamicRef": "#s", "$defs": {"x": {"$dynamicAnchor": "s", "type": "string"}}},
    STRING,
)
late_references.same(
    "the outermost dynamic anchor wins",
    {
        "$id": "http://example.com/strings",
        "$ref": "list",
        "$defs": {
            "item": {"$dynamicAnchor": "item", "type": "string"},
            "list": {
                "$id": "list",
                "type": "array",
                "items": {"$dynamicRef": "#item"},
                "$defs": {"any": {"$dynamicAnchor": "item"}},
            },
        },
    },
    {"type": "array", "items": STRING},
)

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"value": INTEGER, "children": {"type": "array", "items": {"$ref": "#"}}},
}
LIST: dict[str, Any] = {
    "type": "object",
    "properties": {"next": {"anyOf": [NULL, {"$ref": "#"}]}},
    "required": ["next"],
}
recursion = Table()
recursion.same(
    "a tree is itself",
    TREE,
    {
        "allOf": [
            TREE
            | {
                "properties": {
                    "value": INTEGER,
                    "children": {"type": "array", "items": {"$ref": "#/allOf/0"}},
                }
            }
        ]
    },
)
recursion.same(
    "a tree unrolled once",
    TREE,
    {
        **TREE,
        "properties": {
            "value": INTEGER,
            "children": {"type": "array", "items": {"$ref": "#/definitions/tree"}},
        },
        "definitions": {
            "tree": {
                "type": "object",
                "properties": {
                    "value": INTEGER,
                    "children": {"type": "array", "items": {"$ref": "#/definitions/tree"}},
                },
            }
        },
    },
)
recursion.widening(
    "values at every node take more",
    TREE,
    {**TREE, "properties": {**TREE["properties"], "value": NUMBER}},
    "TYPE_NARROWED",
)
recursion.widening("a list with optional end", LIST, {**LIST, "required": []}, "REQUIRED_ATTRIBUTE_ADDED")
recursion.same(
    "a list without end has no members",
    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    False,
)
recursion.widening(
    "two definitions that need each other become one",
    {
        "$ref": "#/definitions/a",
        "definitions": {
            "a": {"type": "array", "items": {"$ref": "#/definitions/b"}},
            "b": {"type": "array", "items": {"$ref": "#/definitions/a"}, "maxItems": 1},
        },
    },
    {"type": "array", "items": {"$ref": "#"}},
    "MAX_ITEMS_ADDED TYPE_NARROWED COMBINED ITEMS_ADDED",
)
recursion.widening(
    "arrays of arrays become anything",
    {"type": "array", "items": {"$ref": "#"}},
    {"type": "array"},
    "ITEMS_ADDED",
)
recursion.widening(
    "an inner node is checked as the outer is",
    {"type": "object", "properties": {"v": INTEGER, "next": {"$ref": "#"}}},
    {"type": "object", "properties": {"v": INTEGER, "next": {"type": "object"}}},
    "TYPE_NARROWED PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
)

late_recursion = Table(DRAFT_2019)
late_recursion.same(
    "$recursiveRef without $recursiveAnchor is $ref",
    {"type": "array", "items": {"$recursiveRef": "#"}},
    {"type": "array", "items": {"$ref": "#"}},
)
late_recursion.same(
    "$recursiveRef leads to the outermost anchor",
    {
        "$id": "http://example.com/closed",
        "$recursiveAnchor": True,
        "$ref": "open",
        "required": ["a"],
        "$defs": {
            "open": {
                "$id": "open",
                "$recursiveAnchor": True,
                "type": "object",
                "properties": {"child": {"$recursiveRef": "#"}},
            }
        },
    },
    {"type": "object", "properties": {"child": {"$ref": "#"}}, "required": ["a"]},
)

TABLES = {
    "anyOf and oneOf": sums,
    "allOf": products,
    "not": negations,
    "conditions": conditions,
    "conditions of draft 6": old_conditions,
    "references": references,
    "references of draft 4": old_references,
    "references of 2020-12": late_references,
    "recursion": recursion,
    "recursion of 2019-09": late_recursion,
}
