"""The logic that schemas compile to: a few atoms under and, or, not.

Rule 1: nodes are interned, so equal formulas are one object and comparing them is `is`.
Rule 2: every atom is about one JSON type and holds for values of all other types, as JSON Schema keywords do.
Rule 3: negation is pushed inwards when it is made, so a formula holds no `not`; every atom has an opposite.

Property names are strings, so sets of names are formulas too: `every_key(names, schema)` says that the value
of each property whose name satisfies `names` satisfies `schema`.
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any
from weakref import WeakValueDictionary
from zlib import crc32

NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT = (1 << bit for bit in range(6))
ANY_TYPE = 63
_RANK_BITS = (1 << 60) - 1
TYPE_NAMES = {
    "null": NULL,
    "boolean": BOOLEAN,
    "number": NUMBER,
    "string": STRING,
    "array": ARRAY,
    "object": OBJECT,
}


class Node:
    """A formula. `args` holds numbers as Fraction, sets as frozenset, and other nodes."""

    __slots__ = ("__weakref__", "args", "inverse", "kind", "negation", "rank", "special")

    def __init__(self, kind: str, args: tuple[Any, ...]) -> None:
        self.kind = kind
        self.args = args
        self.rank = _rank((kind, *args))
        self.negation: Node | None = None
        self.inverse: Node | None = None
        self.special: dict[int, Node] = {}

    def __repr__(self) -> str:
        return f"{self.kind}{self.args!r}"

    def __hash__(self) -> int:
        """The same in every process, so that sets are walked in the same order and answers do not vary."""
        return self.rank


def _rank(value: Any) -> int:
    match value:
        case None:
            return 0
        case Node():
            return value.rank
        case str():
            return crc32(value.encode())
        case frozenset():
            return sum(map(_rank, value)) & _RANK_BITS
        case tuple():
            rank = len(value)
            for item in value:
                rank = (rank * 1_000_003 ^ _rank(item)) & _RANK_BITS
            return rank
        case Definition():
            return crc32(value.name.encode())
        case _:
            return hash(value) & _RANK_BITS


class Definition:
    """A schema that refers to itself; `node` is set once it is compiled."""

    __slots__ = ("name", "node")

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: Node = TRUE

    def __repr__(self) -> str:
        return self.name


_interned: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()


def make(kind: str, *args: Any) -> Node:
    """The one node of this kind and arguments; callers use the named constructors below."""
    key = (kind, *args)
    node = _interned.get(key)
    if node is None:
        node = _interned[key] = Node(kind, args)
    return node


TRUE = make("true")
FALSE = make("false")
TRUE.negation, FALSE.negation = FALSE, TRUE

ATOM_TYPE = {
    "minimum": NUMBER,
    "maximum": NUMBER,
    "multiple": NUMBER,
    "not_multiple": NUMBER,
    "written_as_integer": NUMBER,
    "not_written_as_integer": NUMBER,
    "number_in": NUMBER,
    "number_not_in": NUMBER,
    "boolean_in": BOOLEAN,
    "min_length": STRING,
    "max_length": STRING,
    "pattern": STRING,
    "not_pattern": STRING,
    "format": STRING,
    "not_format": STRING,
    "string_in": STRING,
    "string_not_in": STRING,
    "min_items": ARRAY,
    "max_items": ARRAY,
    "item_at": ARRAY,
    "some_at": ARRAY,
    "items_from": ARRAY,
    "some_from": ARRAY,
    "at_least": ARRAY,
    "at_most": ARRAY,
    "unique": ARRAY,
    "not_unique": ARRAY,
    "every_key": OBJECT,
    "some_key": OBJECT,
    "min_properties": OBJECT,
    "max_properties": OBJECT,
    "opaque": ANY_TYPE,
    "not_opaque": ANY_TYPE,
}
_SAME_ARGS = {
    "multiple": "not_multiple",
    "written_as_integer": "not_written_as_integer",
    "number_in": "number_not_in",
    "pattern": "not_pattern",
    "format": "not_format",
    "string_in": "string_not_in",
    "unique": "not_unique",
    "opaque": "not_opaque",
}
_SAME_ARGS |= {opposite: kind for kind, opposite in _SAME_ARGS.items()}
_LAST_NEGATED = {"item_at": "some_at", "items_from": "some_from", "every_key": "some_key"}
_LAST_NEGATED |= {opposite: kind for kind, opposite in _LAST_NEGATED.items()}


def types(mask: int) -> Node:
    """The value has one of the types in the mask."""
    return TRUE if mask == ANY_TYPE else FALSE if mask == 0 else make("type", mask)


def opposite(atom: Node) -> Node:
    """What holds, among values of the atom's type, exactly where the atom does not."""
    if atom.inverse is None:
        atom.inverse = _opposite(atom)
    return atom.inverse


