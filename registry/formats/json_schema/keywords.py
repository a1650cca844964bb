"""What each keyword of each draft says, as formulas.

A schema is the conjunction of its parts, one per keyword or per member of `properties` and the like. A part
that wraps an inner schema distributes over it (`wrap(a and b)` is `wrap(a) and wrap(b)`), which lets a
difference be traced to the innermost keyword that causes it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from registry.formats.differences import InvalidSchema, TooLarge

from .document import Document, DocumentPlace
from .nodes import (
    FALSE,
    NUMBER,
    STRING,
    TRUE,
    TYPE_NAMES,
    Definition,
    Node,
    all_of,
    any_of,
    constant,
    enumeration,
    every_key,
    exactly_one,
    has_key,
    item_at,
    items_from,
    lacks_key,
    make,
    negate,
    negate_names,
    one_of_strings,
    types,
)
from .unevaluated import unevaluated_items, unevaluated_properties

MAX_SCHEMAS = 50_000
MAX_DESCENT = 25  # deeper schemas are compiled afterwards, so that long chains of references do not recurse
# Asserted by some validators and ignored by others. Formats that no draft defines are asserted by none.
_FORMATS = {
    *("date-time", "date", "time", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6"),
    *("uri", "uri-reference", "uri-template", "iri", "iri-reference"),
    *("json-pointer", "relative-json-pointer", "regex"),
}
_COUNTS = {
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_items",
    "maxItems": "max_items",
    "minProperties": "min_properties",
    "maxProperties": "max_properties",
}
_LATE_DEPENDENCIES = make("opaque", "`dependencies` is asserted after draft 7")


@dataclass(frozen=True)
class Conjunct:
    """One conjunct of a schema; `inner` and `wrap` are given where it distributes over an inner schema."""

    tokens: tuple[str, ...]
    node: Node
    inner: DocumentPlace | None = None
    wrap: Callable[[Node], Node] | None = None


def _number(value: Any) -> Fraction:
    return Fraction(value) if isinstance(value, int) else Fraction(Decimal(repr(value)))


def _exact(value: Any) -> Any:
    """A JSON value with its numbers as decimals, as they are written."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, list):
        return [_exact(item) for item in value]
    if isinstance(value, dict):
        return {name: _exact(item) for name, item in value.items()}
    return value


