"""Types, enumerations, numbers and strings."""

from .table import DRAFT_4, DRAFT_2020, Table

types = Table()
types.same("a schema is compatible with itself", {"type": "string"}, {"type": "string"})
types.same("annotations do not validate", {"title": "a", "description": "x"}, {"default": 1, "examples": [2]})
types.same("unknown keywords are ignored", {"type": "string", "x-unit": "m"}, {"type": "string"})
types.same("true is the empty schema", True, {})
types.same("false is the negation of the empty schema", False, {"not": {}})
types.same("a list of one type is that type", {"type": ["string"]}, {"type": "string"})
types.same("the order of types does not matter", {"type": ["null", "string"]}, {"type": ["string", "null"]})
types.same("number covers integer, so naming both adds nothing", {"type": "number"}, {"type": ["integer", "number"]})
types.same(
    "all six types together are no restriction",
    {"type": ["null", "boolean", "number", "string", "array", "object"]},
    {},
)
types.widening("every integer is a number", {"type": "integer"}, {"type": "number"}, "TYPE_NARROWED")
types.widening("one more type is allowed", {"type": "string"}, {"type": ["string", "null"]}, "TYPE_NARROWED")
types.widening("a type is dropped", {"type": "string"}, {}, "TYPE_NARROWED")
types.widening("nothing at all is below everything", False, {"type": "null"}, "SCHEMA_BECAME_FALSE")
types.widening("everything is above any schema", {"type": "object"}, True, "TYPE_NARROWED")
types.widening(
    "integer widens inside a list too",
    {"type": ["integer", "null"]},
    {"type": ["number", "null"]},
    "TYPE_NARROWED",
)
types.unrelated("strings are not integers", {"type": "string"}, {"type": "integer"}, "TYPE_CHANGED", "TYPE_CHANGED")
types.unrelated("null is not boolean", {"type": "null"}, {"type": "boolean"}, "TYPE_CHANGED", "TYPE_CHANGED")
types.unrelated("arrays are not objects", {"type": "array"}, {"type": "object"}, "TYPE_CHANGED", "TYPE_CHANGED")
types.unrelated(
    "the lists overlap without either holding the other",
    {"type": ["string", "null"]},
    {"type": ["string", "boolean"]},
    "TYPE_NARROWED",
    "TYPE_NARROWED",
)
types.same(
    "a schema of two types that exclude each other takes nothing",
    {"allOf": [{"type": "null"}, {"type": "array"}]},
    False,
)

enums = Table()
enums.widening("one more value is listed", {"enum": ["a"]}, {"enum": ["a", "b"]}, "ENUM_ARRAY_NARROWED")
enums.same("the order of values does not matter", {"enum": [1, 2]}, {"enum": [2, 1]})
enums.same("const is an enum of one", {"const": "a"}, {"enum": ["a"]})
enums.same("1 and 1.0 are the same number", {"const": 1}, {"const": 1.0})
enums.unrelated("true is not 1", {"const": True}, {"const": 1}, "CONST_CHANGED", "CONST_CHANGED")
enums.unrelated("false is not 0", {"enum": [False]}, {"enum": [0]}, "ENUM_ARRAY_CHANGED", "ENUM_ARRAY_CHANGED")
enums.unrelated(
    "each list has a value of its own",
    {"enum": ["a", "b"]},
    {"enum": ["b", "c"]},
    "ENUM_ARRAY_CHANGED",
    "ENUM_ARRAY_CHANGED",
)
enums.widening("values become any string", {"enum": ["a", "b"]}, {"type": "string"}, "ENUM_ARRAY_CHANGED")
enums.widening(
    "values of several types are within their types",
    {"enum": ["a", None]},
    {"type": ["string", "null"]},
    "ENUM_ARRAY_CHANGED",
)
enums.same("both booleans listed are the type", {"enum": [True, False]}, {"type": "boolean"})
enums.same("null listed is the type", {"const": None}, {"type": "null"})
enums.same("values that the type refuses do not count", {"type": "string", "enum": ["a", 1]}, {"enum": ["a"]})
enums.widening("a constant becomes a range that holds it", {"const": 3}, {"minimum": 1, "maximum": 5}, "CONST_ADDED")
enums.same("a constant array", {"const": [1, 2]}, {"enum": [[1, 2]]})
enums.widening(
    "an array constant is an array of that length",
    {"const": [1, "a"]},
    {"type": "array", "minItems": 2, "maxItems": 2},
    "CONST_ADDED",
)
enums.unrelated(
    "the order of array items matters", {"const": [1, 2]}, {"const": [2, 1]}, "CONST_CHANGED", "CONST_CHANGED"
)
enums.same("the order of object keys does not", {"const": {"a": 1, "b": 2}}, {"const": {"b": 2, "a": 1}})
enums.same(
    "an object constant spelled out",
    {"const": {"a": 1}},
    {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False},
)
enums.widening(
    "a longer list of mixed values",
    {"enum": [1, "x", [2]]},
    {"enum": [1, "x", [2], {"k": None}]},
    "ENUM_ARRAY_NARROWED",
)
enums.widening(
    "excluding fewer values takes more", {"not": {"enum": [1, 2]}}, {"not": {"const": 1}}, "NOT_TYPE_EXTENDED"
)

