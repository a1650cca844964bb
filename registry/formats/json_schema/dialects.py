"""The drafts of JSON Schema and how a text names its own.

Without `$schema` a schema is read as draft 7, as the Confluent registry does, unless it uses a keyword that
only later drafts have: someone who writes `prefixItems` or `$defs` does not mean the draft that ignores them.
Then it is 2020-12, or 2019-09 where tuples are still written with `items`. It is draft 4
where `exclusiveMinimum` or `exclusiveMaximum` is a boolean and nothing is used that draft 4 would ignore.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # publishes no types
import jsonschema_rs
from jsonschema.exceptions import best_match  # type: ignore[import-untyped]  # publishes no types
from referencing import jsonschema as specifications
from referencing.jsonschema import Schema, SchemaResource

from registry.formats.differences import InvalidSchema

Json = Any


@dataclass(frozen=True)
class Dialect:
    """One draft. `version` orders them: 4, 6, 7, 2019, 2020."""

    version: int
    uri: str
    checker: type[Any]  # a validator class of `jsonschema`: explains what is wrong with a schema
    engine: type[Any]  # a validator class of `jsonschema_rs`: fast, bounded, never fetches when offline
    specification: Any


_DRAFTS = (
    (4, "http://json-schema.org/draft-04/schema", "Draft4Validator", specifications.DRAFT4),
    (6, "http://json-schema.org/draft-06/schema", "Draft6Validator", specifications.DRAFT6),
    (7, "http://json-schema.org/draft-07/schema", "Draft7Validator", specifications.DRAFT7),
    (
        2019,
        "https://json-schema.org/draft/2019-09/schema",
        "Draft201909Validator",
        specifications.DRAFT201909,
    ),
    (
        2020,
        "https://json-schema.org/draft/2020-12/schema",
        "Draft202012Validator",
        specifications.DRAFT202012,
    ),
)
DIALECTS = {
    version: Dialect(version, uri, getattr(jsonschema, name), getattr(jsonschema_rs, name), specification)
    for version, uri, name, specification in _DRAFTS
}
_BY_URI = {dialect.uri.partition("://")[2]: dialect for dialect in DIALECTS.values()}
DEFAULT = DIALECTS[7]

_SINGLE = {
    *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
}
_LISTED = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
_NAMED = {"$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies"}
_SINCE = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "then": 7,
    "else": 7,
    "contentSchema": 2019,
    "unevaluatedItems": 2019,
    "unevaluatedProperties": 2019,
    "dependentSchemas": 2019,
    "dependentRequired": 2019,
    "minContains": 2019,
    "maxContains": 2019,
    "prefixItems": 2020,
}
_ONLY_LATER = {
    *(
        "$defs",
        "$anchor",
        "$recursiveRef",
        "$recursiveAnchor",
        "$dynamicRef",
        "$dynamicAnchor",
        "$vocabulary",
    ),
    *("dependentRequired", "dependentSchemas", "maxContains", "minContains", "prefixItems"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
_BOOLEAN_IN_DRAFT_4 = ("exclusiveMinimum", "exclusiveMaximum")


def named(uri: str, path: str) -> Dialect:
    """The dialect that a `$schema` names."""
    dialect = _BY_URI.get(uri.partition("://")[2].removesuffix("#"))
    if dialect is None:
        known = ", ".join(known.uri for known in DIALECTS.values())
        raise InvalidSchema(f"$schema names {uri!r}, which is none of {known}", path)
    return dialect


def of(contents: Json, default: Dialect | None = None) -> Dialect:
    """The dialect of a whole text; `default` is that of the text which refers to it."""
    if isinstance(contents, dict) and isinstance(contents.get("$schema"), str):
        return named(contents["$schema"], "#/$schema")
    return default or _guess(contents)


def _guess(contents: Json) -> Dialect:
    booleans = newer = later = tuples = False
    pending = [contents]
    while pending:
        schema = pending.pop()
        if isinstance(schema, dict):
            booleans = booleans or any(isinstance(schema.get(bound), bool) for bound in _BOOLEAN_IN_DRAFT_4)
            newer = newer or not _SINCE.keys().isdisjoint(schema)
            later = later or not _ONLY_LATER.isdisjoint(schema)
            tuples = tuples or isinstance(schema.get("items"), list) or "$recursiveRef" in schema
            pending += [child for _, child in children(schema, DIALECTS[2020])]
    if later:
        return DIALECTS[2019 if tuples else 2020]
    return DIALECTS[4] if booleans and not newer else DEFAULT


def children(schema: dict[str, Json], dialect: Dialect) -> Iterator[tuple[tuple[str, ...], Json]]:
    """The schemas directly inside this one, each with the way to it."""
    for keyword, value in schema.items():
        if _SINCE.get(keyword, 0) > dialect.version:
            continue
        if keyword in _SINGLE and isinstance(value, (dict, bool)):
            yield (keyword,), value
        elif keyword in _LISTED and isinstance(value, list):
            for index, child in enumerate(value):
                yield (keyword, str(index)), child
        elif keyword in _NAMED and isinstance(value, dict):
            for name, child in value.items():
                if isinstance(child, (dict, bool)):
                    yield (keyword, name), child


def known(schema: dict[str, Json], dialect: Dialect) -> dict[str, Json]:
    """The schema without keywords that its draft does not have yet: those may hold anything."""
    if all(_SINCE.get(keyword, 0) <= dialect.version for keyword in schema):
        return schema
    return {keyword: value for keyword, value in schema.items() if _SINCE.get(keyword, 0) <= dialect.version}


def pointer(path: str, *tokens: str) -> str:
    """The JSON pointer, as a URI fragment, one or more steps further down."""
    return "/".join((path, *(token.replace("~", "~0").replace("/", "~1") for token in tokens)))


@cache
def _metaschema(dialect: Dialect) -> Any:
    return dialect.engine(dialect.checker.META_SCHEMA, validate_formats=False, offline=True)


def check(contents: Json, dialect: Dialect, path: str = "#") -> None:
    """Raise `InvalidSchema` unless the metaschema takes it."""
    metaschema = _metaschema(dialect)
    if metaschema.is_valid(contents):
        return
    try:
        checker = dialect.checker(dialect.checker.META_SCHEMA, format_checker=None)
        error = best_match(checker.iter_errors(contents))
        message, steps = error.message, list(error.absolute_path)
    except RecursionError:
        first = next(iter(metaschema.iter_errors(contents)))
        message, steps = first.message, list(first.instance_path)
    if len(message) > 300:
        message = message[:300] + "…"
    raise InvalidSchema(message, pointer(path, *map(str, steps)))


def resource(contents: Schema, dialect: Dialect) -> SchemaResource:
    created: SchemaResource = dialect.specification.create_resource(contents)
    return created
