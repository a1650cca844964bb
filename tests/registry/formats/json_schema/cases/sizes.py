"""Lengths and counts too large to build a document for: the answers are exact all the same."""

from .table import DRAFT_2019, Table

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
NAMED_OBJECTS = {"patternProperties": {"1$": {"type": "object"}}}

sizes = Table()
sizes.widening(
    "a long array stands or falls with a short one",
    {"type": "array", "items": INTEGER, "minItems": 1000},
    {"type": "array", "items": NUMBER, "minItems": 1000},
    "TYPE_NARROWED",
    is_shown=False,
)
sizes.unrelated(
    "a long array of another type is another one",
    {"type": "array", "items": INTEGER, "minItems": 1000},
    {"type": "array", "items": STRING, "minItems": 1000},
    "TYPE_CHANGED",
    "TYPE_CHANGED",
    is_shown=False,
)
sizes.widening(
    "an array of a large fixed size has items like any other",
    {"items": {"items": INTEGER, "minItems": 64, "maxItems": 64}, "minItems": 16000, "maxItems": 16000},
    {"items": {"items": NUMBER}, "minItems": 1},
    "MIN_ITEMS_INCREASED",
)
sizes.widening(
    "what holds of many items holds of many different ones",
    {"items": INTEGER, "minItems": 1000, "uniqueItems": True},
    {"items": NUMBER, "uniqueItems": True},
    "TYPE_NARROWED",
)
sizes.widening(
    "the tuple at the front of a long array counts",
    {"items": [INTEGER, STRING], "additionalItems": INTEGER, "minItems": 1000},
    {"items": [NUMBER, STRING], "additionalItems": NUMBER, "minItems": 1000},
    "TYPE_NARROWED",
    is_shown=False,
)
sizes.widening(
    "a pattern binds a long string too",
    {"minLength": 5000, "pattern": "^ab"},
    {"minLength": 5000, "pattern": "a"},
    "PATTERN_CHANGED",
    is_shown=False,
)
sizes.same("a pattern may be too short for the length", {**STRING, "minLength": 5000, "pattern": "^.{3}$"}, False)
sizes.widening(
    "many properties have values like few",
    {"additionalProperties": INTEGER, "minProperties": 1000},
    {"additionalProperties": NUMBER, "minProperties": 1000},
    "ADDITIONAL_PROPERTIES_NARROWED",
    is_shown=False,
)
sizes.same(
    "many properties need many names",
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 1000},
    False,
)
sizes.unrelated(
    "the one property that is left may meet two demands",
    {"maxProperties": 1, "oneOf": [NAMED_OBJECTS, {"type": ["array", "object"]}]},
    {"maxProperties": 1, "oneOf": [NAMED_OBJECTS, {"type": ["array", "object"], "additionalProperties": False}]},
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
)

counted_sizes = Table(DRAFT_2019)
counted_sizes.widening(
    "a ration is one in a long array too",
    {"items": INTEGER, "contains": {"minimum": 3}, "maxContains": 2, "minItems": 1000},
    {"items": NUMBER, "contains": {"minimum": 3}, "maxContains": 3, "minItems": 1000},
    "MAX_CONTAINS_DECREASED",
    is_shown=False,
)
counted_sizes.widening(
    "many matches are items like any other",
    {"items": INTEGER, "contains": {"minimum": 3}, "minContains": 1000},
    {"items": NUMBER, "contains": {"minimum": 3}, "minContains": 1000},
    "TYPE_NARROWED",
    is_shown=False,
)

TABLES = {"sizes": sizes, "counted sizes of 2019-09": counted_sizes}
