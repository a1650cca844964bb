"""Is there a JSON value that satisfies a set of formulas? Old and not new, asked this way, is compatibility.

Rule 1: "impossible" is a proof. Everything else counts as possible, with or without a value to show.
Rule 2: values are finite, so a question that comes up again inside itself needs no second answer: if a value
        existed, the one nested inside it would be smaller. Such answers hold only under their ancestor until
        the ancestor itself is settled (`_tabled`).
Rule 3: for the same reason a question about a recursive schema that comes up deep inside is assumed
        impossible and asked later, by itself; answers hold once all assumptions are confirmed (`_confirmed`).
Rule 4: every step is counted, and the count is bounded.
"""

from collections.abc import Callable, Hashable, Iterable

from registry.formats.differences import BudgetExceeded

from .array_values import find_array
from .nodes import (
    ARRAY,
    ATOM_TYPE,
    BOOLEAN,
    FALSE,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    Node,
    all_of,
    any_of,
    exactly_one,
    has_key,
    make,
    negate,
    opposite,
    types,
)
from .number_values import find_number
from .object_values import find_object
from .outcomes import IMPOSSIBLE, ProofOutcome, best, found
from .string_values import find_string

MAX_STEPS = 200_000
MAX_NESTING = 60
ASSUMED_FROM = 24  # open questions; two per level of nesting
_TYPES = (OBJECT, ARRAY, STRING, NUMBER, BOOLEAN, NULL)
_NO_ANCESTOR = 1 << 30
_ASSUMPTION = -1  # outside of all open questions


