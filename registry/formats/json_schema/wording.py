"""Names and sentences for differences. The names are those of the Confluent registry wherever it has one."""

from typing import Any

from .document import DocumentPlace
from .keywords import tuple_keywords
from .text_limits import write

_UPPER = {
    "minimum": "MINIMUM",
    "maximum": "MAXIMUM",
    "exclusiveMinimum": "EXCLUSIVE_MINIMUM",
    "exclusiveMaximum": "EXCLUSIVE_MAXIMUM",
    "minLength": "MIN_LENGTH",
    "maxLength": "MAX_LENGTH",
    "minItems": "MIN_ITEMS",
    "maxItems": "MAX_ITEMS",
    "minContains": "MIN_CONTAINS",
    "maxContains": "MAX_CONTAINS",
    "minProperties": "MIN_PROPERTIES",
    "maxProperties": "MAX_PROPERTIES",
    "pattern": "PATTERN",
    "format": "FORMAT",
    "contentEncoding": "CONTENT_ENCODING",
    "contentMediaType": "CONTENT_MEDIA_TYPE",
    "const": "CONST",
    "contains": "CONTAINS",
    "propertyNames": "PROPERTY_NAMES",
    "unevaluatedItems": "UNEVALUATED_ITEMS",
    "unevaluatedProperties": "UNEVALUATED_PROPERTIES",
    "then": "CONDITION",
    "else": "CONDITION",
}
_FIXED = {
    "patternProperties": "PATTERN_PROPERTY_ADDED",
    "not": "NOT_TYPE_EXTENDED",
    "uniqueItems": "UNIQUE_ITEMS_ADDED",
}
_SENTENCES = {
    "SCHEMA_NARROWED": "The new schema refuses documents that the old one takes.",
    "SCHEMA_BECAME_FALSE": "The new schema takes no value at all here.",
    "TYPE_NARROWED": "The new schema takes fewer types: {new} instead of {old}.",
    "TYPE_CHANGED": "The type changed from {old} to {new}.",
    "ENUM_ARRAY_NARROWED": "The new schema lists fewer values than the old one.",
    "ENUM_ARRAY_CHANGED": "The old schema takes values that the new list does not have.",
    "REQUIRED_ATTRIBUTE_ADDED": "The property {name} is required now and was not before.",
    "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL": "The property {name} is new and required.",
    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL": (
        "The old schema is open, so documents may hold anything under {name}, which the new schema restricts."
    ),
    "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": (
        "The old schema lets additional properties such as {name} hold values that the new schema refuses."
    ),
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL": (
        "The property {name} was removed, and the new schema takes no properties that it does not name."
    ),
    "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": (
        "The property {name} was removed, and the new schema refuses its values among additional properties."
    ),
    "ADDITIONAL_PROPERTIES_REMOVED": "The new schema takes no additional properties; the old one takes any.",
    "ADDITIONAL_PROPERTIES_NARROWED": "The new schema takes fewer additional properties or values of them.",
    "ITEM_ADDED_TO_OPEN_CONTENT_MODEL": "The old schema takes any item at position {name}; the new does not.",
    "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": (
        "The old schema takes items at position {name} that the new one refuses."
    ),
    "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL": "An item was removed, and no further items are taken.",
    "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": (
        "An item was removed, and what the new schema says of further items refuses its values."
    ),
    "UNIQUE_ITEMS_ADDED": "Items must be unique now, and need not have been before.",
    "MULTIPLE_OF_EXPANDED": "`multipleOf` grew from {old} to its multiple {new}.",
    "SUM_TYPE_NARROWED": "The new schema offers fewer alternatives.",
    "COMBINED_TYPE_CHANGED": "The way alternatives are combined changed, and the new one takes less.",
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED": "Some values of the old schema do not fit the new alternatives.",
    "NOT_TYPE_EXTENDED": "The new schema excludes more under `not`.",
    "DEPENDENCY_ARRAY_ADDED": "The presence of {name} now requires other properties.",
    "DEPENDENCY_ARRAY_EXTENDED": "The presence of {name} now requires more properties.",
    "DEPENDENCY_SCHEMA_ADDED": "The presence of {name} now demands more of the object.",
    "PATTERN_PROPERTY_ADDED": "Properties whose name matches {name} are restricted now and were not before.",
}


def sentence(kind: str, path: str, keyword: str = "", old: Any = None, new: Any = None) -> str:
    """One sentence for people."""
    name = path.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
    if keyword == "required" and isinstance(new, list):
        name = new[int(name)]
    template = _SENTENCES.get(kind)
    if keyword == "type" and old == new:
        template = "Some values that the old schema takes here are not of type {new}."
    if template is None:
        template = "`{keyword}` was added: {new}." if old is None else "`{keyword}` changed from {old} to {new}."
    shown_old = "any" if old is None else _short(old)
    return template.format(name=repr(name), keyword=keyword, old=shown_old, new=_short(new))


def _short(value: Any) -> str:
    text = write(value)
    return text if len(text) <= 60 else text[:60] + "…"


def content_model(schemas: list[dict[str, Any]]) -> str:
    """open, closed or partial: what the old schema says about properties that it does not name."""
    found = [
        schema[keyword]
        for schema in schemas
        for keyword in ("additionalProperties", "unevaluatedProperties")
        if keyword in schema
    ]
    patterns = any(schema.get("patternProperties") for schema in schemas)
    if any(value is False for value in found):
        return "partial" if patterns else "closed"
    return "partial" if patterns or any(value not in (True, {}) for value in found) else "open"


