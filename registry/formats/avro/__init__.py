"""Avro: parse, canonical form and reader/writer resolution, from the specification (1.12).

Rule 1: names are resolved while parsing; a parsed schema is a table of nodes that refer to each other by
        index, so recursive types are ordinary.
Rule 2: the canonical form keeps all that changes meaning or is meant for people (defaults, aliases, logical
        types, docs, own properties) and drops what does not (order of keys, namespaces in favour of full
        names, `{"type": "int"}` for `"int"`). Avro's own "parsing canonical form" drops defaults and aliases
        and would give one id to schemas that evolve differently.

`avro.compatibility` gives the same results but loses which message belongs to which path; the tests hold
this module against it. The one deliberate addition is that decimals must agree on their scale.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from registry.formats.avro.resolution import Resolution, ResolvedField, ResolvedNode
from registry.formats.bounded_json import check_nesting, decode
from registry.formats.differences import BudgetExceeded, Difference, MalformedSchema, Parsed

MAX_DEFAULT_NESTING = 32
MAX_TYPE_NESTING = 128  # through references too
MAX_FIXED_SIZE = (1 << 31) - 1
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
ORDERS = ("ascending", "descending", "ignore")
INTEGER_BITS = {"int": 31, "long": 63}


class AvroSchema(Parsed):
    nodes: list[ResolvedNode]
    root: int


def parse(text: str, references: Mapping[str, str]) -> AvroSchema:
    parser = _Parser(references)
    root, shape = parser.type_of(decode(text), "", "")
    canonical = msgspec.json.encode(shape, order="deterministic")
    return AvroSchema("AVRO", canonical.decode(), hashlib.sha256(canonical).hexdigest(), parser.nodes, root)


def normalize(text: str, references: Mapping[str, str]) -> str:
    return parse(text, references).canonical


def compare(old: Parsed, new: Parsed) -> list[Difference]:
    """Return why the new schema cannot read what the old one wrote. Paths are JSON pointers into the new one."""
    if not isinstance(old, AvroSchema) or not isinstance(new, AvroSchema):
        raise TypeError("avro.compare takes two parsed Avro schemas")
    return Resolution(new.nodes, old.nodes).differences(new.root, old.root)


class _Parser:
    """Turns JSON into nodes; `shape` values are the canonical JSON of the same type."""

    def __init__(self, references: Mapping[str, str]) -> None:
        self.nodes: list[ResolvedNode] = []
        self.names: dict[str, int] = {}
        self.plain: dict[str, int] = {}
        self.waiting = dict(references)
        self.depth = 0
        self.fitting: dict[tuple[int, int], bool] = {}

    def type_of(self, value: Any, namespace: str, path: str) -> tuple[int, Any]:
        self.depth += 1
        if self.depth > MAX_TYPE_NESTING:
            raise BudgetExceeded("type nesting", MAX_TYPE_NESTING)
        found = self._type_of(value, namespace, path)
        self.depth -= 1
        return found

    def _type_of(self, value: Any, namespace: str, path: str) -> tuple[int, Any]:
        match value:
            case str():
                return self._named_or_primitive(value, namespace, path)
            case list():
                return self._union(value, namespace, path)
            case {"type": str() as kind}:
                return self._object(value, kind, namespace, path)
            case dict():
                raise MalformedSchema('a type needs the attribute "type" with a string', path)
        raise MalformedSchema(f"a type is a name, an object or a list of types, not {_say(value)}", path)

    def _add(self, node: ResolvedNode) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _named_or_primitive(self, name: str, namespace: str, path: str) -> tuple[int, str]:
        if name in PRIMITIVES:
            if name not in self.plain:
                self.plain[name] = self._add(ResolvedNode(name))
            return self.plain[name], name
        qualified = name if "." in name or not namespace else f"{namespace}.{name}"
        for candidate in (qualified, name):
            self._load(candidate)
            if candidate in self.names:
                return self.names[candidate], candidate
        raise MalformedSchema(f'unknown type "{name}"', path)

    def _load(self, name: str) -> None:
        """Parse references until one defines the name: the one called so first, then the others in order."""
        while name not in self.names and self.waiting:
            key = name if name in self.waiting else next(iter(self.waiting))
            text = self.waiting.pop(key)
            try:
                self.type_of(decode(text), "", "")
            except MalformedSchema as error:
                raise MalformedSchema(f'in reference "{key}": {error}') from None

    def _union(self, branches: list[Any], namespace: str, path: str) -> tuple[int, list[Any]]:
        parsed = []
        for index, branch in enumerate(branches):
            if isinstance(branch, list):
                raise MalformedSchema("a union may not directly contain a union", f"{path}/{index}")
            parsed.append(self.type_of(branch, namespace, f"{path}/{index}"))
        seen: set[str] = set()
        for index, (child, _) in enumerate(parsed):
            key = self.nodes[child].name or self.nodes[child].kind
            if key in seen:
                raise MalformedSchema(f'a union may contain "{key}" only once', f"{path}/{index}")
            seen.add(key)
        node = ResolvedNode("union", children=[child for child, _ in parsed])
        return self._add(node), [shape for _, shape in parsed]

    def _object(self, value: dict[str, Any], kind: str, namespace: str, path: str) -> tuple[int, Any]:
        if kind in PRIMITIVES:
            if len(value) == 1:
                return self._named_or_primitive(kind, namespace, path)
            return self._add(ResolvedNode(kind, decimal=_decimal(value, kind))), dict(value)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            if part not in value:
                raise MalformedSchema(f'{kind} needs the attribute "{part}"', path)
            child, shape = self.type_of(value[part], namespace, f"{path}/{part}")
            return self._add(ResolvedNode(kind, children=[child])), {**value, part: shape}
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(value, kind, namespace, path)
        return self._named_or_primitive(kind, namespace, path)

    def _definition(self, value: dict[str, Any], kind: str, namespace: str, path: str) -> tuple[int, Any]:
        full, inner = _full_name(value, namespace, path)
        if full in self.names:
            raise MalformedSchema(f'"{full}" is defined twice', path)
        node = ResolvedNode("record" if kind == "error" else kind, full)
        node.aliases = [
            alias if "." in alias or not inner else f"{inner}.{alias}" for alias in _names(value, "aliases", path)
        ]
        shape = {key: item for key, item in value.items() if key != "namespace"} | {"name": full}
        if "." not in full and namespace:
            shape["namespace"] = ""
        if node.aliases:
            shape["aliases"] = node.aliases
        index = self.names[full] = self._add(node)
        if node.kind == "record":
            shape["fields"] = self._fields(node, value.get("fields"), inner, path)
        elif kind == "enum":
            _enum(node, value, path)
        else:
            size = value.get("size")
            if type(size) is not int or not 0 <= size <= MAX_FIXED_SIZE:
                raise MalformedSchema('fixed needs a "size" of zero or more, in 32 bits', f"{path}/size")
            node.size = size
            node.decimal = _decimal(value, kind)
        return index, shape

    def _fields(self, node: ResolvedNode, fields: Any, namespace: str, path: str) -> list[Any]:
        if not isinstance(fields, list):
            raise MalformedSchema(f'record {node.name} needs "fields", a list', path)
        shapes, names = [], set()
        node.fields = []
        for index, field in enumerate(fields):
            here = f"{path}/fields/{index}"
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                raise MalformedSchema('a field is an object with "name" and "type"', here)
            name = field["name"]
            if not NAME.match(name):
                raise MalformedSchema(f'"{name}" is not a name', here)
            if name in names:
                raise MalformedSchema(f'record {node.name} has two fields called "{name}"', here)
            names.add(name)
            if field.get("order", "ascending") not in ORDERS:
                raise MalformedSchema(f'"order" must be one of {", ".join(ORDERS)}', here)
            child, shape = self.type_of(field["type"], namespace, f"{here}/type")
            if "default" in field:
                self._check_default(name, field["default"], child, f"{here}/default")
            node.fields.append(ResolvedField(name, child, _names(field, "aliases", here), "default" in field))
            kept = {key: item for key, item in field.items() if (key, item) != ("order", "ascending")}
            shapes.append(kept | {"type": shape})
        return shapes

    def _check_default(self, name: str, value: Any, index: int, path: str) -> None:
        check_nesting(value, MAX_DEFAULT_NESTING, "default nesting")
        self.fitting.clear()
        if not self._fits(value, index):
            raise MalformedSchema(f'the default of "{name}" is not a value of {self.nodes[index].label}', path)

    def _fits(self, value: Any, index: int) -> bool:
        """Whether the JSON value is a default of this type; a union takes a value of any of its branches.

        Each (value, type) is tried once, or nested unions of records would multiply the work at every level.
        """
        key = (id(value), index)
        if key not in self.fitting:
            self.fitting[key] = self._matches(value, self.nodes[index])
        return self.fitting[key]

    def _matches(self, value: Any, node: ResolvedNode) -> bool:
        match node.kind:
            case "null":
                return value is None
            case "boolean":
                return isinstance(value, bool)
            case "int" | "long":
                bits = INTEGER_BITS[node.kind]
                return type(value) is int and -(1 << bits) <= value < 1 << bits
            case "float" | "double":
                return type(value) in (int, float)
            case "string":
                return isinstance(value, str)
            case "bytes":
                return isinstance(value, str) and all(ord(char) < 256 for char in value)
            case "fixed":
                return isinstance(value, str) and len(value) == node.size and all(ord(c) < 256 for c in value)
            case "enum":
                return isinstance(value, str) and value in node.symbols
            case "array":
                return isinstance(value, list) and all(self._fits(item, node.children[0]) for item in value)
            case "map":
                return isinstance(value, dict) and all(self._fits(i, node.children[0]) for i in value.values())
            case "union":
                return any(self._fits(value, child) for child in node.children)
        return isinstance(value, dict) and all(
            self._fits(value[field.name], field.type) if field.name in value else field.has_default
            for field in node.fields
        )


def _say(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _full_name(value: dict[str, Any], namespace: str, path: str) -> tuple[str, str]:
    """The full name of a definition and the namespace that holds inside it."""
    name, own = value.get("name"), value.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(own, str):
        raise MalformedSchema('a named type needs "name", and "namespace" must be a string', path)
    full = name if "." in name or not own else f"{own}.{name}"
    if not all(NAME.match(part) for part in full.split(".")):
        raise MalformedSchema(f'"{full}" is not a name', path)
    if full in PRIMITIVES:
        raise MalformedSchema(f'"{full}" is the name of a primitive type', path)
    return full, full.rpartition(".")[0]


def _names(value: dict[str, Any], key: str, path: str) -> list[str]:
    names = value.get(key, [])
    if not isinstance(names, list) or not all(
        isinstance(name, str) and all(NAME.match(part) for part in name.split(".")) for name in names
    ):
        raise MalformedSchema(f'"{key}" must be a list of names', f"{path}/{key}")
    return names


def _enum(node: ResolvedNode, value: dict[str, Any], path: str) -> None:
    symbols = _names(value, "symbols", path)
    if "symbols" not in value or any("." in symbol for symbol in symbols):
        raise MalformedSchema('enum needs "symbols", a list of names', path)
    if len(set(symbols)) != len(symbols):
        raise MalformedSchema(f"enum {node.name} has a symbol twice", f"{path}/symbols")
    node.symbols = symbols
    if "default" in value:
        if value["default"] not in symbols:
            raise MalformedSchema(f"the default of enum {node.name} is not one of its symbols", f"{path}/default")
        node.default = value["default"]


def _decimal(value: dict[str, Any], kind: str) -> tuple[int, int] | None:
    """(precision, scale); a decimal that breaks the rules is ignored, as the specification demands."""
    precision, scale = value.get("precision"), value.get("scale", 0)
    if value.get("logicalType") != "decimal" or kind not in ("bytes", "fixed"):
        return None
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
        return None
    return precision, scale
