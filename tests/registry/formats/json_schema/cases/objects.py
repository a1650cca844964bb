"""Properties, content models, names, counts and dependencies."""

from typing import Any

from .table import DRAFT_2019, DRAFT_2020, Table

A = {"a": {"type": "string"}}
AB = {**A, "b": {"type": "integer"}}
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}
OPEN: dict[str, Any] = {"type": "object"}

models = Table()
models.widening(
    "an optional property joins a closed model",
    {**CLOSED, "properties": A},
    {**CLOSED, "properties": AB},
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
)
models.widening(
    "in an open model any value was allowed under a name",
    {**OPEN, "properties": AB},
    {**OPEN, "properties": A},
    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
)
models.same(
    "a property that takes anything adds nothing to an open model",
    {**OPEN, "properties": A},
    {**OPEN, "properties": {**A, "b": {}}},
)
models.same(
    "a property that takes nothing adds nothing to a closed model",
    {**CLOSED, "properties": A},
    {**CLOSED, "properties": {**A, "b": False}},
)
models.widening(
    "a closed model opens",
    {**CLOSED, "properties": A},
    {**OPEN, "properties": A},
    "ADDITIONAL_PROPERTIES_REMOVED",
)
models.widening(
    "a closed model opens for some values",
    {**CLOSED, "properties": A},
    {**OPEN, "properties": A, "additionalProperties": {"type": "integer"}},
    "ADDITIONAL_PROPERTIES_NARROWED",
)
models.widening(
    "additional properties take more",
    {"additionalProperties": {"type": "integer"}},
    {"additionalProperties": {"type": "number"}},
    "ADDITIONAL_PROPERTIES_NARROWED",
)
models.widening(
    "additional properties become free",
    {"additionalProperties": {"type": "integer"}},
    {"additionalProperties": True},
    "ADDITIONAL_PROPERTIES_NARROWED",
)
models.same("additionalProperties true is the default", {**OPEN, "additionalProperties": True}, OPEN)
models.same("additionalProperties {} is the default", {**OPEN, "additionalProperties": {}}, OPEN)
models.widening(
    "a property covered by the partially open model joins",
    {**OPEN, "properties": A, "additionalProperties": {"type": "integer"}},
    {**OPEN, "properties": {**A, "b": {"type": "number"}}, "additionalProperties": {"type": "integer"}},
    "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
)
models.same(
    "a property with the schema of all others says nothing new",
    {**OPEN, "properties": A, "additionalProperties": {"type": "integer"}},
    {**OPEN, "properties": AB, "additionalProperties": {"type": "integer"}},
)
models.unrelated(
    "a property outside the partially open model joins",
    {**OPEN, "properties": A, "additionalProperties": {"type": "integer"}},
    {**OPEN, "properties": {**A, "b": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
    "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
)
models.widening(
    "a removed property is covered by what is left",
    {**CLOSED, "properties": AB},
    {**OPEN, "properties": A, "additionalProperties": {"type": "number"}},
    "ADDITIONAL_PROPERTIES_NARROWED PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
)
models.widening(
    "a property takes more",
    {"properties": {"a": {"type": "integer"}}},
    {"properties": {"a": {"type": "number"}}},
    "TYPE_NARROWED",
)
models.unrelated(
    "a property changes its type",
    {"properties": {"a": {"type": "integer"}}},
    {"properties": {"a": {"type": "string"}}},
    "TYPE_CHANGED",
    "TYPE_CHANGED",
)
models.unrelated(
    "a property is renamed in an open model",
    {"properties": {"a": {"type": "integer"}}},
    {"properties": {"b": {"type": "integer"}}},
    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
)
models.unrelated(
    "a property is renamed in a closed model",
    {**CLOSED, "properties": {"a": {}}},
    {**CLOSED, "properties": {"b": {}}},
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
)
models.widening(
    "deep inside",
    {"properties": {"a": {"properties": {"b": {"properties": {"c": {"maxLength": 3}}}}}}},
    {"properties": {"a": {"properties": {"b": {"properties": {"c": {"maxLength": 4}}}}}}},
    "MAX_LENGTH_DECREASED",
)
models.same("properties say nothing about arrays", {"type": "array", "properties": A}, {"type": "array"})
models.same(
    "an impossible value is an absent property",
    {"properties": {"a": False}},
    {"properties": {"a": {"not": {}}}},
)
models.widening(
    "a forbidden property becomes possible",
    {"properties": {"a": False}},
    {"properties": {"a": {"type": "string"}}},
    "SCHEMA_BECAME_FALSE",
)
models.same(
    "names may need escaping in pointers",
    {"properties": {"a/b~c": {"type": "string"}}},
    {"properties": {"a/b~c": {"type": ["string"]}}},
)
models.widening(
    "odd names are names",
    {"properties": {"": {"type": "null"}, "$ref": {"type": "string"}}},
    {"properties": {"$ref": {"type": "string"}}},
    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
)

required = Table()
required.widening("a property need not be there any more", {"required": ["a"]}, {}, "REQUIRED_ATTRIBUTE_ADDED")
required.widening("one of two need not", {"required": ["a", "b"]}, {"required": ["a"]}, "REQUIRED_ATTRIBUTE_ADDED")
required.same("their order does not matter", {"required": ["a", "b"]}, {"required": ["b", "a"]})
required.same("an empty list asks nothing", {"required": []}, {})
required.unrelated(
    "another property becomes required",
    {"required": ["a"]},
    {"required": ["b"]},
    "REQUIRED_ATTRIBUTE_ADDED",
    "REQUIRED_ATTRIBUTE_ADDED",
)
required.widening(
    "a default does not put the property into old documents",
    {"properties": {"a": {"default": 1}}, "required": ["a"]},
    {"properties": {"a": {"default": 1}}},
    "REQUIRED_ATTRIBUTE_ADDED",
)
required.unrelated(
    "a new required property in a closed model",
    {**CLOSED, "properties": A},
    {**CLOSED, "properties": AB, "required": ["b"]},
    "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
)
required.same(
    "required and impossible is no object",
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    False,
)
required.same("required but not allowed is no object", {**CLOSED, "required": ["a"]}, False)
required.same(
    "all properties required is a least number",
    {**CLOSED, "properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
    {**CLOSED, "properties": {"a": {}, "b": {}}, "minProperties": 2},
)
required.widening(
    "requiring two names needs two properties",
    {"required": ["a", "b"]},
    {"minProperties": 2},
    "REQUIRED_ATTRIBUTE_ADDED",
)

counts = Table()
counts.widening("more properties allowed", {"maxProperties": 2}, {"maxProperties": 3}, "MAX_PROPERTIES_DECREASED")
counts.widening("maxProperties removed", {"maxProperties": 2}, {}, "MAX_PROPERTIES_ADDED")
counts.widening("fewer properties needed", {"minProperties": 2}, {"minProperties": 1}, "MIN_PROPERTIES_INCREASED")
counts.widening("minProperties removed", {"minProperties": 1}, {}, "MIN_PROPERTIES_ADDED")
counts.same("minProperties 0 asks nothing", {"minProperties": 0}, {})
counts.same("no properties at all", {"type": "object", "maxProperties": 0}, {"const": {}})
counts.widening(
    "a closed model bounds the number",
    {**CLOSED, "properties": {"a": {}, "b": {}}},
    {"type": "object", "maxProperties": 2},
    "ADDITIONAL_PROPERTIES_REMOVED",
)
counts.same(
    "a bound that the closed model has already",
    {**CLOSED, "properties": {"a": {}}},
    {**CLOSED, "properties": {"a": {}}, "maxProperties": 1},
)
counts.same("more properties than names is no object", {**CLOSED, "properties": {"a": {}}, "minProperties": 2}, False)

patterns = Table()
patterns.widening(
    "a pattern of names removed",
    {"patternProperties": {"^x": {"type": "string"}}},
    {},
    "PATTERN_PROPERTY_ADDED",
)
patterns.widening(
    "values under a pattern take more",
    {"patternProperties": {"^x": {"type": "integer"}}},
    {"patternProperties": {"^x": {"type": "number"}}},
    "TYPE_NARROWED",
)
patterns.widening(
    "the pattern covers fewer names",
    {"patternProperties": {"^x": {"type": "string"}}},
    {"patternProperties": {"^xy": {"type": "string"}}},
    "PATTERN_PROPERTY_ADDED",
)
patterns.widening(
    "a closed model takes more names",
    {**CLOSED, "patternProperties": {"^x-": {}}},
    {**CLOSED, "patternProperties": {"^x": {}}},
    "ADDITIONAL_PROPERTIES_NARROWED",
)
patterns.widening(
    "a property covered by a pattern joins",
    {**CLOSED, "patternProperties": {"^x": {"type": "integer"}}},
    {**CLOSED, "patternProperties": {"^x": {"type": "number"}}, "properties": {"x1": {"type": "number"}}},
    "TYPE_NARROWED PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
)
patterns.same(
    "a property under its own pattern",
    {"patternProperties": {"^a$": {"type": "string"}}},
    {"properties": {"a": {"type": "string"}}},
)
patterns.same(
    "property and pattern apply together",
    {"properties": {"x": {"type": "integer"}}, "patternProperties": {"x": {"minimum": 0}}},
    {
        "properties": {"x": {"minimum": 0}},
        "patternProperties": {"x": {"minimum": 0}},
        "allOf": [{"properties": {"x": {"type": "integer"}}}],
    },
)
patterns.widening(
    "a removed property is still covered by a pattern",
    {**CLOSED, "properties": {"x1": {"type": "integer"}}},
    {**CLOSED, "patternProperties": {"^x": {"type": "integer"}}},
    "ADDITIONAL_PROPERTIES_NARROWED",
)
patterns.unrelated(
    "a removed property is covered by a pattern that refuses it",
    {**CLOSED, "properties": {"x1": {"type": "string"}}},
    {**CLOSED, "patternProperties": {"^x": {"type": "integer"}}},
    "PATTERN_PROPERTY_ADDED",
    "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL ADDITIONAL_PROPERTIES_NARROWED",
)
patterns.same(
    "a pattern for all names is additionalProperties",
    {"patternProperties": {"": {"type": "string"}}},
    {"additionalProperties": {"type": "string"}},
)
patterns.same(
    "two patterns that share no name do not meet",
    {"patternProperties": {"^a": {"type": "string"}, "^b": {"type": "integer"}}, "required": ["a"]},
    {"patternProperties": {"^b": {"type": "integer"}, "^a": {"type": "string"}}, "required": ["a"]},
)
patterns.same(
    "two patterns that exclude each other leave no value",
    {"patternProperties": {"^a": {"type": "string"}, "a$": {"type": "integer"}}},
    {
        "patternProperties": {
            "^a": {"type": "string"},
            "a$": {"type": "integer"},
            "^a.*a$": False,
            "^a$": False,
        }
    },
)
patterns.widening(
    "names in a list",
    {"propertyNames": {"enum": ["a"]}},
    {"propertyNames": {"enum": ["a", "b"]}},
    "ENUM_ARRAY_NARROWED",
)
patterns.widening("propertyNames removed", {"propertyNames": {"maxLength": 3}}, {}, "PROPERTY_NAMES_ADDED")
patterns.widening(
    "longer names",
    {"propertyNames": {"maxLength": 3}},
    {"propertyNames": {"maxLength": 4}},
    "MAX_LENGTH_DECREASED",
)
patterns.same(
    "a list of names is a closed model",
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}},
    {**CLOSED, "properties": {"a": {}, "b": {}}},
)
patterns.same(
    "a pattern of names is a closed model",
    {"propertyNames": {"pattern": "^x"}},
    {"patternProperties": {"^x": {}}, "additionalProperties": False},
)
patterns.same("names are strings, always", {"propertyNames": {"type": "string"}}, {})
patterns.same(
    "names that are no strings leave the empty object",
    {"type": "object", "propertyNames": {"type": "integer"}},
    {"const": {}},
)
patterns.same("no name is allowed", {"type": "object", "propertyNames": False}, {"type": "object", "maxProperties": 0})

dependencies = Table()
dependencies.widening("a dependency removed", {"dependencies": {"a": ["b"]}}, {}, "DEPENDENCY_ARRAY_ADDED")
dependencies.widening(
    "a dependency needs less",
    {"dependencies": {"a": ["b", "c"]}},
    {"dependencies": {"a": ["b"]}},
    "DEPENDENCY_ARRAY_EXTENDED",
)
dependencies.unrelated(
    "a dependency on another property",
    {"dependencies": {"a": ["b"]}},
    {"dependencies": {"a": ["c"]}},
    "DEPENDENCY_ARRAY_CHANGED",
    "DEPENDENCY_ARRAY_CHANGED",
)
dependencies.same("an empty dependency asks nothing", {"dependencies": {"a": []}}, {})
dependencies.widening(
    "a dependency on a schema removed",
    {"dependencies": {"a": {"required": ["b"]}}},
    {},
    "DEPENDENCY_SCHEMA_ADDED",
)
dependencies.same(
    "a list is a schema that requires",
    {"dependencies": {"a": ["b"]}},
    {"dependencies": {"a": {"required": ["b"]}}},
)
dependencies.same(
    "a required trigger makes the rest required",
    {"required": ["a"], "dependencies": {"a": ["b"]}},
    {"required": ["a", "b"]},
)
dependencies.same(
    "a forbidden trigger never fires",
    {"properties": {"a": False}, "dependencies": {"a": ["b"]}},
    {"properties": {"a": False}},
)
dependencies.widening(
    "the demand of a dependency takes more",
    {"dependencies": {"a": {"properties": {"b": {"type": "integer"}}}}},
    {"dependencies": {"a": {"properties": {"b": {"type": "number"}}}}},
    "TYPE_NARROWED",
)
dependencies.widening(
    "what is always required satisfies a dependency",
    {"required": ["b"]},
    {"dependencies": {"a": ["b"]}},
    "REQUIRED_ATTRIBUTE_ADDED",
)

late_dependencies = Table(DRAFT_2019)
late_dependencies.widening(
    "dependentRequired removed", {"dependentRequired": {"a": ["b"]}}, {}, "DEPENDENCY_ARRAY_ADDED"
)
late_dependencies.widening(
    "dependentSchemas removed",
    {"dependentSchemas": {"a": {"minProperties": 2}}},
    {},
    "DEPENDENCY_SCHEMA_ADDED",
)
late_dependencies.same(
    "the new forms say what the old one said",
    {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]}},
    {"dependentRequired": {"a": ["b"]}},
)
late_dependencies.widening(
    "`dependencies` is asserted by some validators only, after draft 7",
    {"dependencies": {"a": ["b"]}},
    {},
    "DEPENDENCY_ARRAY_ADDED",
    is_shown=False,
)
late_dependencies.same(
    "two forms side by side",
    {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"a": {"required": ["c"]}}},
    {"dependentRequired": {"a": ["c", "b"]}},
)