numbers = Table()
numbers.widening("a lower minimum", {"minimum": 5}, {"minimum": 4}, "MINIMUM_INCREASED")
numbers.widening("a minimum removed", {"minimum": 5}, {}, "MINIMUM_ADDED")
numbers.widening("a higher maximum", {"maximum": 5}, {"maximum": 5.5}, "MAXIMUM_DECREASED")
numbers.widening("a maximum removed", {"type": "number", "maximum": 5}, {"type": "number"}, "MAXIMUM_ADDED")
numbers.widening(
    "an exclusive bound becomes inclusive", {"exclusiveMinimum": 5}, {"minimum": 5}, "EXCLUSIVE_MINIMUM_ADDED"
)
numbers.widening(
    "a higher exclusive maximum",
    {"exclusiveMaximum": 5},
    {"exclusiveMaximum": 6},
    "EXCLUSIVE_MAXIMUM_DECREASED",
)
numbers.widening(
    "a lower exclusive minimum",
    {"exclusiveMinimum": 5},
    {"exclusiveMinimum": 4},
    "EXCLUSIVE_MINIMUM_INCREASED",
)
numbers.same("bounds say nothing about strings", {"type": "string", "minimum": 5}, {"type": "string"})
numbers.same("of two bounds the tighter counts", {"minimum": 3, "exclusiveMinimum": 3}, {"exclusiveMinimum": 3})
numbers.same(
    "no integer lies between 0 and 1",
    {"type": "integer", "exclusiveMinimum": 0},
    {"type": "integer", "minimum": 1},
)
numbers.same(
    "integers below 2.5 are those up to 2",
    {"type": "integer", "maximum": 2.5},
    {"type": "integer", "maximum": 2},
)
numbers.widening("a range of one value is that value", {"const": 2}, {"minimum": 2, "maximum": 2}, "CONST_ADDED")
numbers.same("a range of one number is that number", {"const": 2}, {"type": "number", "minimum": 2, "maximum": 2})
numbers.same("integers from 1 to 3 listed", {"enum": [1, 2, 3]}, {"type": "integer", "minimum": 1, "maximum": 3})
numbers.same("an empty range takes no number", {"type": "number", "minimum": 2, "maximum": 1}, False)
numbers.widening("multiples of 6 are multiples of 3", {"multipleOf": 6}, {"multipleOf": 3}, "MULTIPLE_OF_EXPANDED")
numbers.widening("multipleOf removed", {"multipleOf": 2}, {}, "MULTIPLE_OF_ADDED")
numbers.unrelated(
    "4 is no multiple of 6, nor 6 of 4",
    {"multipleOf": 4},
    {"multipleOf": 6},
    "MULTIPLE_OF_CHANGED",
    "MULTIPLE_OF_CHANGED",
)
numbers.same(
    "multiples of 4 and 6 are multiples of 12",
    {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}]},
    {"multipleOf": 12},
)
numbers.same("integers are the multiples of 1", {"type": "integer"}, {"type": "number", "multipleOf": 1})
numbers.widening(
    "halves include the integers", {"type": "integer"}, {"type": "number", "multipleOf": 0.5}, "TYPE_NARROWED"
)
numbers.same(
    "even numbers are integers already",
    {"type": "integer", "multipleOf": 2},
    {"type": "number", "multipleOf": 2},
)
numbers.widening(
    "multiples of 1.5 in a short range",
    {"enum": [1.5, 3]},
    {"type": "number", "multipleOf": 1.5, "minimum": 1, "maximum": 4.5},
    "ENUM_ARRAY_CHANGED",
)
numbers.same(
    "an integer that is not even is odd",
    {"type": "integer", "not": {"multipleOf": 2}},
    {"allOf": [{"type": "integer"}, {"not": {"type": "integer", "multipleOf": 2}}]},
)
numbers.same("no integer is a multiple of neither 1 nor 2", {"type": "integer", "not": {"multipleOf": 1}}, False)
numbers.unrelated(
    "ranges that overlap",
    {"minimum": 0, "maximum": 10},
    {"minimum": 5, "maximum": 15},
    "MINIMUM_INCREASED",
    "MAXIMUM_DECREASED",
)
numbers.widening("huge numbers are exact", {"maximum": 10**30}, {"maximum": 10**30 + 1}, "MAXIMUM_DECREASED")
numbers.same("exponents are only another way to write", {"maximum": 1e3}, {"maximum": 1000})

