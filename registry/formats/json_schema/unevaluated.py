"""unevaluatedProperties and unevaluatedItems, as plain formulas.

Which properties count as evaluated depends on which branches of the schema the value satisfies. Each source
of evaluation is therefore a pair: the condition under which it counts, and what it covers. With F the set of
conditions that fail, the keyword says for every F: some condition of F holds after all, or everything outside
what the other sources cover satisfies the schema.
"""

from collections.abc import Callable, Iterator
from itertools import chain, combinations
from typing import TYPE_CHECKING, TypeVar

from .document import DocumentPlace
from .nodes import (
    FALSE,
    OBJECT,
    TRUE,
    Node,
    all_of,
    any_of,
    every_key,
    has_key,
    items_from,
    make,
    negate,
    one_of_strings,
    types,
)

if TYPE_CHECKING:
    from .keywords import Compiler

MAX_CONDITIONS = 6
_CONTAINS_EVALUATES = make("opaque", "`contains` evaluates items in 2019-09")

Cover = TypeVar("Cover")
Source = tuple[Node, Cover]
Reader = Callable[[DocumentPlace, bool], Iterator[Source[Cover]]]  # the bool: it is the schema with the keyword


def _sources(
    compiler: "Compiler", place: DocumentPlace, read: Reader[Cover], is_root: bool = True
) -> Iterator[Source[Cover]]:
    """All sources of evaluation in a schema and in those that it applies to the same value."""
    if not isinstance(place.schema, dict):
        return
    yield from read(place, is_root)
    for condition, child in _applied(compiler, place):
        for inner, cover in _sources(compiler, child, read, False):
            yield all_of((condition, inner)), cover


def _applied(compiler: "Compiler", place: DocumentPlace) -> Iterator[tuple[Node, DocumentPlace]]:
    """The schemas applied to the same value, each with the condition under which its evaluations count."""
    schema, document = place.schema, compiler.document
    for keyword in document.reference_keywords(place):
        yield TRUE, document.target(place, keyword)
    for index, child in enumerate(schema.get("allOf", ())):
        yield TRUE, document.inside(place, child, "allOf", str(index))
    for keyword in ("anyOf", "oneOf"):
        for index, child in enumerate(schema.get(keyword, ())):
            inner = document.inside(place, child, keyword, str(index))
            yield compiler.node(inner, in_place=True), inner
    if "if" in schema:
        tested = document.inside(place, schema["if"], "if")
        condition = compiler.node(tested, in_place=True)
        yield condition, tested
        for keyword, applies in (("then", condition), ("else", negate(condition))):
            if keyword in schema:
                yield applies, document.inside(place, schema[keyword], keyword)
    for name, child in schema.get("dependentSchemas", {}).items():
        present = all_of((types(OBJECT), has_key(name)))  # has_key alone holds for values of other types
        yield present, document.inside(place, child, "dependentSchemas", name)


def _grouped(sources: Iterator[Source[Cover]]) -> dict[Node, list[Cover]]:
    grouped: dict[Node, list[Cover]] = {TRUE: []}
    for condition, cover in sources:
        if condition is not FALSE:
            grouped.setdefault(condition, []).append(cover)
    return grouped


def _for_each_failure(grouped: dict[Node, list[Cover]], rest: Callable[[list[Cover]], Node], schema: Node) -> Node:
    conditions = [condition for condition in grouped if condition is not TRUE]
    if len(conditions) > MAX_CONDITIONS:
        known = frozenset((condition, tuple(covers)) for condition, covers in grouped.items())
        return make("opaque", "unevaluated", known, schema)
    clauses = []
    for failing in chain.from_iterable(combinations(conditions, size) for size in range(len(conditions) + 1)):
        holding = [cover for condition, covers in grouped.items() if condition not in failing for cover in covers]
        clauses.append(any_of((*failing, rest(holding))))
    return all_of(clauses)


def unevaluated_properties(compiler: "Compiler", place: DocumentPlace, schema: Node) -> Node:
    """The formula of the keyword at this place; `schema` is its value."""
    grouped = _grouped(_sources(compiler, place, _evaluated_names))
    plain = all(
        cover.kind in ("string_in", "true")
        for condition, covers in grouped.items()
        if condition is not TRUE
        for cover in covers
    )
    if plain:
        return _name_by_name(grouped, schema)
    return _for_each_failure(grouped, lambda covers: every_key(_outside(covers), schema), schema)