def kind_of(tokens: tuple[str, ...], place: DocumentPlace, old_values: list[Any], old: list[dict[str, Any]]) -> str:
    """The name of the difference at a keyword of the new schema, given what the old schema says there."""
    keyword, new_value = tokens[0], place.schema.get(tokens[0])
    if keyword in _FIXED:
        return _FIXED[keyword]
    match keyword:
        case "type":
            return _kind_of_type(old_values, new_value)
        case "enum":
            listed = {write(value) for values in old_values for value in values}
            narrowed = bool(listed) and listed.issuperset(map(write, new_value))
            return "ENUM_ARRAY_NARROWED" if narrowed else "ENUM_ARRAY_CHANGED"
        case "required":
            return _kind_of_required(new_value[int(tokens[1])], old)
        case "properties":
            ending = "TO_OPEN" if content_model(old) == "open" else "NOT_COVERED_BY_PARTIALLY_OPEN"
            return f"PROPERTY_ADDED_{ending}_CONTENT_MODEL"
        case "items" | "prefixItems" | "additionalItems":
            return _kind_of_items(tokens, place, old)
        case "anyOf" | "oneOf":
            return _kind_of_sum(keyword, new_value, old_values, old)
        case "multipleOf":
            return _kind_of_multiple(old_values, new_value)
        case "dependencies" | "dependentRequired" | "dependentSchemas":
            return _kind_of_dependency(tokens, place, old)
        case _:
            return _kind_of_value(keyword, old_values, new_value)


def _kind_of_required(name: str, old: list[dict[str, Any]]) -> str:
    if content_model(old) == "open" or any(name in schema.get("properties", ()) for schema in old):
        return "REQUIRED_ATTRIBUTE_ADDED"
    return "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"


def _kind_of_type(old_values: list[Any], new_value: Any) -> str:
    if not old_values:
        return "TYPE_NARROWED"
    before = {name for value in old_values for name in ([value] if isinstance(value, str) else value)}
    after = {new_value} if isinstance(new_value, str) else set(new_value)
    if "number" in before and "integer" in after:
        return "TYPE_NARROWED"
    return "TYPE_NARROWED" if before & after else "TYPE_CHANGED"


def _kind_of_items(tokens: tuple[str, ...], place: DocumentPlace, old: list[dict[str, Any]]) -> str:
    version = place.dialect.version
    rests = [schema[rest] for schema in old if (rest := tuple_keywords(schema, version)[1]) in schema]
    if len(tokens) == 2:
        covered = any(rest not in (True, {}) for rest in rests)
        if covered:
            return "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
        return "ITEM_ADDED_TO_OPEN_CONTENT_MODEL"
    prefix = tuple_keywords(place.schema, version)[0]
    if not prefix and not any(tuple_keywords(schema, version)[0] for schema in old):
        return "ITEMS_CHANGED" if rests else "ITEMS_ADDED"
    before = max((len(schema[first]) for schema in old if (first := tuple_keywords(schema, version)[0])), default=0)
    closed = place.schema[tokens[0]] is False
    if before > (len(place.schema[prefix]) if prefix else 0):
        ending = "FROM_CLOSED" if closed else "NOT_COVERED_BY_PARTIALLY_OPEN"
        return f"ITEM_REMOVED_{ending}_CONTENT_MODEL"
    return "ADDITIONAL_ITEMS_REMOVED" if closed else "ADDITIONAL_ITEMS_NARROWED"


def _kind_of_sum(keyword: str, new_value: list[Any], old_values: list[Any], old: list[dict[str, Any]]) -> str:
    if not old_values:
        other = "oneOf" if keyword == "anyOf" else "anyOf"
        return "COMBINED_TYPE_CHANGED" if any(other in schema for schema in old) else "SUM_TYPE_ADDED"
    return "SUM_TYPE_NARROWED" if len(new_value) < len(old_values[0]) else "COMBINED_TYPE_SUBSCHEMAS_CHANGED"


def _kind_of_multiple(old_values: list[Any], new_value: Any) -> str:
    if not old_values:
        return "MULTIPLE_OF_ADDED"
    return "MULTIPLE_OF_EXPANDED" if new_value % old_values[0] == 0 else "MULTIPLE_OF_CHANGED"


def _kind_of_dependency(tokens: tuple[str, ...], place: DocumentPlace, old: list[dict[str, Any]]) -> str:
    keyword, name = tokens
    if not isinstance(place.schema[keyword][name], list):
        return "DEPENDENCY_SCHEMA_ADDED"
    before = [
        schema[known][name]
        for schema in old
        for known in ("dependencies", "dependentRequired")
        if isinstance(schema.get(known, {}).get(name), list)
    ]
    if not before:
        return "DEPENDENCY_ARRAY_ADDED"
    extended = set(before[0]) < set(place.schema[keyword][name])
    return "DEPENDENCY_ARRAY_EXTENDED" if extended else "DEPENDENCY_ARRAY_CHANGED"


def _kind_of_value(keyword: str, old_values: list[Any], new_value: Any) -> str:
    name = _UPPER.get(keyword, keyword.upper())
    if not old_values:
        return f"{name}_ADDED"
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (*old_values, new_value))
    if numbers and new_value != old_values[0]:
        return f"{name}_INCREASED" if new_value > old_values[0] else f"{name}_DECREASED"
    return f"{name}_CHANGED"