class Solver:
    """Answers questions and remembers the answers; one per comparison."""

    def __init__(self) -> None:
        self.steps = 0
        self._settled: dict[Hashable, ProofOutcome] = {}
        self._provisional: dict[Hashable, int] = {}  # impossible under the ancestor of this depth
        self._order: list[Hashable] = []  # the keys of _provisional, oldest first
        self._open: dict[Hashable, int] = {}
        self._assumed: dict[frozenset[Node], None] = {}  # in the order in which they came up
        self._assumed_from = ASSUMED_FROM
        self._ancestor = _NO_ANCESTOR  # the outermost open question that the current answer leans on
        self._marks: dict[Node, dict[str, frozenset[str]]] = {}

    def spend(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise BudgetExceeded("comparison steps", MAX_STEPS)

    def grant(self, steps: int) -> None:
        """So many steps are left from here on."""
        self.steps = MAX_STEPS - steps

    def solve(self, nodes: Iterable[Node]) -> ProofOutcome:
        """A value that satisfies all nodes."""
        goal = frozenset(nodes)
        if FALSE in goal or any(node.negation in goal for node in goal):
            return IMPOSSIBLE
        if not self._open:
            return self._confirmed(goal)
        if self._may_assume(goal):
            self._assumed[goal] = None
            self._ancestor = _ASSUMPTION
            return IMPOSSIBLE
        return self._ask(goal)

    def settle(self, goal: frozenset[Node]) -> None:
        """Nothing satisfies all of these: somebody else has proved it."""
        self._settled[goal] = IMPOSSIBLE

    def _ask(self, goal: frozenset[Node]) -> ProofOutcome:
        return self._tabled(goal, lambda: self._of_any_type(goal))

    def _may_assume(self, goal: frozenset[Node]) -> bool:
        """Of one recursive schema without another: often impossible, while most other guesses would fail."""
        if len(self._open) <= self._assumed_from or goal in self._settled or goal in self._provisional:
            return False
        return {"ref", "not_ref"} <= {node.kind for node in goal}

    def _confirmed(self, goal: frozenset[Node]) -> ProofOutcome:
        """Answer an outermost question; a failed assumption is settled and the question asked again."""
        while True:
            outcome = self._ask(goal)
            checked = 0
            while outcome.impossible and checked < len(self._assumed):
                assumption = list(self._assumed)[checked]
                if not self._ask(assumption).impossible:
                    break
                checked += 1
            is_final = not outcome.impossible or checked == len(self._assumed)
            if is_final and outcome.impossible:
                self._settled.update(dict.fromkeys(self._order, IMPOSSIBLE))
            self._forget()
            if is_final:
                return outcome

    def look_for(self, nodes: Iterable[Node]) -> bool:
        """Whether a value is found, and kept, without following recursive schemas that nothing is known of."""
        self._assumed_from = 0
        try:
            return self._ask(frozenset(nodes)).found
        finally:
            self._assumed_from = ASSUMED_FROM
            self._forget()

    def _forget(self) -> None:
        """What leans on assumptions is over with the question."""
        self._provisional.clear()
        self._order.clear()
        self._assumed.clear()
        self._ancestor = _NO_ANCESTOR

    def _tabled(self, key: Hashable, answer: Callable[[], ProofOutcome]) -> ProofOutcome:
        if key in self._settled:
            return self._settled[key]
        if key in self._open:
            self._ancestor = min(self._ancestor, self._open[key])
            return IMPOSSIBLE
        if key in self._provisional:
            self._ancestor = min(self._ancestor, self._provisional[key])
            return IMPOSSIBLE
        self.spend()
        depth = len(self._open)
        if depth > 2 * MAX_NESTING:
            raise BudgetExceeded("nesting of the comparison", MAX_NESTING)
        outer, self._ancestor = self._ancestor, _NO_ANCESTOR
        self._open[key] = depth
        mark = len(self._order)
        try:
            outcome = answer()
        finally:
            del self._open[key]
            leaning, self._ancestor = self._ancestor, outer
        if leaning < depth:
            self._ancestor = min(outer, leaning)
        self._close(key, outcome, depth, leaning, mark)
        return outcome

    def _close(self, key: Hashable, outcome: ProofOutcome, depth: int, leaning: int, mark: int) -> None:
        """Settle an answer, with those that leaned on nothing further out, or pass on what they lean on."""
        inner = self._order[mark:]
        if not outcome.impossible:
            del self._order[mark:]
            for other in inner:
                del self._provisional[other]
        elif leaning < depth:
            for other in inner:
                self._provisional[other] = min(self._provisional[other], leaning)
            self._provisional[key] = leaning
            self._order.append(key)
            return
        else:
            self._order[mark:] = [other for other in inner if self._provisional[other] < depth]
            for other in inner:
                if self._provisional[other] >= depth:
                    del self._provisional[other]
                    self._settled[other] = outcome
        self._settled[key] = outcome

    def _of_any_type(self, goal: frozenset[Node]) -> ProofOutcome:
        outcome = IMPOSSIBLE
        for kind in _TYPES:
            todo = [self.special(node, kind) for node in goal]
            if FALSE not in todo:
                outcome = best(outcome, self._search(kind, frozenset(), todo))
                if outcome.found:
                    break
        return outcome

    def special(self, node: Node, kind: int) -> Node:
        """The formula as it reads for values of one type: no types and no references are left in it."""
        known = node.special.get(kind)
        if known is None:
            known = node.special[kind] = self._make_special(node, kind)
        return known

    def _make_special(self, node: Node, kind: int) -> Node:
        self.spend()
        match node.kind:
            case "true" | "false":
                return node
            case "type":
                return TRUE if node.args[0] & kind else FALSE
            case "and":
                return all_of(self.special(part, kind) for part in node.args[0])
            case "or":
                return any_of(self.special(part, kind) for part in node.args[0])
            case "ref":
                return self.special(node.args[0].node, kind)
            case "not_ref":
                return self.special(negate(node.args[0].node), kind)
            case "exactly_one":
                return exactly_one(self.special(part, kind) for part in node.args[0])
            case "not_exactly_one":
                inner = self.special(negate(node), kind)
                return negate(inner) if inner.kind == "exactly_one" else self.special(negate(inner), kind)
            case _:
                return node if ATOM_TYPE[node.kind] & kind else TRUE

    def _search(self, kind: int, known: frozenset[Node], todo: list[Node]) -> ProofOutcome:
        """Choose one alternative of every disjunction so that the atoms together can be met."""
        self.spend(1 + len(known) // 8 + len(todo))
        atoms = set(known)
        clauses: list[tuple[Node, ...]] = []
        while True:
            if not self._absorb(kind, todo, atoms, clauses):
                return IMPOSSIBLE
            reduced = self._reduce(clauses, atoms)
            if reduced is None:
                return IMPOSSIBLE
            clauses, todo = reduced
            if todo:
                continue
            if not clauses:
                return self._meet(kind, frozenset(atoms))
            if self._meet(kind, frozenset(atoms)).impossible:
                return IMPOSSIBLE
            if len(clauses) == 1:
                break
            narrowed = self._narrow(kind, clauses, atoms)
            if narrowed is None:
                return IMPOSSIBLE
            if sum(map(len, narrowed)) == sum(map(len, clauses)):
                break
            clauses = narrowed
        clauses.sort(key=len)
        outcome = IMPOSSIBLE
        rest = [make("or", frozenset(clause)) for clause in clauses[1:]]
        for choice in clauses[0]:
            outcome = best(outcome, self._search(kind, frozenset(atoms), [choice, *rest]))
            if outcome.found:
                break
        return outcome

    def _absorb(self, kind: int, todo: list[Node], atoms: set[Node], clauses: list[tuple[Node, ...]]) -> bool:
        """Sort formulas into atoms and disjunctions; False when an atom meets its opposite."""
        while todo:
            node = todo.pop()
            match node.kind:
                case "true":
                    continue
                case "false":
                    return False
                case "and":
                    todo += node.args[0]
                case "or":
                    clauses.append(tuple(node.args[0]))
                case "exactly_one" | "not_exactly_one":
                    todo.append(self._spelled_out(node, kind))
                case _:
                    if opposite(node) in atoms:
                        return False
                    atoms.add(node)
        return True

    def _reduce(
        self, clauses: list[tuple[Node, ...]], atoms: set[Node]
    ) -> tuple[list[tuple[Node, ...]], list[Node]] | None:
        """Drop met disjunctions and refuted alternatives; a single alternative becomes a demand."""
        left, forced = [], []
        for clause in clauses:
            self.spend()
            alternatives = []
            for choice in clause:
                parts = choice.args[0] if choice.kind == "and" else (choice,)
                if all(part in atoms for part in parts):
                    break
                if not any(opposite(part) in atoms for part in parts if part.kind in ATOM_TYPE):
                    alternatives.append(choice)
            else:
                if not alternatives:
                    return None
                if len(alternatives) == 1:
                    forced.append(alternatives[0])
                else:
                    left.append(tuple(alternatives))
        return left, forced

    def _narrow(self, kind: int, clauses: list[tuple[Node, ...]], atoms: set[Node]) -> list[tuple[Node, ...]] | None:
        """Drop alternatives that cannot be met beside the atoms; a disjunction left empty ends the search."""
        narrowed = []
        for clause in sorted(clauses, key=len):
            left = []
            for choice in clause:
                parts = choice.args[0] if choice.kind == "and" else (choice,)
                more = frozenset(part for part in parts if part.kind in ATOM_TYPE)
                if not self._meet(kind, more | atoms).impossible:
                    left.append(choice)
            if not left:
                return None
            narrowed.append(tuple(left))
        return narrowed

    def _spelled_out(self, node: Node, kind: int) -> Node:
        """`exactly_one` as plain logic; branches that exclude each other need no negations."""
        branches = node.args[0]
        refused = [self.special(negate(branch), kind) for branch in branches]
        overlaps: list[set[int]] = [set() for _ in branches]
        for one in range(len(branches)):
            for two in range(one):
                self.spend()
                if not (
                    self.marked_apart(branches[one], branches[two])
                    or self._exclude((types(kind), branches[one], branches[two]))
                ):
                    overlaps[one].add(two)
                    overlaps[two].add(one)
        if node.kind == "exactly_one":
            return any_of(
                all_of((branch, *(refused[other] for other in overlaps[index])))
                for index, branch in enumerate(branches)
            )
        pairs = [
            all_of((branches[one], branches[two])) for one, others in enumerate(overlaps) for two in others if two < one
        ]
        return any_of((all_of(refused), *pairs))

    def marked_apart(self, one: Node, two: Node) -> bool:
        """Both require a property and list different strings for it, the usual mark of alternatives."""
        first, second = self._marks_of(one), self._marks_of(two)
        return any(name in second and values.isdisjoint(second[name]) for name, values in first.items())

    def _marks_of(self, branch: Node) -> dict[str, frozenset[str]]:
        if branch not in self._marks:
            parts: frozenset[Node] = branch.args[0] if branch.kind == "and" else frozenset()
            marks = self._marks[branch] = {}
            for part in parts:
                if part.kind == "every_key" and part.args[0].kind == "string_in":
                    listed = _listed_strings(part.args[1])
                    for name in part.args[0].args[0] if listed else ():
                        if has_key(name) in parts:
                            marks[name] = listed
        return self._marks[branch]

    def _exclude(self, nodes: Iterable[Node]) -> bool:
        """No value satisfies all, and that is settled: a formula must not be simplified on an assumption."""
        outer, self._ancestor = self._ancestor, _NO_ANCESTOR
        impossible = self.solve(nodes).impossible
        leaning, self._ancestor = self._ancestor, outer
        return impossible and leaning == _NO_ANCESTOR

    def _meet(self, kind: int, atoms: frozenset[Node]) -> ProofOutcome:
        return self._tabled((kind, atoms), lambda: self._value(kind, atoms))

    def _value(self, kind: int, atoms: frozenset[Node]) -> ProofOutcome:
        if kind == OBJECT:
            return find_object(atoms, self)
        if kind == ARRAY:
            return find_array(atoms, self)
        if kind == STRING:
            return find_string(atoms, self.spend)
        if kind == NUMBER:
            return find_number(atoms)
        if kind == NULL:
            return found(None)
        allowed = {True, False}
        for atom in atoms:
            allowed &= atom.args[0] if atom.kind == "boolean_in" else allowed
        return found(max(allowed)) if allowed else IMPOSSIBLE


def _listed_strings(node: Node) -> frozenset[str]:
    """The strings that a value may be, when the formula lists them; empty when it does not."""
    parts = node.args[0] if node.kind == "and" else ()
    listed = [part.args[0] for part in parts if part.kind == "string_in"]
    return frozenset(listed[0]) if listed and types(STRING) in parts else frozenset()