def _opposite(atom: Node) -> Node:
    kind, args = atom.kind, atom.args
    if kind in _SAME_ARGS:
        return make(_SAME_ARGS[kind], *args)
    if kind in _LAST_NEGATED:
        return make(_LAST_NEGATED[kind], args[0], negate(args[1]))
    match kind:
        case "minimum":
            return make("maximum", args[0], not args[1])
        case "maximum":
            return make("minimum", args[0], not args[1])
        case "boolean_in":
            return make("boolean_in", frozenset((True, False)) - args[0])
        case "min_length" | "min_items" | "min_properties":
            return make(kind.replace("min", "max"), args[0] - 1)
        case "max_length" | "max_items" | "max_properties":
            return make(kind.replace("max", "min"), args[0] + 1)
        case "at_least":
            return make("at_most", args[0], args[1] - 1)
        case _:
            return make("at_least", args[0], args[1] + 1)


def negate(node: Node) -> Node:
    """Holds exactly where the node does not."""
    if node.negation is None:
        match node.kind:
            case "and":
                result = any_of(map(negate, node.args[0]))
            case "or":
                result = all_of(map(negate, node.args[0]))
            case "type":
                result = types(ANY_TYPE & ~node.args[0])
            case "ref":
                result = make("not_ref", *node.args)
            case "not_ref":
                result = make("ref", *node.args)
            case "exactly_one":
                result = make("not_exactly_one", *node.args)
            case "not_exactly_one":
                result = make("exactly_one", *node.args)
            case _:
                result = all_of((types(ATOM_TYPE[node.kind]), opposite(node)))
        node.negation = result
        if result.negation is None:
            result.negation = node
    return node.negation


def all_of(nodes: Iterable[Node]) -> Node:
    """The conjunction, with types merged and atoms about excluded types dropped."""
    parts, mask = _flatten("and", nodes)
    if FALSE in parts or mask == 0:
        return FALSE
    parts = {part for part in parts if ATOM_TYPE.get(part.kind, ANY_TYPE) & mask}
    parts.discard(TRUE)
    if mask != ANY_TYPE:
        parts.add(types(mask))
    return _combined("and", parts, TRUE)


def any_of(nodes: Iterable[Node]) -> Node:
    """The disjunction; an atom holds for all other types already, so those are dropped from beside it."""
    parts, mask = _flatten("or", nodes)
    if TRUE in parts or mask == ANY_TYPE:
        return TRUE
    about = ANY_TYPE
    for part in parts:
        about &= ATOM_TYPE.get(part.kind, ANY_TYPE)
    if about == 0:
        return TRUE
    mask &= about
    if mask == about != ANY_TYPE:
        return TRUE
    parts.discard(FALSE)
    if mask:
        parts.add(types(mask))
    return _combined("or", parts, FALSE)


