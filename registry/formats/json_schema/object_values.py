"""Finding an object that satisfies demands on its properties, their names and their number."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .nodes import STRING, TRUE, Node, negate, negate_names, types
from .outcomes import IMPOSSIBLE, UNKNOWN, ProofOutcome, best, found
from .string_values import string_satisfies

if TYPE_CHECKING:
    from .solver import Solver

MAX_PROPERTIES = 100
_IS_STRING = types(STRING)

Chosen = dict[str, frozenset[Node]]


class CannotTell(Exception):
    """Whether a name belongs to a set of names is not known (an irregular pattern)."""


@dataclass
class ObjectDemands:
    """What the atoms ask for together, with all sets of names made special to strings."""

    fewest: int = 0
    most: int | None = None
    some: list[tuple[Node, Node]] = field(default_factory=list)
    by_name: dict[str, set[Node]] = field(default_factory=dict)  # rules for single names, the usual case
    broad: list[tuple[Node, Node]] = field(default_factory=list)  # rules for all other sets of names
    mentioned: set[str] = field(default_factory=set)


def _collect(atoms: Iterable[Node], solver: "Solver") -> ObjectDemands:
    demands = ObjectDemands()
    for atom in atoms:
        match atom.kind:
            case "min_properties":
                demands.fewest = max(demands.fewest, atom.args[0])
            case "max_properties":
                demands.most = atom.args[0] if demands.most is None else min(demands.most, atom.args[0])
            case "every_key" | "some_key":
                names = solver.special(atom.args[0], STRING)
                mention(names, demands.mentioned)
                if atom.kind == "some_key":
                    demands.some.append((names, atom.args[1]))
                elif names.kind == "string_in":
                    for name in names.args[0]:
                        demands.by_name.setdefault(name, set()).add(atom.args[1])
                else:
                    demands.broad.append((names, atom.args[1]))
    return demands


def mention(names: Node, mentioned: set[str]) -> None:
    """Collect the names that a set of names singles out."""
    if names.kind in ("string_in", "string_not_in"):
        mentioned.update(names.args[0])
    elif names.kind in ("and", "or"):
        for part in names.args[0]:
            mention(part, mentioned)


class _Builder:
    def __init__(self, demands: ObjectDemands, solver: "Solver") -> None:
        self.demands = demands
        self.solver = solver
        self.rules: dict[str, frozenset[Node]] = {}
        self.told_apart = list(demands.broad)  # what makes one name differ from another
        if demands.most is not None and demands.most < len(demands.some):
            self.told_apart += [(names, TRUE) for names, _ in demands.some]  # one property may have to serve two

    def holds(self, names: Node, name: str) -> bool:
        answer = string_satisfies(names, name)
        if answer is None:
            raise CannotTell
        return answer

    def rules_for(self, name: str) -> frozenset[Node]:
        """All that the value of this property must satisfy, if it is present."""
        if name not in self.rules:
            self.solver.spend()
            rules = set(self.demands.by_name.get(name, ()))
            rules.update(schema for names, schema in self.demands.broad if self.holds(names, name))
            self.rules[name] = frozenset(rules)
        return self.rules[name]

    def required(self) -> Chosen | None:
        """The properties that are wanted by name; None when one of them cannot have a value."""
        chosen: Chosen = {}
        for names, schema in self.demands.some:
            if names.kind == "string_in" and len(names.args[0]) == 1:
                (name,) = names.args[0]
                chosen[name] = chosen.get(name, self.rules_for(name)) | {schema}
        for goal in set(chosen.values()):
            if self.solver.solve(goal).impossible:
                return None
        return chosen

    def wanted(self) -> list[tuple[Node, Node]]:
        """The properties that are wanted under some name of a set."""
        return [
            (names, schema)
            for names, schema in self.demands.some
            if not (names.kind == "string_in" and len(names.args[0]) == 1)
        ]

    def options(self, names: Node, schema: Node, chosen: Chosen) -> Iterator[tuple[str, frozenset[Node]]]:
        """Return all ways to have a property of these names with this value, one for each kind of name."""
        for name in chosen:
            if self.holds(names, name):
                yield name, chosen[name] | {schema}
        for name in sorted(self.demands.mentioned - chosen.keys()):
            if self.holds(names, name):
                yield name, self.rules_for(name) | {schema}
        yield from self.fresh(names, schema, chosen.keys() | self.demands.mentioned)

    def fresh(self, names: Node, schema: Node, taken: Iterable[str]) -> Iterator[tuple[str, frozenset[Node]]]:
        """Names that no rule singles out: one for each way of being told apart that has any."""
        yield from self._cells(frozenset((_IS_STRING, names, negate_names(taken))), frozenset((schema,)), 0)

    def _cells(
        self, name_goal: frozenset[Node], value_goal: frozenset[Node], at: int
    ) -> Iterator[tuple[str, frozenset[Node]]]:
        outcome = self.solver.solve(name_goal)
        if outcome.impossible:
            return
        if at == len(self.told_apart):
            if not outcome.found:
                raise CannotTell
            yield outcome.value, value_goal
            return
        names, schema = self.told_apart[at]
        yield from self._cells(name_goal | {negate(names)}, value_goal, at + 1)
        yield from self._cells(name_goal | {names}, value_goal | {schema}, at + 1)

    def place(self, wanted: list[tuple[Node, Node]], chosen: Chosen) -> ProofOutcome:
        """Give every wanted property a name, then fill up to the least number of properties."""
        if self.demands.most is not None and len(chosen) > self.demands.most:
            return IMPOSSIBLE
        if not wanted:
            return self.fill(chosen)
        outcome = IMPOSSIBLE
        for name, goal in self.options(*wanted[0], chosen):
            if self.solver.solve(goal).impossible:
                continue
            outcome = best(outcome, self.place(wanted[1:], {**chosen, name: goal}))
            if outcome.found:
                break
        return outcome

    def fill(self, chosen: Chosen) -> ProofOutcome:
        """Any property that can exist may be added, so running out of them is a proof."""
        chosen = dict(chosen)
        spare = iter(sorted(self.demands.mentioned - chosen.keys()))
        while len(chosen) < min(self.demands.fewest, MAX_PROPERTIES):
            added = next(self._possible(spare), None) or next(self._possible_fresh(chosen), None)
            if added is None:
                return IMPOSSIBLE
            chosen[added[0]] = added[1]
        if len(chosen) < self.demands.fewest:
            return UNKNOWN
        values: dict[str, Any] = {}
        for name, goal in chosen.items():
            outcome = self.solver.solve(goal)
            if not outcome.found:
                return outcome
            values[name] = outcome.value
        return found(values)

    def _possible(self, names: Iterator[str]) -> Iterator[tuple[str, frozenset[Node]]]:
        for name in names:
            if not self.solver.solve(self.rules_for(name)).impossible:
                yield name, self.rules_for(name)

    def _possible_fresh(self, chosen: Chosen) -> Iterator[tuple[str, frozenset[Node]]]:
        for name, goal in self.fresh(TRUE, TRUE, chosen.keys() | self.demands.mentioned):
            if not self.solver.solve(goal).impossible:
                yield name, goal


def find_object(atoms: Iterable[Node], solver: "Solver") -> ProofOutcome:
    """An object for all atoms."""
    demands = _collect(atoms, solver)
    if demands.most is not None and demands.fewest > demands.most:
        return IMPOSSIBLE
    builder = _Builder(demands, solver)
    try:
        chosen = builder.required()
        return IMPOSSIBLE if chosen is None else builder.place(builder.wanted(), chosen)
    except CannotTell:
        return UNKNOWN