class Compiler:
    """Turns the schemas of one document into nodes, each once.

    Without recursion every reference is replaced by what it leads to, so equal schemas are equal nodes
    however they are written. With recursion (`by_reference`) every reference stays one, so that each
    definition has one form only and questions about two of them come up again in the same words.
    """

    def __init__(self, document: Document, by_reference: bool = False) -> None:
        self.document = document
        self.by_reference = by_reference
        self.is_recursive = False
        self._nodes: dict[Any, Node] = {}
        self._open: set[Any] = set()
        self._in_place: list[Any] = []  # schemas being compiled that look at the same value
        self._definitions: dict[Any, Definition] = {}
        self._later: dict[Any, DocumentPlace] = {}  # definitions to compile

    def node(self, place: DocumentPlace, in_place: bool = False) -> Node:
        """The formula of a schema; `in_place` when it sees the same value as the schema that holds it."""
        if isinstance(place.schema, bool):
            return TRUE if place.schema else FALSE
        key = self._key(place)
        if key in self._nodes:
            return self._nodes[key]
        if key in self._open:
            if in_place and key in self._in_place:
                raise InvalidSchema("the schema refers to itself for the same value, without end", place.path)
            self.is_recursive = True
            return self._reference(key, place)
        if len(self._nodes) + len(self._later) > MAX_SCHEMAS:
            raise TooLarge("schemas in one text", MAX_SCHEMAS)
        if len(self._open) > MAX_DESCENT and not in_place:
            return self._reference(key, place)
        return self._compile(key, place, in_place)

    def root(self) -> Node:
        """The formula of the whole document."""
        node = self.node(self.document.root)
        while self._later:
            key, place = self._later.popitem()
            self._definitions[key].node = self._nodes.get(key) or self._compile(key, place, False)
        self._check_circles()
        return node

    def _check_circles(self) -> None:
        """What was compiled under another value may refer back under the same: then it is asked without end."""
        settled: set[Definition] = set()
        for start in self._definitions.values():
            way: dict[Definition, Iterator[Definition]] = {start: _same_value(start.node)}
            while way:
                current, targets = next(reversed(way.items()))
                target = next((target for target in targets if target not in settled), None)
                if target is None:
                    settled.add(current)
                    del way[current]
                elif target in way:
                    raise InvalidSchema("the schema refers to itself for the same value, without end", target.name)
                else:
                    way[target] = _same_value(target.node)

    def _reference(self, key: Any, place: DocumentPlace) -> Node:
        if key not in self._definitions:
            self._definitions[key] = Definition(place.path)
            self._later[key] = place
        return make("ref", self._definitions[key])

    def _compile(self, key: Any, place: DocumentPlace, in_place: bool) -> Node:
        self._open.add(key)
        outside, self._in_place = self._in_place, [*self._in_place, key] if in_place else [key]
        try:
            node = all_of([part.node for part in self.parts(place)])
        finally:
            self._in_place = outside
            self._open.discard(key)
        self._nodes[key] = node
        return node

    def _key(self, place: DocumentPlace) -> Any:
        """What decides the meaning: the schema and, where references are dynamic, the way that led to it."""
        if not self.document.is_dynamic:
            return id(place.schema)
        scope = [uri for uri, _ in place.resolver.dynamic_scope()]
        return (id(place.schema), tuple(dict.fromkeys(scope)), tuple(dict.fromkeys(reversed(scope))))

    def _inside(self, place: DocumentPlace, schema: Any, *tokens: str) -> DocumentPlace:
        return self.document.inside(place, schema, *tokens)

    def _wrapped(
        self, place: DocumentPlace, schema: Any, tokens: tuple[str, ...], wrap: Callable[[Node], Node], in_place: bool
    ) -> Conjunct:
        inner = self._inside(place, schema, *tokens)
        return Conjunct(tokens, wrap(self.node(inner, in_place)), inner, wrap)

    def parts(self, place: DocumentPlace) -> Iterator[Conjunct]:
        """The conjuncts of a schema."""
        schema, version = place.schema, place.dialect.version
        references = self.document.reference_keywords(place)
        for keyword in references:
            target = self.document.target(place, keyword)
            if self.by_reference and isinstance(target.schema, dict):
                node = self._reference(self._key(target), target)
            else:
                node = self.node(target, in_place=True)
            yield Conjunct((keyword,), node, target, lambda node: node)
        if references and version <= 7:
            return  # its siblings do not count in these drafts
        yield from self._any_type(place, schema, version)
        yield from self._numbers(schema, version)
        yield from self._strings(schema, version)
        yield from self._arrays(place, schema, version)
        yield from self._objects(place, schema, version)
        if version >= 2019:
            # Last: these look through all schemas applied in place, known by now not to run in circles.
            yield from self._unevaluated(place, schema)

    def _any_type(self, place: DocumentPlace, schema: dict[str, Any], version: int) -> Iterator[Conjunct]:
        if "type" in schema:
            yield Conjunct(("type",), _types(schema["type"], version))
        if "enum" in schema:
            yield Conjunct(("enum",), enumeration(_exact(schema["enum"])))
        if "const" in schema and version >= 6:
            yield Conjunct(("const",), constant(_exact(schema["const"])))
        for index, child in enumerate(schema.get("allOf", ())):
            yield self._wrapped(place, child, ("allOf", str(index)), lambda node: node, True)
        for keyword, combine in (("anyOf", any_of), ("oneOf", exactly_one)):
            if keyword in schema:
                branches = [
                    self.node(self._inside(place, child, keyword, str(index)), in_place=True)
                    for index, child in enumerate(schema[keyword])
                ]
                yield Conjunct((keyword,), combine(branches))
        if "not" in schema:
            yield Conjunct(("not",), negate(self.node(self._inside(place, schema["not"], "not"), in_place=True)))
        if "if" in schema and version >= 7:
            condition = self.node(self._inside(place, schema["if"], "if"), in_place=True)
            for keyword, otherwise in (("then", negate(condition)), ("else", condition)):
                if keyword in schema:
                    yield self._wrapped(place, schema[keyword], (keyword,), _unless(otherwise), True)

    def _numbers(self, schema: dict[str, Any], version: int) -> Iterator[Conjunct]:
        for keyword, kind in (("minimum", "minimum"), ("maximum", "maximum")):
            exclusive = "exclusive" + keyword.capitalize()
            if keyword in schema:
                strict = version == 4 and schema.get(exclusive) is True
                yield Conjunct((exclusive if strict else keyword,), make(kind, _number(schema[keyword]), strict))
            if exclusive in schema and version >= 6:
                yield Conjunct((exclusive,), make(kind, _number(schema[exclusive]), True))
        if "multipleOf" in schema:
            yield Conjunct(("multipleOf",), make("multiple", _number(schema["multipleOf"])))

    def _strings(self, schema: dict[str, Any], version: int) -> Iterator[Conjunct]:
        for keyword, kind in _COUNTS.items():
            if keyword in schema and (schema[keyword] > 0 or kind.startswith("max")):
                yield Conjunct((keyword,), make(kind, int(schema[keyword])))
        if "pattern" in schema:
            yield Conjunct(("pattern",), make("pattern", schema["pattern"]))
        if version <= 7:
            if schema.get("format") in _FORMATS:
                yield Conjunct(("format",), make("format", schema["format"]))
            for keyword in ("contentEncoding", "contentMediaType"):
                if isinstance(schema.get(keyword), str):
                    yield Conjunct((keyword,), make("format", f"{keyword} {schema[keyword]}"))

    def _arrays(self, place: DocumentPlace, schema: dict[str, Any], version: int) -> Iterator[Conjunct]:
        prefix, rest = tuple_keywords(schema, version)
        for index, child in enumerate(schema[prefix] if prefix else ()):
            yield self._wrapped(place, child, (prefix, str(index)), _at(index), False)
        if rest in schema:
            start = len(schema[prefix]) if prefix else 0
            yield self._wrapped(place, schema[rest], (rest,), _from(start), False)
        if schema.get("uniqueItems") is True:
            yield Conjunct(("uniqueItems",), make("unique"))
        if "contains" in schema and version >= 6:
            yield from self._contains(place, schema, version)

    def _contains(self, place: DocumentPlace, schema: dict[str, Any], version: int) -> Iterator[Conjunct]:
        inner = self.node(self._inside(place, schema["contains"], "contains"))
        least = int(schema.get("minContains", 1)) if version >= 2019 else 1
        if least == 1:
            yield Conjunct(("contains",), make("some_from", 0, inner))
        elif least:
            yield Conjunct(("minContains",), make("at_least", inner, least))
        if "maxContains" in schema and version >= 2019:
            most = int(schema["maxContains"])
            counted = make("at_most", inner, most) if most else items_from(0, negate(inner))
            yield Conjunct(("maxContains",), counted)

    def _objects(self, place: DocumentPlace, schema: dict[str, Any], version: int) -> Iterator[Conjunct]:
        required = schema.get("required", ())
        for index, name in enumerate(required if isinstance(required, list) else ()):
            yield Conjunct(("required", str(index)), has_key(name))
        for name, child in schema.get("properties", {}).items():
            yield self._wrapped(place, child, ("properties", name), _for_keys(one_of_strings((name,))), False)
        for pattern, child in schema.get("patternProperties", {}).items():
            wrap = _for_keys(make("pattern", pattern))
            yield self._wrapped(place, child, ("patternProperties", pattern), wrap, False)
        if "additionalProperties" in schema:
            wrap = _for_keys(negate_names_of(schema))
            yield self._wrapped(place, schema["additionalProperties"], ("additionalProperties",), wrap, False)
        if "propertyNames" in schema and version >= 6:
            yield self._wrapped(place, schema["propertyNames"], ("propertyNames",), _all_names, False)
        yield from self._dependencies(place, schema, version)

    def _unevaluated(self, place: DocumentPlace, schema: dict[str, Any]) -> Iterator[Conjunct]:
        for keyword, formula in (
            ("unevaluatedItems", unevaluated_items),
            ("unevaluatedProperties", unevaluated_properties),
        ):
            if keyword in schema:
                inner = self.node(self._inside(place, schema[keyword], keyword))
                yield Conjunct((keyword,), formula(self, place, inner))

    def _dependencies(self, place: DocumentPlace, schema: dict[str, Any], version: int) -> Iterator[Conjunct]:
        keywords = ["dependencies"]
        if version >= 2019:
            keywords += ["dependentRequired", "dependentSchemas"]
        for keyword in keywords:
            late = keyword == "dependencies" and version >= 2019
            for name, value in schema.get(keyword, {}).items():
                excuse = any_of((lacks_key(name), negate(_LATE_DEPENDENCIES) if late else FALSE))
                wrap = _unless(excuse)
                if isinstance(value, list):
                    yield Conjunct((keyword, name), wrap(all_of(has_key(other) for other in value)))
                else:
                    yield self._wrapped(place, value, (keyword, name), wrap, True)