old_numbers = Table(DRAFT_4)
old_numbers.widening(
    "draft 4 marks bounds exclusive with a flag",
    {"minimum": 5, "exclusiveMinimum": True},
    {"minimum": 5},
    "EXCLUSIVE_MINIMUM_ADDED",
)
old_numbers.widening(
    "a raised bound with the flag",
    {"maximum": 5, "exclusiveMaximum": True},
    {"maximum": 6, "exclusiveMaximum": True},
    "EXCLUSIVE_MAXIMUM_CHANGED EXCLUSIVE_MAXIMUM_DECREASED",
)
old_numbers.same("a flag of false is no flag", {"minimum": 5, "exclusiveMinimum": False}, {"minimum": 5})
old_numbers.widening(
    "1.0 is no integer in draft 4", {"type": "integer"}, {"type": "number", "multipleOf": 1}, "TYPE_NARROWED"
)
old_numbers.widening(
    "a draft 4 integer is one in draft 7",
    {"type": "integer"},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "integer"},
    "TYPE_NARROWED",
)
old_numbers.same(
    "bounds read the same in draft 4 and 2020-12",
    {"minimum": 1, "exclusiveMinimum": True},
    {"$schema": DRAFT_2020, "exclusiveMinimum": 1},
)
old_numbers.same("const is no keyword in draft 4", {"const": 1}, {})

