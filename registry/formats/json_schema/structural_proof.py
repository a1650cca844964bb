"""A quick proof of compatibility for schemas that are alike, as two versions mostly are.

Rule 1: what is proved is true; what is not is left to the solver, which is exact but slow where there are
        many alternatives, or many definitions that refer to each other.
Rule 2: a pair of formulas rests on other pairs. All are assumed to hold, and those that do not, given the
        others, are taken out until nothing changes. What is left proves itself: values are finite, and every
        circle of references leads through an inner value.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat
from typing import NamedTuple

from registry.formats.differences import BudgetExceeded

from .nodes import ANY_TYPE, ATOM_TYPE, FALSE, STRING, TRUE, Node, all_of, make, negate, negate_names, types
from .object_values import mention
from .outcomes import UNKNOWN, ProofOutcome
from .solver import Solver
from .string_values import string_satisfies

MAX_STEPS = 100_000
ASKED_STEPS = 5_000  # of the solver's, for one question
MAX_ASKED_STEPS = 100_000
GUESS_STEPS = 20_000
MAX_GUESSES = 4
SHOWN_STEPS = 100_000
SMALL = 60


class Pair(NamedTuple):
    """Every value of the first formula is one of the second."""

    narrow: Node
    wide: Node


class All(NamedTuple):
    claims: list["Claim"]


class Some(NamedTuple):
    claims: list["Claim"]


Claim = bool | Pair | All | Some


class Rules(NamedTuple):
    """Schemas of properties; the broad ones each with its set of names."""

    by_name: dict[str, list[Node]]
    broad: list[tuple[Node, Node]]


def every(claims: Iterable[Claim]) -> Claim:
    left: list[Claim] = []
    for claim in claims:
        if claim is False:
            return False
        if claim is not True:
            left.append(claim)
    return left[0] if len(left) == 1 else All(left) if left else True


def some(claims: Iterable[Claim]) -> Claim:
    left: list[Claim] = []
    for claim in claims:
        if claim is True:
            return True
        if claim is not False:
            left.append(claim)
    return left[0] if len(left) == 1 else Some(left) if left else False


def _pairs(claim: Claim) -> Iterator[Pair]:
    if isinstance(claim, Pair):
        yield claim
    elif isinstance(claim, All | Some):
        for inner in claim.claims:
            yield from _pairs(inner)


class StructuralProof:
    """One attempt. It asks a solver about small formulas without references only."""

    def __init__(self, outer: Solver) -> None:
        self._outer = outer  # is told what came out
        self._solver = Solver()
        self._steps = 0
        self._left = MAX_ASKED_STEPS
        self._rules: dict[Pair, Claim] = {}
        self._resting: defaultdict[Pair, list[Pair]] = defaultdict(list)
        self._refuted: dict[Pair, None] = {}  # each after those that it rests on
        self._masks: dict[Node, int] = {}
        self._flat: dict[Node, Node] = {}
        self._sizes: dict[Node, int] = {}
        self._separate: dict[tuple[Node, Node], bool] = {}
        self._alone: dict[tuple[Node, Node], bool] = {}
        self._key_rules: dict[frozenset[Node], Rules] = {}

    def prove(self, old: Node, new: Node) -> bool:
        """Whether the pair holds. Whatever else came out is settled for the solver too."""
        root = Pair(old, new)
        try:
            self._explore(root)
            self._refute()
        except BudgetExceeded:
            return False
        for pair in self._rules:
            if pair not in self._refuted:
                self._outer.settle(frozenset((pair.narrow, negate(pair.wide))))
        return root not in self._refuted

    def show(self, old: Node, new: Node) -> None:
        """Let the solver find values that refute pairs, from the innermost outwards: each rests on the last."""
        root = Pair(old, new)
        for pair in self._refuted:
            is_question = pair.narrow.kind == pair.wide.kind == "ref"
            if self._outer.steps < SHOWN_STEPS and (is_question or pair == root):
                self._outer.look_for((pair.narrow, negate(pair.wide)))

    def example(self, old: Node, new: Node) -> ProofOutcome:
        """A guess at a value that only the old takes, for when the solver gives up: one alternative of the old
        at a time, against those of the new that it may overlap. Whoever uses it has to verify it."""
        self._steps, self._left = 0, MAX_GUESSES * GUESS_STEPS
        uncovered = (
            (narrow, wide)
            for narrow in self._alternatives(old)
            for wide in self._flattened(new).args[0]
            if self._covered(narrow, wide) is False
        )
        for narrow, wide in islice(uncovered, MAX_GUESSES):
            options = wide.args[0] if wide.kind in ("or", "exactly_one") else (wide,)
            left = [option for option in options if not self._apart(narrow, option)]
            outcome = self._answer((narrow, *map(negate, left)), GUESS_STEPS)
            if outcome.found:
                return outcome
        return UNKNOWN

    def _alternatives(self, node: Node) -> Iterator[Node]:
        parts: frozenset[Node] = self._flattened(node).args[0]
        for part in parts:
            if part.kind in ("or", "exactly_one"):
                for branch in part.args[0]:
                    yield all_of((branch, *(other for other in parts if other is not part)))

    def _spend(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise BudgetExceeded("steps of a quick proof", MAX_STEPS)

    def _explore(self, root: Pair) -> None:
        queue = [root]
        while queue:
            pair = queue.pop()
            if pair not in self._rules:
                claim = self._rules[pair] = self._expanded(_target(pair.narrow), _target(pair.wide))
                for inner in _pairs(claim):
                    self._resting[inner].append(pair)
                    queue.append(inner)

    def _refute(self) -> None:
        queue = [pair for pair, claim in self._rules.items() if claim is False]
        self._refuted = dict.fromkeys(queue)
        for failed in queue:
            for pair in self._resting[failed]:
                if pair not in self._refuted and not self._holds(self._rules[pair]):
                    self._refuted[pair] = None
                    queue.append(pair)

    def _holds(self, claim: Claim) -> bool:
        self._spend()
        match claim:
            case Pair():
                return claim not in self._refuted
            case All(claims):
                return all(map(self._holds, claims))
            case Some(claims):
                return any(map(self._holds, claims))
            case _:
                return claim

    def _covered(self, narrow: Node, wide: Node) -> Claim:
        if narrow is wide or wide is TRUE or narrow is FALSE:
            return True
        if narrow.kind == "ref" or wide.kind == "ref":
            return Pair(narrow, wide)
        return self._expanded(narrow, wide)

    def _expanded(self, narrow: Node, wide: Node) -> Claim:
        self._spend()
        if narrow is wide:
            return True
        if wide.kind == "and":
            return every(self._covered(narrow, part) for part in wide.args[0])
        mask = self._mask(narrow)
        if wide.kind == "type":
            return not mask & ~wide.args[0]
        if not mask & ATOM_TYPE.get(wide.kind, ANY_TYPE):
            return True
        if narrow.kind in ("or", "exactly_one"):
            if wide.kind == narrow.kind == "exactly_one" and not all(map(self._is_alone, wide.args[0], repeat(wide))):
                return self._matched(narrow.args[0], wide.args[0])
            return every(self._covered(part, wide) for part in narrow.args[0])
        parts: frozenset[Node] = self._flattened(narrow).args[0]
        if wide in parts:
            return True
        inner = (self._covered(part, wide) for part in parts if part.kind in ("or", "exactly_one"))
        claim = some(chain((self._by_kind(narrow, parts, wide),), inner))
        return claim is True or self._follows(parts, wide) or claim

    def _by_kind(self, narrow: Node, parts: frozenset[Node], wide: Node) -> Claim:
        alike = [part for part in parts if part.kind == wide.kind]
        match wide.kind:
            case "or":
                return some(self._covered(narrow, part) for part in wide.args[0])
            case "exactly_one":
                return self._one_of(narrow, wide)
            case "not_ref":
                return some(Pair(negate(wide), negate(part)) for part in alike)
            case "every_key":
                return self._keys(self._rules_of(parts), *wide.args)
            case "some_key" | "some_from":
                return some(self._covered(p.args[1], wide.args[1]) for p in alike if p.args[0] == wide.args[0])
            case "item_at":
                return self._item(parts, *wide.args)
            case "items_from":
                start, schema = wide.args
                return some(
                    every(
                        (
                            self._covered(part.args[1], schema),
                            *(self._item(parts, index, schema) for index in range(start, part.args[0])),
                        )
                    )
                    for part in alike
                )
            case _:
                return False

    def _matched(self, narrow: tuple[Node, ...], wide: tuple[Node, ...]) -> Claim:
        """The branches are the same, one by one, so it does not matter whether they overlap."""
        if len(narrow) != len(wide):
            return False
        return every(
            every((self._covered(one, two), self._covered(two, one))) for one, two in zip(narrow, wide, strict=True)
        )

    def _one_of(self, narrow: Node, wide: Node) -> Claim:
        """A branch that excludes all others takes every value."""
        return some(
            self._covered(narrow, branch)
            for branch in wide.args[0]
            if not self._apart(narrow, branch) and self._is_alone(branch, wide)
        )

    def _is_alone(self, branch: Node, wide: Node) -> bool:
        """It stands there once, and no other branch takes any of its values."""
        key = (branch, wide)
        if key not in self._alone:
            others = [other for other in wide.args[0] if other is not branch]
            is_single = len(others) == len(wide.args[0]) - 1
            self._alone[key] = is_single and all(self._apart(branch, other) for other in others)
        return self._alone[key]

    def _item(self, parts: frozenset[Node], index: int, schema: Node) -> Claim:
        return some(
            self._covered(part.args[1], schema)
            for part in parts
            if (part.kind == "item_at" and part.args[0] == index)
            or (part.kind == "items_from" and part.args[0] <= index)
        )

    def _rules_of(self, parts: frozenset[Node]) -> Rules:
        """What the conjunction says of properties, by name and of broader sets of names."""
        if parts not in self._key_rules:
            rules = self._key_rules[parts] = Rules(defaultdict(list), [])
            for part in parts:
                if part.kind == "every_key":
                    names = self._solver.special(part.args[0], STRING)
                    if names.kind == "string_in":
                        for name in names.args[0]:
                            rules.by_name[name].append(part.args[1])
                    else:
                        rules.broad.append((names, part.args[1]))
        return self._key_rules[parts]

    def _keys(self, rules: Rules, names: Node, schema: Node) -> Claim:
        names = self._solver.special(names, STRING)
        if names.kind == "string_in":
            return every(self._key(rules, name, schema) for name in names.args[0])
        return some(self._keys_by(rules, known, inner, names, schema) for known, inner in rules.broad)

    def _keys_by(self, rules: Rules, known: Node, inner: Node, names: Node, schema: Node) -> Claim:
        """One rule of the narrow formula speaks of all these names but some, which are looked at one by one."""
        claim = self._covered(inner, schema)
        if claim is False:
            return False
        listed: set[str] = set()
        mention(known, listed)
        others = sorted(name for name in listed if string_satisfies(names, name) and not string_satisfies(known, name))
        if not self._exclude((types(STRING), names, negate(known), negate_names(others))):
            return False
        return every((claim, *(self._key(rules, name, schema) for name in others)))

    def _key(self, rules: Rules, name: str, schema: Node) -> Claim:
        self._spend()
        broad = (inner for known, inner in rules.broad if string_satisfies(known, name))
        return some(self._covered(inner, schema) for inner in chain(rules.by_name.get(name, ()), broad))

    def _follows(self, parts: frozenset[Node], wide: Node) -> bool:
        """By the small parts alone."""
        return self._is_small(wide) and self._exclude((*filter(self._is_small, parts), negate(wide)))

    def _exclude(self, nodes: Iterable[Node]) -> bool:
        return self._answer(nodes, ASKED_STEPS).impossible

    def _answer(self, nodes: Iterable[Node], steps: int) -> ProofOutcome:
        solver = self._solver
        solver.grant(min(steps, self._left))
        before = solver.steps
        try:
            return solver.solve(nodes)
        except BudgetExceeded:
            self._solver = Solver()  # what the other was at holds on assumptions only
            return UNKNOWN
        finally:
            self._left -= solver.steps - before

    def _apart(self, one: Node, two: Node) -> bool:
        """Surely no value is in both."""
        key = (one, two)
        if key not in self._separate:
            self._spend()
            self._separate[key] = self._separate[two, one] = (
                not self._mask(one) & self._mask(two)
                or self._solver.marked_apart(self._flattened(one), self._flattened(two))
                or (self._is_small(one) and self._is_small(two) and self._exclude(key))
            )
        return self._separate[key]

    def _flattened(self, node: Node) -> Node:
        """The formula as one conjunction, with references to other conjunctions resolved."""
        if node not in self._flat:
            target = _target(node)
            parts = target.args[0] if target.kind == "and" else (target,)
            whole: set[Node] = set()
            for part in parts:
                whole.update(self._flattened(part).args[0] if part.kind == "ref" else (part,))
            self._flat[node] = make("and", frozenset(whole))
        return self._flat[node]

    def _mask(self, node: Node) -> int:
        """The types that values of the formula may have."""
        if node not in self._masks:
            self._masks[node] = self._types_of(_target(node))
        return self._masks[node]

    def _types_of(self, node: Node) -> int:
        mask = ANY_TYPE
        match node.kind:
            case "false":
                return 0
            case "type":
                return int(node.args[0])
            case "and":
                for part in node.args[0]:
                    mask &= self._mask(part)
            case "or" | "exactly_one":
                mask = 0
                for part in node.args[0]:
                    mask |= self._mask(part)
        return mask

    def _is_small(self, node: Node) -> bool:
        return self._size(node) <= SMALL

    def _size(self, node: Node) -> int:
        """How many formulas are in it, however deep; too many where it has references."""
        if node not in self._sizes:
            inner = (
                child
                for argument in node.args
                for child in (argument if isinstance(argument, frozenset | tuple) else (argument,))
                if isinstance(child, Node)
            )
            self._sizes[node] = SMALL + 1 if node.kind in ("ref", "not_ref") else 1 + sum(map(self._size, inner))
        return self._sizes[node]


def _target(node: Node) -> Node:
    while node.kind == "ref":
        node = node.args[0].node
    return node
