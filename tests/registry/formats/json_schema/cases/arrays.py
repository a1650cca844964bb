"""Items, tuples, counts, contains and uniqueness."""

from .table import DRAFT_4, DRAFT_2019, DRAFT_2020, Table

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}

items = Table()
items.widening("items take more", {"items": INTEGER}, {"items": NUMBER}, "TYPE_NARROWED")
items.unrelated(
    "items of another type; only the empty array is in both",
    {"type": "array", "items": INTEGER},
    {"type": "array", "items": STRING},
    "TYPE_CHANGED",
    "TYPE_CHANGED",
)
items.widening("items become free", {"items": INTEGER}, {}, "ITEMS_ADDED")
items.same("items that take anything ask nothing", {"items": {}}, {})
items.same("items that take nothing leave the empty array", {"type": "array", "items": False}, {"const": []})
items.same("no items is a length of zero", {"items": False}, {"maxItems": 0})
items.widening("more items allowed", {"maxItems": 2}, {"maxItems": 3}, "MAX_ITEMS_DECREASED")
items.widening("maxItems removed", {"maxItems": 2}, {}, "MAX_ITEMS_ADDED")
items.widening("fewer items needed", {"minItems": 2}, {"minItems": 1}, "MIN_ITEMS_INCREASED")
items.widening("minItems removed", {"minItems": 1}, {}, "MIN_ITEMS_ADDED")
items.same("minItems 0 asks nothing", {"minItems": 0}, {})
items.same("impossible items cannot be enough", {"type": "array", "items": False, "minItems": 1}, False)
items.widening("uniqueness dropped", {"uniqueItems": True}, {}, "UNIQUE_ITEMS_ADDED")
items.same("uniqueItems false is the default", {"uniqueItems": False}, {})
items.same("up to one item is always unique", {"maxItems": 1, "uniqueItems": True}, {"maxItems": 1})
items.widening(
    "unique items of two values are two at most",
    {"items": {"enum": [1, 2]}, "uniqueItems": True},
    {"items": {"enum": [1, 2]}, "maxItems": 2},
    "UNIQUE_ITEMS_ADDED",
)
items.same(
    "three unique booleans do not exist",
    {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3},
    False,
)
items.same("1 and 1.0 are not unique", {"const": [1, 1.0], "uniqueItems": True}, False)
items.widening("1 and true are unique", {"const": [1, True]}, {"uniqueItems": True}, "CONST_ADDED")
items.same("items of arrays say nothing about objects", {"type": "object", "items": INTEGER}, {"type": "object"})
items.widening(
    "nested arrays",
    {"items": {"items": {"items": INTEGER}}},
    {"items": {"items": {"items": NUMBER}}},
    "TYPE_NARROWED",
)

tuples = Table()
tuples.widening("a position takes more", {"items": [INTEGER]}, {"items": [NUMBER]}, "TYPE_NARROWED")
tuples.widening(
    "a position joins an open tuple",
    {"items": [INTEGER, STRING]},
    {"items": [INTEGER]},
    "ITEM_ADDED_TO_OPEN_CONTENT_MODEL",
)
tuples.same("a position that takes anything joins an open tuple", {"items": [INTEGER]}, {"items": [INTEGER, {}]})
tuples.widening(
    "a position joins a closed tuple",
    {"items": [INTEGER], "additionalItems": False},
    {"items": [INTEGER, STRING], "additionalItems": False},
    "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL",
)
tuples.widening(
    "a closed tuple opens",
    {"items": [INTEGER], "additionalItems": False},
    {"items": [INTEGER]},
    "ADDITIONAL_ITEMS_REMOVED",
)
tuples.widening(
    "further items take more",
    {"items": [{}], "additionalItems": INTEGER},
    {"items": [{}], "additionalItems": NUMBER},
    "TYPE_NARROWED",
)
tuples.widening(
    "a closed tuple opens for some values",
    {"items": [{}], "additionalItems": False},
    {"items": [{}], "additionalItems": INTEGER},
    "ADDITIONAL_ITEMS_REMOVED",
)
tuples.widening(
    "a position covered by the further items joins",
    {"items": [{}], "additionalItems": INTEGER},
    {"items": [{}, NUMBER], "additionalItems": INTEGER},
    "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
)
tuples.unrelated(
    "a position that refuses the further items joins",
    {"items": [{}], "additionalItems": INTEGER},
    {"items": [{}, STRING], "additionalItems": INTEGER},
    "TYPE_CHANGED ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
)
tuples.same(
    "additionalItems needs a tuple beside it",
    {"items": INTEGER, "additionalItems": False},
    {"items": INTEGER},
)
tuples.same("additionalItems alone asks nothing", {"additionalItems": False}, {})
tuples.same(
    "a tuple of equal positions and rest is a list",
    {"items": [INTEGER, INTEGER], "additionalItems": INTEGER},
    {"items": INTEGER},
)
tuples.same("a closed tuple bounds the length", {"items": [{}, {}], "additionalItems": False}, {"maxItems": 2})
tuples.same("an impossible position ends the array before it", {"items": [{}, False]}, {"maxItems": 1})
tuples.unrelated(
    "positions swapped",
    {"type": "array", "items": [INTEGER, STRING]},
    {"type": "array", "items": [STRING, INTEGER]},
    "TYPE_CHANGED",
    "TYPE_CHANGED",
)

old_tuples = Table(DRAFT_4)
old_tuples.widening(
    "tuples of draft 4",
    {"items": [INTEGER], "additionalItems": False},
    {"items": [INTEGER, {}], "additionalItems": False},
    "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL",
)
old_tuples.same("contains is no keyword in draft 4", {"contains": {"type": "string"}}, {})