def _same_value(node: Node) -> Iterator[Definition]:
    """The definitions that a formula applies to the value itself, not to something inside it."""
    pending, seen = [node], {node}
    while pending:
        node = pending.pop()
        if node.kind in ("ref", "not_ref"):
            yield node.args[0]
        elif node.kind in ("and", "or", "exactly_one", "not_exactly_one"):
            new = [part for part in node.args[0] if part not in seen]
            seen.update(new)
            pending += new


def tuple_keywords(schema: dict[str, Any], version: int) -> tuple[str, str]:
    """The keywords for the first items ("" when there are none) and for the rest, in this draft."""
    if version >= 2020:
        return "prefixItems" if "prefixItems" in schema else "", "items"
    if isinstance(schema.get("items"), list):
        return "items", "additionalItems"
    return "", "items"


def negate_names_of(schema: dict[str, Any]) -> Node:
    """The names that `properties` and `patternProperties` leave to `additionalProperties`."""
    patterns = [make("not_pattern", pattern) for pattern in schema.get("patternProperties", {})]
    return all_of((negate_names(schema.get("properties", ())), *patterns))


def _types(value: str | list[str], version: int) -> Node:
    names = {value} if isinstance(value, str) else set(value)
    mask = 0
    for name in names:
        mask |= TYPE_NAMES.get(name, NUMBER)
    if "integer" not in names or "number" in names:
        return types(mask)
    # Draft 4 calls 1.0 no integer; the later drafts do.
    whole = make("written_as_integer") if version == 4 else make("multiple", Fraction(1))
    return all_of((types(mask), whole))


def _unless(excuse: Node) -> Callable[[Node], Node]:
    return lambda node: any_of((excuse, node))


def _at(index: int) -> Callable[[Node], Node]:
    return lambda node: item_at(index, node)


def _from(start: int) -> Callable[[Node], Node]:
    return lambda node: items_from(start, node)


def _for_keys(names: Node) -> Callable[[Node], Node]:
    return lambda node: every_key(names, node)


def _all_names(node: Node) -> Node:
    """Names are strings, so only what the schema says about strings counts."""
    return every_key(all_of((types(STRING), negate(node))), FALSE)
