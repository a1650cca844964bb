"""Avro schema resolution: can a reader's type take all that a writer's type writes, and if not, why?

A pair of types is readable unless proven otherwise, and the proof is a greatest fixpoint: pairs found
unreadable spread to the pairs that rest on them until nothing changes. So recursive types end, nothing
recurses, and no answer rests on an assumption that was later withdrawn.
"""

from collections import defaultdict

import msgspec

from registry.formats.differences import BudgetExceeded, Difference

MAX_STEPS = 500_000

# What a reader of the key takes from a writer of the values, besides its own type.
PROMOTIONS = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}


class ResolvedField(msgspec.Struct):
    name: str
    type: int
    aliases: list[str]
    has_default: bool


class ResolvedNode(msgspec.Struct):
    """One type. `children` are indexes of an array's items, a map's values or a union's branches."""

    kind: str
    name: str = ""
    aliases: list[str] = []
    fields: list[ResolvedField] = []
    children: list[int] = []
    symbols: list[str] = []
    default: str | None = None
    size: int = 0
    decimal: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


Pair = tuple[int, int]


class Edge(msgspec.Struct, frozen=True):
    """A pair that another pair depends on. `step` leads from the reader's path to it."""

    pair: Pair
    step: str


class Resolution:
    """Reader nodes against writer nodes; a pair is (reader index, writer index)."""

    def __init__(self, readers: list[ResolvedNode], writers: list[ResolvedNode]) -> None:
        self.readers = readers
        self.writers = writers
        self.steps = 0
        self.edges: dict[Pair, list[Edge]] = {}
        self.faults: dict[Pair, list[Difference]] = {}
        self.unreadable: set[Pair] = set()

    def differences(self, reader: int, writer: int) -> list[Difference]:
        root = (reader, writer)
        self._explore(root)
        self._settle()
        return self._explain(root)

    def _explore(self, root: Pair) -> None:
        queue = [root]
        self.edges[root] = []
        while queue:
            pair = queue.pop()
            self.faults[pair] = []
            edges = self.edges[pair] = self._local(pair)
            self.steps += 1 + len(edges)
            if self.steps > MAX_STEPS:
                raise BudgetExceeded("comparison steps", MAX_STEPS)
            for edge in edges:
                if edge.pair not in self.edges:
                    self.edges[edge.pair] = []
                    queue.append(edge.pair)

    def _is_choice(self, pair: Pair) -> bool:
        """A reader's union takes a plain writer when any one of its branches does."""
        return self.readers[pair[0]].kind == "union" and self.writers[pair[1]].kind != "union"

    def _settle(self) -> None:
        resting: defaultdict[Pair, list[Pair]] = defaultdict(list)
        for pair, edges in self.edges.items():
            for edge in edges:
                resting[edge.pair].append(pair)
        queue = [
            pair for pair, edges in self.edges.items() if self.faults[pair] or (self._is_choice(pair) and not edges)
        ]
        self.unreadable.update(queue)
        while queue:
            for pair in resting[queue.pop()]:
                if pair in self.unreadable:
                    continue
                if self._is_choice(pair) and any(e.pair not in self.unreadable for e in self.edges[pair]):
                    continue
                self.unreadable.add(pair)
                queue.append(pair)

    def _explain(self, root: Pair) -> list[Difference]:
        """The faults under the root, each with the path on which it was met first."""
        found: list[Difference] = []
        queue, seen = [(root, "")], {root}
        while queue:
            pair, path = queue.pop()
            if pair not in self.unreadable:
                continue
            found += [Difference(fault.kind, path + fault.path, fault.message) for fault in self.faults[pair]]
            edges = self.edges[pair]
            if self._is_choice(pair) and len(edges) != 1:
                writer = self.writers[pair[1]]
                message = f"No branch of the new union reads {writer.label}, which the old schema writes."
                found.append(Difference("MISSING_UNION_BRANCH", path, message))
                continue
            for edge in reversed(edges):
                if edge.pair not in seen:
                    seen.add(edge.pair)
                    queue.append((edge.pair, path + edge.step))
        return found

    def _local(self, pair: Pair) -> list[Edge]:
        """Note the faults of this pair alone and return the pairs that it rests on."""
        reader, writer = self.readers[pair[0]], self.writers[pair[1]]
        if writer.kind == "union":
            return [Edge((pair[0], branch), "") for branch in writer.children]
        if reader.kind == "union":
            self.steps += len(reader.children)
            return [
                Edge((branch, pair[1]), f"/{index}")
                for index, branch in enumerate(reader.children)
                if _may_read(self.readers[branch], writer)
            ]
        if reader.kind != writer.kind:
            if writer.kind not in PROMOTIONS.get(reader.kind, ()):
                message = f"The new schema has {reader.label} where the old schema writes {writer.label}."
                self._fault(pair, "TYPE_MISMATCH", "", message)
            return []
        if reader.name and not _same_name(reader, writer):
            message = f"The new schema expects {reader.label}, which is neither named nor aliased {writer.name}."
            self._fault(pair, "NAME_MISMATCH", "/name", message)
            return []
        self._same_kind(pair, reader, writer)
        if reader.kind == "record":
            return self._fields(pair, reader, writer)
        step = {"array": "/items", "map": "/values"}.get(reader.kind, "")
        return [Edge((r, w), step) for r, w in zip(reader.children, writer.children, strict=True)]

    def _fault(self, pair: Pair, kind: str, path: str, message: str) -> None:
        self.faults[pair].append(Difference(kind, path, message))

    def _same_kind(self, pair: Pair, reader: ResolvedNode, writer: ResolvedNode) -> None:
        if reader.size != writer.size:
            message = f"{reader.name} has {reader.size} bytes and the old schema writes {writer.size}."
            self._fault(pair, "FIXED_SIZE_MISMATCH", "/size", message)
        known = set(reader.symbols)
        missing = [symbol for symbol in writer.symbols if symbol not in known]
        if missing and reader.default is None:
            message = f"{reader.label} has no default and lacks the symbols {', '.join(missing)}."
            self._fault(pair, "MISSING_ENUM_SYMBOLS", "/symbols", message)
        if reader.decimal and writer.decimal:
            (precision, scale), (old_precision, old_scale) = reader.decimal, writer.decimal
            if scale != old_scale or precision < old_precision:
                written = f"decimal({old_precision}, {old_scale})"
                message = f"decimal({precision}, {scale}) would misread values written as {written}."
                self._fault(pair, "DECIMAL_MISMATCH", "", message)

    def _fields(self, pair: Pair, reader: ResolvedNode, writer: ResolvedNode) -> list[Edge]:
        written = {field.name: field for field in writer.fields}
        edges = []
        for index, field in enumerate(reader.fields):
            source = next((written[name] for name in (field.name, *field.aliases) if name in written), None)
            if source is not None:
                edges.append(Edge((field.type, source.type), f"/fields/{index}/type"))
            elif not field.has_default:
                message = f'The field "{field.name}" of {reader.name} is new and has no default.'
                self._fault(pair, "READER_FIELD_MISSING_DEFAULT_VALUE", f"/fields/{index}", message)
        return edges


def _same_name(reader: ResolvedNode, writer: ResolvedNode) -> bool:
    """Unqualified names decide; an alias stands for a full name."""
    return reader.name.rpartition(".")[2] == writer.name.rpartition(".")[2] or writer.name in reader.aliases


def _may_read(reader: ResolvedNode, writer: ResolvedNode) -> bool:
    """Whether the branch is worth following; the others differ already at the top."""
    if reader.kind != writer.kind:
        return writer.kind in PROMOTIONS.get(reader.kind, ())
    return not reader.name or _same_name(reader, writer)