def _flatten(kind: str, nodes: Iterable[Node]) -> tuple[set[Node], int]:
    parts: set[Node] = set()
    mask = ANY_TYPE if kind == "and" else 0
    for node in nodes:
        for part in node.args[0] if node.kind == kind else (node,):
            if part.kind != "type":
                parts.add(part)
            elif kind == "and":
                mask &= part.args[0]
            else:
                mask |= part.args[0]
    return parts, mask


def _combined(kind: str, parts: set[Node], empty: Node) -> Node:
    if not parts:
        return empty
    if len(parts) == 1:
        return parts.pop()
    return make(kind, frozenset(parts))


def every_key(names: Node, schema: Node) -> Node:
    return TRUE if schema is TRUE or names is FALSE else make("every_key", names, schema)


def has_key(name: str) -> Node:
    """Objects have this property; other types pass."""
    return make("some_key", one_of_strings((name,)), TRUE)


def lacks_key(name: str) -> Node:
    return make("every_key", one_of_strings((name,)), FALSE)


def one_of_strings(values: Iterable[str]) -> Node:
    return make("string_in", frozenset(values))


def items_from(start: int, schema: Node) -> Node:
    return TRUE if schema is TRUE else make("items_from", start, schema)


def item_at(index: int, schema: Node) -> Node:
    return TRUE if schema is TRUE else make("item_at", index, schema)


def exactly_one(nodes: Iterable[Node]) -> Node:
    """Kept whole until it is needed: most branches exclude each other, and then it is a plain `any_of`."""
    branches = tuple(sorted((node for node in nodes if node is not FALSE), key=hash))
    if len(branches) == 1:
        return branches[0]
    return make("exactly_one", branches) if branches else FALSE


def constant(value: Any) -> Node:
    """Equal to this JSON value, spelled out for arrays and objects so that it meets other atoms.

    Numbers arrive as int, Decimal or Fraction: 1, 1.0 and 1e0 are one value, and true is not 1.
    """
    match value:
        case None:
            return types(NULL)
        case bool():
            return all_of((types(BOOLEAN), make("boolean_in", frozenset((value,)))))
        case str():
            return all_of((types(STRING), one_of_strings((value,))))
        case list():
            parts = [item_at(index, constant(item)) for index, item in enumerate(value)]
            size = [make("max_items", len(value)), *([make("min_items", len(value))] if value else [])]
            return all_of((types(ARRAY), *parts, *size))
        case dict():
            parts = [every_key(one_of_strings((name,)), constant(item)) for name, item in value.items()]
            present = [has_key(name) for name in value]
            others = make("every_key", negate_names(value), FALSE)
            return all_of((types(OBJECT), *parts, *present, others))
        case _:
            return all_of((types(NUMBER), make("number_in", frozenset((Fraction(value),)))))


def negate_names(names: Iterable[str]) -> Node:
    """Every string but these, as a formula about names."""
    excluded = frozenset(names)
    return make("string_not_in", excluded) if excluded else TRUE


def enumeration(values: list[Any]) -> Node:
    """Equal to one of these values. Scalars become one set per type, however many there are."""
    mask = 0
    booleans: set[bool] = set()
    strings: set[str] = set()
    numbers: set[Fraction] = set()
    nested: dict[int, list[Node]] = {}
    for value in values:
        match value:
            case None:
                mask |= NULL
            case bool():
                mask |= BOOLEAN
                booleans.add(value)
            case str():
                mask |= STRING
                strings.add(value)
            case list() | dict():
                kind = ARRAY if isinstance(value, list) else OBJECT
                mask |= kind
                nested.setdefault(kind, []).append(constant(value))
            case _:
                mask |= NUMBER
                numbers.add(Fraction(value))
    parts = [types(mask)]
    if len(booleans) == 1:
        parts.append(make("boolean_in", frozenset(booleans)))
    if strings:
        parts.append(one_of_strings(strings))
    if numbers:
        parts.append(make("number_in", frozenset(numbers)))
    parts += [any_of((types(ANY_TYPE & ~kind), *options)) for kind, options in nested.items()]
    return all_of(parts)