def _name_by_name(grouped: dict[Node, list[Node]], schema: Node) -> Node:
    """Where conditions cover only single names, a clause per name does, however many conditions there are."""
    everything = [condition for condition, covers in grouped.items() if TRUE in covers]
    by_name: dict[str, list[Node]] = {}
    for condition, covers in grouped.items():
        if condition is not TRUE:
            for cover in covers:
                for name in cover.args[0] if cover.kind == "string_in" else ():
                    by_name.setdefault(name, []).append(condition)
    by_condition: dict[frozenset[Node], list[str]] = {}
    for name, conditions in by_name.items():
        by_condition.setdefault(frozenset(conditions), []).append(name)
    always = grouped.get(TRUE, [])
    clauses = [every_key(_outside([*always, one_of_strings(by_name)] if by_name else always), schema)]
    for needed, names in by_condition.items():
        covered = [all_of((one_of_strings((name,)), _outside(always))) for name in names]
        clauses.append(any_of((*needed, all_of(every_key(_simple(one), schema) for one in covered))))
    return any_of((*everything, all_of(clauses)))


def _simple(names: Node) -> Node:
    """A single name that is also outside a set of names is that name, or none."""
    if names.kind != "and":
        return names
    wanted = [part for part in names.args[0] if part.kind == "string_in"]
    refused = [part for part in names.args[0] if part.kind == "string_not_in"]
    if len(wanted) == 1 and len(wanted) + len(refused) == len(names.args[0]):
        left = wanted[0].args[0].difference(*(part.args[0] for part in refused))
        return one_of_strings(left) if left else FALSE
    return names


def _outside(covers: list[Node]) -> Node:
    """The names that nothing covers. Sets of names are about strings only, so the opposite needs no type."""
    names = frozenset().union(*(cover.args[0] for cover in covers if cover.kind == "string_in"))
    others = [FALSE if cover is TRUE else negate(cover) for cover in covers if cover.kind != "string_in"]
    return all_of((make("string_not_in", names) if names else TRUE, *others))


def _evaluated_names(place: DocumentPlace, is_root: bool) -> Iterator[Source[Node]]:
    schema = place.schema
    if schema.get("properties"):
        yield TRUE, one_of_strings(schema["properties"])
    for pattern in schema.get("patternProperties", ()):
        yield TRUE, make("pattern", pattern)
    if "additionalProperties" in schema or ("unevaluatedProperties" in schema and not is_root):
        yield TRUE, TRUE


# What is evaluated of an array: all items before an index (None: all), and those that satisfy a schema.
Items = tuple[int | None, Node]


def unevaluated_items(compiler: "Compiler", place: DocumentPlace, schema: Node) -> Node:
    """The formula of the keyword at this place; `schema` is its value."""

    def read(where: DocumentPlace, is_root: bool) -> Iterator[Source[Items]]:
        yield from _evaluated_items(compiler, where, is_root)

    def rest(covers: list[Items]) -> Node:
        starts = [start for start, _ in covers]
        if None in starts:
            return TRUE
        start = max((start for start in starts if start is not None), default=0)
        return items_from(start, any_of((schema, *(matching for _, matching in covers))))

    return _for_each_failure(_grouped(_sources(compiler, place, read)), rest, schema)


def _evaluated_items(compiler: "Compiler", place: DocumentPlace, is_root: bool) -> Iterator[Source[Items]]:
    schema, version = place.schema, place.dialect.version
    tuples = isinstance(schema.get("items"), list)
    if "unevaluatedItems" in schema and not is_root:
        yield TRUE, (None, FALSE)
    if "items" in schema and (not tuples or "additionalItems" in schema):
        yield TRUE, (None, FALSE)
    elif tuples or (version >= 2020 and "prefixItems" in schema):
        yield TRUE, (len(schema["items"] if tuples else schema["prefixItems"]), FALSE)
    if "contains" in schema:
        matching = compiler.node(compiler.document.inside(place, schema["contains"], "contains"))
        yield (TRUE if version >= 2020 else _CONTAINS_EVALUATES), (0, matching)
