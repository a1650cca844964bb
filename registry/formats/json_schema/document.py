"""A schema with everything that it refers to, and where each reference leads.

Rule: nothing is ever fetched. What a `$ref` names is in the text, among the references given with it, or one
of the published metaschemas; otherwise the schema is invalid. References and patterns are checked on reading.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from jsonschema_specifications import REGISTRY as METASCHEMAS  # type: ignore[import-untyped]  # no types
from referencing import Registry
from referencing.exceptions import NoSuchAnchor, Unresolvable
from referencing.jsonschema import lookup_recursive_ref

from registry.formats.differences import InvalidSchema, TooLarge

from . import dialects, regex
from .dialects import Dialect, Json, pointer

MAX_PATTERN_CHARACTERS = 100_000
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True)
class DocumentPlace:
    """A schema with what its references mean where it stands; `path` is the way to it from the root."""

    schema: Json
    resolver: Any
    dialect: Dialect
    path: str


class Document:
    """`contents` is the root schema, `references` other texts by the names under which it refers to them."""

    def __init__(self, contents: Json, references: Mapping[str, Json]) -> None:
        self.contents = contents
        self.dialect = dialects.of(contents)
        self.references = dict(references)
        self._dialect_of: dict[int, Dialect] = {}
        self.is_dynamic = False
        self._pattern_characters = 0
        texts = [("", contents, self.dialect)]
        texts += [(name, text, dialects.of(text, self.dialect)) for name, text in references.items()]
        for name, text, dialect in texts:
            dialects.check(text, dialect, f"{name}#")
        try:
            resolver = self._registry(texts).resolver_with_root(dialects.resource(contents, self.dialect))
        except ValueError as error:
            raise InvalidSchema(f"a URI in it is not one: {error}") from None
        self.root = DocumentPlace(contents, resolver, self.dialect, "#")
        for place in self._all_places(texts, resolver):
            self._check(place)

    def _registry(self, texts: list[tuple[str, Json, Dialect]]) -> Registry[Json]:
        """Each text under its name, its name relative to the other texts, and its own `$id`."""
        made = [(name, dialects.resource(text, dialect)) for name, text, dialect in texts]
        bases = [name for name, _ in made if name] + [resource.id() or "" for _, resource in made]
        resources = [(urljoin(base, name), resource) for base in bases for name, resource in made if name]
        resources += [(name, resource) for name, resource in made if name]
        resources += [(resource.id() or "", resource) for _, resource in made[1:] if resource.id()]
        registry: Registry[Json] = METASCHEMAS.with_resources(resources).crawl()
        return registry

    def _all_places(self, texts: list[tuple[str, Json, Dialect]], resolver: Any) -> Iterator[DocumentPlace]:
        pending = [self.root]
        for name, text, dialect in texts[1:]:
            pending.append(DocumentPlace(text, self._lookup(resolver, name, name).resolver, dialect, f"{name}#"))
        while pending:
            place = pending.pop()
            yield place
            if isinstance(place.schema, dict):
                for tokens, child in dialects.children(place.schema, place.dialect):
                    pending.append(self.inside(place, child, *tokens))

    def _check(self, place: DocumentPlace) -> None:
        schema = place.schema
        if not isinstance(schema, dict):
            return
        self._dialect_of[id(schema)] = place.dialect
        inner = schema.get("$schema")
        if isinstance(inner, str) and dialects.named(inner, pointer(place.path, "$schema")) is not place.dialect:
            raise InvalidSchema("one text mixes two drafts", pointer(place.path, "$schema"))
        patterns: list[tuple[tuple[str, ...], Any]] = [(("pattern",), schema.get("pattern"))]
        named = schema.get("patternProperties")
        patterns += [(("patternProperties", name), name) for name in (named if isinstance(named, dict) else ())]
        for tokens, pattern in patterns:
            if isinstance(pattern, str):
                self._pattern_characters += len(pattern)
                if self._pattern_characters > MAX_PATTERN_CHARACTERS:
                    raise TooLarge("characters of all patterns", MAX_PATTERN_CHARACTERS)
                try:
                    regex.check(pattern)
                except regex.BadPattern as error:
                    shown = pattern if len(pattern) <= 80 else pattern[:80] + "…"
                    message = f"{shown!r} is not a regular expression: {error}"
                    raise InvalidSchema(message, pointer(place.path, *tokens)) from None
        for keyword in self.reference_keywords(place):
            self.is_dynamic = self.is_dynamic or keyword != "$ref"
            self.target(place, keyword)

    def reference_keywords(self, place: DocumentPlace) -> list[str]:
        """The reference keywords that count here, in this draft."""
        since = {"$ref": 0, "$recursiveRef": 2019, "$dynamicRef": 2020}
        version = place.dialect.version
        return [
            keyword
            for keyword in REFERENCES
            if isinstance(place.schema.get(keyword), str)
            and since[keyword] <= version
            and not (keyword == "$recursiveRef" and version > 2019)
        ]

    def inside(self, place: DocumentPlace, schema: Json, *tokens: str) -> DocumentPlace:
        """A schema inside another; it may start a new resource with its own base."""
        resolver = place.resolver
        if isinstance(schema, dict) and isinstance(schema.get("$id", schema.get("id")), str):
            resolver = resolver.in_subresource(dialects.resource(schema, place.dialect))
        return DocumentPlace(schema, resolver, place.dialect, pointer(place.path, *tokens))

    def target(self, place: DocumentPlace, keyword: str) -> DocumentPlace:
        """Where a reference leads; the path goes on from the reference, which is what its reader sees."""
        path = pointer(place.path, keyword)
        if keyword == "$recursiveRef":
            resolved = lookup_recursive_ref(place.resolver)
        else:
            resolved = self._lookup(place.resolver, place.schema[keyword], path)
        schema = resolved.contents
        if not isinstance(schema, (dict, bool)):
            raise InvalidSchema(f"{place.schema[keyword]!r} leads to something that is not a schema", path)
        dialect = place.dialect
        if isinstance(schema, dict):
            known = self._dialect_of.get(id(schema))
            if known is None:
                dialect = dialects.of(schema, dialect)
                dialects.check(schema, dialect, path)
                self._dialect_of[id(schema)] = dialect
            else:
                dialect = known
        return DocumentPlace(schema, resolved.resolver, dialect, place.path)

    def _lookup(self, resolver: Any, reference: str, path: str) -> Any:
        try:
            return resolver.lookup(reference)
        except (Unresolvable, NoSuchAnchor, ValueError):
            message = f"{reference!r} is neither in the schema nor among its references (nothing is fetched)"
            raise InvalidSchema(message, path) from None
