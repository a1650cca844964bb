"""A schema with everything that it refers to, and where each reference leads.

Rule: nothing is ever fetched. What a `$ref` names is in the text, among the references given with it, or one
of the published metaschemas; otherwise the schema is invalid. References and patterns are checked on reading.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
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
_CHECKED = frozenset(("$schema", "pattern", "patternProperties", *REFERENCES))
_RESOLVED = ('"$id"', '"id"', *(f'"{keyword}"' for keyword in REFERENCES))
"""A text with none of these has no place for which a resolver is asked."""


class DocumentPlace(NamedTuple):
    """A schema with what its references mean where it stands; `path` is the way to it from the root."""

    schema: Json
    resolver: Any  # None in a document in which nothing is resolved: making one takes a fifth of the reading
    dialect: Dialect
    path: str


class Document:
    """A root schema, `contents` (`text` is its text), and others, by the names under which it refers to them."""

    def __init__(self, contents: Json, text: str, references: Mapping[str, Json]) -> None:
        self.contents = contents
        self.dialect = dialects.of(contents)
        self.references = dict(references)
        self._dialect_of: dict[int, Dialect] = {}
        self.has_references = self.is_dynamic = False
        self.schemas = 0
        """How many schemas the root's own text holds."""
        self._pattern_characters = 0
        texts = [("", contents, self.dialect)]
        texts += [(name, other, dialects.of(other, self.dialect)) for name, other in references.items()]
        for name, each, dialect in texts:
            dialects.check(each, dialect, f"{name}#")
        resolver = None
        if references or any(keyword in text for keyword in _RESOLVED):
            try:
                resolver = self._registry(texts).resolver_with_root(dialects.resource(contents, self.dialect))
            except ValueError as error:
                raise InvalidSchema(f"a URI in it is not one: {error}") from None
        self.root = DocumentPlace(contents, resolver, self.dialect, "#")
        for name, other, dialect in texts[1:]:
            named = self._lookup(resolver, name, name).resolver
            for place in self._places_from(DocumentPlace(other, named, dialect, f"{name}#")):
                self._check(place)
        for place in self._places_from(self.root):
            self.schemas += 1
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

    def _places_from(self, place: DocumentPlace) -> Iterator[DocumentPlace]:
        """This place and all inside it, but for those of `true` and `false`, in which there is nothing to look at."""
        pending = [place]
        while pending:
            place = pending.pop()
            if isinstance(place.schema, dict):
                yield place
                for tokens, child in dialects.children(place.schema, place.dialect):
                    pending.append(self.inside(place, child, *tokens))

    def _check(self, place: DocumentPlace) -> None:
        schema = place.schema
        self._dialect_of[id(schema)] = place.dialect
        if _CHECKED.isdisjoint(schema):
            return
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
            self.has_references = True
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