unevaluated = Table(DRAFT_2020)
unevaluated.same(
    "alone it is additionalProperties",
    {"properties": {"a": {}}, "unevaluatedProperties": False},
    {"properties": {"a": {}}, "additionalProperties": False},
)
unevaluated.same(
    "it sees into allOf",
    {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}], "unevaluatedProperties": False},
    {"properties": {"a": {}, "b": {}}, "additionalProperties": False},
)
unevaluated.widening(
    "additionalProperties does not see into allOf",
    {"allOf": [{"properties": {"a": {}}}], "additionalProperties": False},
    {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
)
unevaluated.widening(
    "a branch evaluates only where it holds",
    {
        "anyOf": [
            {"properties": {"a": {"const": 1}}, "required": ["a"]},
            {"properties": {"b": {}}, "required": ["b"]},
        ],
        "unevaluatedProperties": False,
    },
    {"properties": {"a": {}, "b": {}}, "additionalProperties": False},
    "SUM_TYPE_ADDED UNEVALUATED_PROPERTIES_ADDED",
)
unevaluated.widening(
    "a further property joins",
    {"properties": {"a": {}}, "unevaluatedProperties": False},
    {"properties": {"a": {}, "b": {}}, "unevaluatedProperties": False},
    "UNEVALUATED_PROPERTIES_CHANGED",
)
unevaluated.widening(
    "unevaluatedProperties removed", {"unevaluatedProperties": False}, {}, "UNEVALUATED_PROPERTIES_ADDED"
)
unevaluated.widening(
    "a schema instead of false",
    {"unevaluatedProperties": False},
    {"unevaluatedProperties": {"type": "string"}},
    "UNEVALUATED_PROPERTIES_CHANGED",
)
unevaluated.same(
    "additional properties are evaluated",
    {"additionalProperties": {"type": "string"}, "unevaluatedProperties": False},
    {"additionalProperties": {"type": "string"}},
)
unevaluated.same(
    "it sees through a reference",
    {"$ref": "#/$defs/a", "unevaluatedProperties": False, "$defs": {"a": {"properties": {"a": {}}}}},
    {"properties": {"a": {}}, "additionalProperties": False},
)
unevaluated.same(
    "then is evaluated where if holds",
    {"if": {"required": ["k"]}, "then": {"properties": {"k": {}, "a": {}}}, "unevaluatedProperties": False},
    {
        "if": {"required": ["k"]},
        "then": {"propertyNames": {"enum": ["k", "a"]}},
        "else": {"maxProperties": 0},
        "type": ["null", "boolean", "number", "string", "array", "object"],
    },
)
unevaluated.same(
    "a nested unevaluatedProperties evaluates the rest",
    {"allOf": [{"unevaluatedProperties": {"type": "string"}}], "unevaluatedProperties": False},
    {"additionalProperties": {"type": "string"}},
)
unevaluated.same(
    "`not` evaluates nothing",
    {"not": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "unevaluatedProperties": False},
    {"type": "object", "additionalProperties": False},
)
unevaluated.same(
    "dependentSchemas evaluate when triggered",
    {
        "properties": {"a": {}},
        "dependentSchemas": {"a": {"properties": {"b": {}}}},
        "unevaluatedProperties": False,
    },
    {"properties": {"a": {}, "b": {}}, "additionalProperties": False, "dependentRequired": {"b": ["a"]}},
)
unevaluated.same(
    "patterns evaluate",
    {"patternProperties": {"^x": {}}, "unevaluatedProperties": False},
    {"propertyNames": {"pattern": "^x"}},
)

TABLES = {
    "content models": models,
    "required": required,
    "property counts": counts,
    "patterns and names": patterns,
    "dependencies": dependencies,
    "dependencies of 2019-09": late_dependencies,
    "unevaluated properties": unevaluated,
}