strings = Table()
strings.widening("a longer maximum", {"maxLength": 5}, {"maxLength": 6}, "MAX_LENGTH_DECREASED")
strings.widening("maxLength removed", {"maxLength": 5}, {}, "MAX_LENGTH_ADDED")
strings.widening("a shorter minimum", {"minLength": 5}, {"minLength": 4}, "MIN_LENGTH_INCREASED")
strings.widening("minLength removed", {"type": "string", "minLength": 1}, {"type": "string"}, "MIN_LENGTH_ADDED")
strings.same("minLength 0 asks nothing", {"minLength": 0}, {})
strings.same("lengths may be written 2.0", {"minLength": 2.0}, {"minLength": 2})
strings.same("only the empty string has length 0", {"type": "string", "maxLength": 0}, {"const": ""})
strings.same("lengths that contradict take no string", {"type": "string", "minLength": 3, "maxLength": 2}, False)
strings.same(
    "length counts characters, not bytes or UTF-16 units",
    {"type": "string", "enum": ["\U0001f600"]},
    {"type": "string", "enum": ["\U0001f600"], "maxLength": 1},
)
strings.widening("a pattern removed", {"pattern": "^a"}, {}, "PATTERN_ADDED")
strings.widening("a pattern of fewer strings", {"pattern": "^ab"}, {"pattern": "^a"}, "PATTERN_CHANGED")
strings.widening("patterns are searched for, not anchored", {"pattern": "^a$"}, {"pattern": "a"}, "PATTERN_CHANGED")
strings.same("classes are sets of characters", {"pattern": "^[abc]$"}, {"pattern": "^(a|b|c)$"})
strings.same("\\d is [0-9] in ECMA 262", {"pattern": "^\\d+$"}, {"pattern": "^[0-9]+$"})
strings.widening("repetition widened", {"pattern": "^[a-z]{2,3}$"}, {"pattern": "^[a-z]{1,8}$"}, "PATTERN_CHANGED")
strings.widening(
    "a pattern implies a length",
    {"type": "string", "pattern": "^[A-Z]{3}$"},
    {"type": "string", "minLength": 3, "maxLength": 3},
    "PATTERN_ADDED",
)
strings.widening(
    "listed values match the pattern",
    {"enum": ["ab", "ac"]},
    {"type": "string", "pattern": "^a"},
    "ENUM_ARRAY_CHANGED",
)
strings.unrelated(
    "a listed value does not match",
    {"enum": ["ab", "xc"]},
    {"type": "string", "pattern": "^a"},
    "PATTERN_ADDED",
    "ENUM_ARRAY_CHANGED",
)
strings.widening("a lookahead restricts", {"pattern": "^(?!x)[a-z]+$"}, {"pattern": "^[a-z]+$"}, "PATTERN_CHANGED")
strings.same(
    "two patterns are one lookahead",
    {"allOf": [{"pattern": "a"}, {"pattern": "b"}]},
    {"pattern": "^(?=[\\s\\S]*a)(?=[\\s\\S]*b)"},
)
strings.same("the empty pattern matches all", {"pattern": ""}, {})
strings.same("an impossible pattern takes no string", {"type": "string", "pattern": "a^b"}, False)
strings.same("a backreference is compared as text only", {"pattern": "^(a)\\1$"}, {"pattern": "^(a)\\1$"})
strings.widening("a backreference may be dropped", {"pattern": "^(a|b)\\1$"}, {}, "PATTERN_ADDED", is_shown=True)
strings.unrelated("prefixes that differ", {"pattern": "^a"}, {"pattern": "^b"}, "PATTERN_CHANGED", "PATTERN_CHANGED")
strings.widening(
    "a pattern becomes optional",
    {"type": "string", "pattern": "^a$"},
    {"type": "string", "pattern": "^a?$"},
    "PATTERN_CHANGED",
)
strings.widening(
    "a format may be dropped",
    {"type": "string", "format": "date"},
    {"type": "string"},
    "FORMAT_ADDED",
    is_shown=False,
)
strings.unrelated(
    "nothing is claimed between formats",
    {"format": "date"},
    {"format": "time"},
    "FORMAT_CHANGED",
    "FORMAT_CHANGED",
    is_shown=False,
)
strings.same(
    "formats that no draft defines are annotations",
    {"type": "integer", "format": "int32"},
    {"type": "integer"},
)
strings.widening(
    "content encoding may be asserted in draft 7",
    {"contentEncoding": "base64"},
    {},
    "CONTENT_ENCODING_ADDED",
    is_shown=False,
)

late_strings = Table(DRAFT_2020)
late_strings.same("format only annotates since 2019-09", {"type": "string", "format": "date"}, {"type": "string"})
late_strings.same("content keywords only annotate", {"contentMediaType": "text/html"}, {})

TABLES = {
    "types": types,
    "enums": enums,
    "numbers": numbers,
    "numbers of draft 4": old_numbers,
    "strings": strings,
    "strings of 2020-12": late_strings,
}