late_tuples = Table(DRAFT_2020)
late_tuples.widening("prefixItems take more", {"prefixItems": [INTEGER]}, {"prefixItems": [NUMBER]}, "TYPE_NARROWED")
late_tuples.widening(
    "a position joins a closed tuple",
    {"prefixItems": [INTEGER], "items": False},
    {"prefixItems": [INTEGER, STRING], "items": False},
    "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL",
)
late_tuples.widening(
    "a position joins an open tuple",
    {"prefixItems": [INTEGER, STRING]},
    {"prefixItems": [INTEGER]},
    "ITEM_ADDED_TO_OPEN_CONTENT_MODEL",
)
late_tuples.same(
    "tuples are written differently in draft 7",
    {"prefixItems": [INTEGER], "items": STRING},
    {"$schema": "http://json-schema.org/draft-07/schema#", "items": [INTEGER], "additionalItems": STRING},
)
late_tuples.same(
    "additionalItems is no keyword any more",
    {"prefixItems": [INTEGER], "additionalItems": False},
    {"prefixItems": [INTEGER]},
)
late_tuples.same("alone unevaluatedItems is items", {"unevaluatedItems": INTEGER}, {"items": INTEGER})
late_tuples.same(
    "it starts after the prefix",
    {"prefixItems": [STRING], "unevaluatedItems": False},
    {"prefixItems": [STRING], "items": False},
)
late_tuples.same(
    "it sees into allOf",
    {"allOf": [{"prefixItems": [STRING]}], "unevaluatedItems": False},
    {"prefixItems": [STRING], "items": False},
)
late_tuples.same(
    "items elsewhere evaluate all",
    {"allOf": [{"items": STRING}], "unevaluatedItems": False},
    {"items": STRING},
)
late_tuples.same(
    "contains evaluates what it matches",
    {"contains": STRING, "unevaluatedItems": False},
    {"contains": STRING, "items": STRING},
)
late_tuples.widening(
    "a branch evaluates only where it holds",
    {"anyOf": [{"prefixItems": [{"const": 1}], "minItems": 1}, {"maxItems": 0}], "unevaluatedItems": False},
    {"prefixItems": [{}], "items": False},
    "SUM_TYPE_ADDED UNEVALUATED_ITEMS_ADDED",
)
late_tuples.widening("unevaluatedItems removed", {"unevaluatedItems": False}, {}, "UNEVALUATED_ITEMS_ADDED")
late_tuples.widening(
    "dependentSchemas do not apply to arrays",
    {"dependentSchemas": {"a": {"items": {}}}, "unevaluatedItems": False},
    {"dependentSchemas": {"a": {"items": {}}}},
    "UNEVALUATED_ITEMS_ADDED",
)

contains = Table()
contains.widening("contains removed", {"contains": STRING}, {}, "CONTAINS_ADDED")
contains.widening("contains takes more", {"contains": INTEGER}, {"contains": NUMBER}, "CONTAINS_CHANGED")
contains.widening("to contain anything is to have an item", {"contains": STRING}, {"minItems": 1}, "CONTAINS_ADDED")
contains.same("contains anything", {"contains": {}}, {"minItems": 1})
contains.same("contains nothing possible", {"type": "array", "contains": False}, False)
contains.widening(
    "all items match, and there is one",
    {"items": STRING, "minItems": 1},
    {"contains": STRING},
    "ITEMS_ADDED MIN_ITEMS_ADDED",
)
contains.same("no item matches", {"not": {"type": "array", "contains": STRING}}, {"items": {"not": STRING}})
contains.unrelated(
    "each asks for its own",
    {"contains": STRING},
    {"contains": INTEGER},
    "CONTAINS_CHANGED",
    "CONTAINS_CHANGED",
)
contains.same(
    "two contains in one item",
    {"maxItems": 1, "allOf": [{"contains": {"minimum": 1}}, {"contains": {"maximum": 3}}]},
    {"maxItems": 1, "contains": {"minimum": 1, "maximum": 3}},
)
contains.same(
    "two kinds of items need two places",
    {"type": "array", "maxItems": 1, "allOf": [{"contains": STRING}, {"contains": INTEGER}]},
    False,
)

counted = Table(DRAFT_2019)
counted.widening(
    "fewer matches needed",
    {"contains": STRING, "minContains": 3},
    {"contains": STRING, "minContains": 2},
    "MIN_CONTAINS_INCREASED",
)
counted.widening(
    "more matches allowed",
    {"contains": STRING, "maxContains": 2},
    {"contains": STRING, "maxContains": 3},
    "MAX_CONTAINS_DECREASED",
)
counted.widening(
    "maxContains removed", {"contains": STRING, "maxContains": 2}, {"contains": STRING}, "MAX_CONTAINS_ADDED"
)
counted.same("minContains 0 switches contains off", {"contains": STRING, "minContains": 0}, {})
counted.same("minContains 1 is the default", {"contains": STRING, "minContains": 1}, {"contains": STRING})
counted.same("without contains they ask nothing", {"minContains": 3, "maxContains": 1}, {})
counted.same(
    "counting anything is counting items",
    {"contains": {}, "minContains": 2, "maxContains": 3},
    {"minItems": 2, "maxItems": 3},
)
counted.same("none may match", {"contains": STRING, "minContains": 0, "maxContains": 0}, {"items": {"not": STRING}})
counted.same(
    "more needed than allowed",
    {"type": "array", "contains": STRING, "minContains": 3, "maxContains": 2},
    False,
)
counted.widening("counts imply a length", {"contains": STRING, "minContains": 4}, {"minItems": 4}, "MIN_CONTAINS_ADDED")

TABLES = {
    "items": items,
    "tuples": tuples,
    "tuples of draft 4": old_tuples,
    "tuples of 2020-12": late_tuples,
    "contains": contains,
    "counted contains": counted,
}
