"""Finding an array that satisfies demands on its items, its length and its repetitions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

from .nodes import Node, constant, negate
from .outcomes import IMPOSSIBLE, UNKNOWN, ProofOutcome, best, found

if TYPE_CHECKING:
    from .solver import Solver

MAX_ITEMS = 300

Goals = list[frozenset[Node]]


@dataclass
class ArrayDemands:
    """What the atoms ask for together. Positions from `prefix` on are alike."""

    shortest: int = 0
    longest: int | None = None
    prefix: int = 0
    at: dict[int, set[Node]] = field(default_factory=dict)
    rest: list[tuple[int, Node]] = field(default_factory=list)
    wanted: list[tuple[int, Node]] = field(default_factory=list)  # some item from here on
    counted: list[tuple[Node, int]] = field(default_factory=list)  # so many items at least
    rationed: list[tuple[Node, int]] = field(default_factory=list)  # so many items at most
    unique: bool = False
    repeated: bool = False
    is_shortened: bool = False

    def add(self, kind: str, args: tuple[Any, ...]) -> None:
        match kind:
            case "min_items":
                self.shortest = max(self.shortest, args[0])
            case "max_items":
                self._not_longer(args[0])
            case "item_at":
                self.at.setdefault(args[0], set()).add(args[1])
                self.prefix = max(self.prefix, args[0] + 1)
            case "some_at":
                self.add("item_at", args)
                self.shortest = max(self.shortest, args[0] + 1)
            case "items_from":
                self.rest.append((args[0], args[1]))
                self.prefix = max(self.prefix, args[0])
            case "some_from":
                self.wanted.append((args[0], args[1]))
                self.prefix = max(self.prefix, args[0])
                self.shortest = max(self.shortest, args[0] + 1)
            case "at_least":
                self.counted.append((args[0], args[1]))
                self.shortest = max(self.shortest, args[1])
            case "at_most":
                self.rationed.append((args[0], args[1]))
            case "unique":
                self.unique = True
            case "not_unique":
                self.repeated = True
                self.shortest = max(self.shortest, 2)

    def _not_longer(self, length: int) -> None:
        self.longest = length if self.longest is None else min(self.longest, length)

    def base(self, index: int) -> frozenset[Node]:
        return frozenset(self.at.get(index, ())) | {node for start, node in self.rest if start <= index}

    def end_where_nothing_fits(self, solver: "Solver") -> None:
        """An array stops before the first position that no value can take."""
        for index in range(min(self.prefix, MAX_ITEMS) + 1):
            if self.longest is not None and index >= self.longest:
                return
            if solver.solve(self.base(index)).impossible:
                self._not_longer(index)
                return

    @property
    def extra(self) -> int:
        """How many items past the prefix are asked for."""
        return len(self.wanted) + sum(number for _, number in self.counted) + 2 * self.repeated

    def shorten(self) -> None:
        """A long array stands or falls with a short one, unless its items have to differ.

        The short one has one item more than are asked for or rationed. That one can be repeated to make it
        long, and of a long one such items can be taken out. So only a proof that there is no short one, or
        that there may be a long one, comes of it, not a long one to show.
        """
        enough = self.prefix + self.extra + sum(number for _, number in self.rationed) + 1
        if self.shortest > MAX_ITEMS >= enough:
            self.shortest = self.longest = enough
            self.unique, self.is_shortened = False, True

    def each_fits(self, solver: "Solver") -> bool:
        """Whether every item that is asked for is possible at some position, taken by itself."""
        asked = [*self.wanted, *((0, node) for node, _ in self.counted)]
        return all(
            any(not solver.solve(self.base(index) | {node}).impossible for index in range(start, self.prefix + 1))
            for start, node in asked
        )


def find_array(atoms: Iterable[Node], solver: "Solver") -> ProofOutcome:
    """An array for all atoms.

    A shortest one has at most one item for each demand beyond the prefix and the minimum: items past the
    prefix that nothing asks for can be taken out. So few lengths need a look; when none works none exists.
    """
    demands = ArrayDemands()
    for atom in atoms:
        demands.add(atom.kind, atom.args)
    demands.end_where_nothing_fits(solver)
    if demands.longest is not None and demands.shortest > demands.longest:
        return IMPOSSIBLE
    demands.shorten()
    extra = demands.extra
    bound = max(demands.shortest, demands.prefix) + extra
    if demands.longest is not None:
        bound = min(bound, demands.longest)
    if bound > MAX_ITEMS:
        return UNKNOWN if demands.each_fits(solver) else IMPOSSIBLE
    outcome = IMPOSSIBLE
    for length in range(demands.shortest, bound + 1):
        for goals in _rationed(demands, length, solver):
            outcome = best(outcome, _place(demands, goals, solver))
            if outcome.found:
                return UNKNOWN if demands.is_shortened else outcome
    return outcome


def _choices(positions: list[int], goals: Goals, prefix: int, number: int) -> Iterator[list[int]]:
    """All ways to pick so many positions; past the prefix, positions with equal goals are alike."""
    groups: dict[object, list[int]] = {}
    for index in positions:
        groups.setdefault(goals[index] if index >= prefix else index, []).append(index)
    yield from _spread(list(groups.values()), number)


def _spread(groups: list[list[int]], number: int) -> Iterator[list[int]]:
    if number == 0:
        yield []
    elif sum(map(len, groups)) >= number:
        for count in range(min(len(groups[0]), number), -1, -1):
            for others in _spread(groups[1:], number - count):
                yield groups[0][:count] + others


def _rationed(demands: ArrayDemands, length: int, solver: "Solver") -> list[Goals]:
    """The goals of all positions, for each choice of the positions that may use up what is rationed."""
    choices: list[Goals] = [[demands.base(index) for index in range(length)]]
    for node, most in demands.rationed:
        refused = negate(node)
        following = []
        for goals in choices:
            takers = [index for index, goal in enumerate(goals) if refused not in goal]
            for free in _choices(takers, goals, demands.prefix, min(most, len(takers))):
                solver.spend(length)
                following.append([goal if index in free else goal | {refused} for index, goal in enumerate(goals)])
        choices = following
    return choices


def _place(demands: ArrayDemands, goals: Goals, solver: "Solver") -> ProofOutcome:
    """Give every wanted item a position, then fill all positions."""
    if any(solver.solve(goal).impossible for goal in set(goals)):
        return IMPOSSIBLE
    wanted = [(start, node, 1) for start, node in demands.wanted]
    wanted += [(0, node, number) for node, number in demands.counted]
    outcome = IMPOSSIBLE
    for placed in _placements(goals, wanted, demands.prefix, solver):
        for merged in _repetitions(demands, placed):
            outcome = best(outcome, _fill(demands, merged, solver))
            if outcome.found:
                return outcome
    return outcome


def _placements(goals: Goals, wanted: list[tuple[int, Node, int]], prefix: int, solver: "Solver") -> Iterator[Goals]:
    if not wanted:
        yield goals
        return
    start, node, number = wanted[0]
    useful = [index for index in range(start, len(goals)) if not solver.solve(goals[index] | {node}).impossible]
    for chosen in _choices(useful, goals, prefix, number):
        solver.spend(len(goals))
        placed = [goal | {node} if index in chosen else goal for index, goal in enumerate(goals)]
        yield from _placements(placed, wanted[1:], prefix, solver)


def _repetitions(demands: ArrayDemands, goals: Goals) -> Iterator[Goals]:
    """When a repetition is asked for, two positions share their demands and so their value."""
    if not demands.repeated:
        yield goals
        return
    for one, two in combinations(range(len(goals)), 2):
        shared = list(goals)
        shared[one] = shared[two] = goals[one] | goals[two]
        yield shared


def _fill(demands: ArrayDemands, goals: Goals, solver: "Solver") -> ProofOutcome:
    values: list[Any] = []
    for index, goal in enumerate(goals):
        outcome = solver.solve(goal)
        if outcome.found and demands.unique and any(_same(outcome.value, value) for value in values):
            taken = [constant(value) for value in values]
            outcome = solver.solve(goal | frozenset(map(negate, taken)))
            if outcome.impossible and not _is_crowded(goals[:index], goal, taken, solver):
                return UNKNOWN  # another choice for an earlier position might have left one for this
        if not outcome.found:
            return outcome
        values.append(outcome.value)
    return found(values)


def _is_crowded(earlier: Goals, goal: frozenset[Node], taken: list[Node], solver: "Solver") -> bool:
    """No other choice helps: all positions so far are alike, or those in the way have one value each."""
    if all(other == goal for other in earlier):
        return True
    return all(
        solver.solve(goal | {value}).impossible or solver.solve(other | {negate(value)}).impossible
        for other, value in zip(earlier, taken, strict=True)
    )


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_same, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_same(one[name], two[name]) for name in one)
    return isinstance(one, bool) == isinstance(two, bool) and bool(one == two)
