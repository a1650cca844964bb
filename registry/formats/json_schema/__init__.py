"""JSON Schema, drafts 4, 6, 7, 2019-09 and 2020-12: reading, canonical text, what changes between versions.

`compare` is exact where logic allows: it asks for a document that the old schema takes and the new refuses,
and says compatible only when it has proved that there is none. `Difference.counterexample` is such a
document, confirmed by an independent validator. Formats and other keywords that validators may ignore are
never relied on: adding one is a difference (without a counterexample), keeping or removing one is not.

    reading     text, limits, canonical text        nodes      the logic that schemas compile to
    dialects    the drafts                          solver     is there a value for these formulas?
    document    references                          *_values   the same for one JSON type
    keywords    schemas to nodes                    explain    which keyword is to blame
    evaluated   unevaluated*                        wording    its name and sentence
    likeness    a quick proof, before the solver
    regex, automaton   patterns as regular languages   verdicts   proofs kept for later
"""

import hashlib
from collections.abc import Mapping

from registry.formats.differences import BudgetExceeded, Difference, Parsed

from . import verdicts
from .document import Document
from .explain import Explainer
from .keywords import Compiler
from .nodes import Node, negate
from .solver import Solver
from .structural_proof import Likeness
from .text_limits import MAX_NESTING, read, write, write_normalized

__all__ = ["JsonSchema", "compare", "normalize", "parse"]


class JsonSchema(Parsed):
    """A parsed JSON Schema."""

    compiler: Compiler
    node: Node

    @property
    def dialect(self) -> str:
        """The URI of the draft that the schema is read as."""
        return self.compiler.document.dialect.uri


def parse(text: str, references: Mapping[str, str]) -> JsonSchema:
    """Read a schema; `references` are other schema texts by the names under which it refers to them."""
    contents = read(text)
    others = {name: read(other, f"reference {name!r}") for name, other in references.items()}
    try:
        document = Document(contents, others)
        compiler = Compiler(document)
        node = compiler.root()
        if compiler.is_recursive:
            compiler = Compiler(document, by_reference=True)
            node = compiler.root()
    except RecursionError:
        raise BudgetExceeded("nesting of a schema", MAX_NESTING) from None
    canonical = write(contents)
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return JsonSchema("JSON", canonical, digest, compiler, node)


def normalize(text: str, references: Mapping[str, str]) -> str:
    """A text that ignores white space and the order of keys, types, required names and listed values."""
    parse(text, references)
    return write_normalized(read(text))


def compare(old: JsonSchema, new: JsonSchema) -> list[Difference]:
    """Why some document that is valid under `old` is not valid under `new`; empty when there is none.

    Against many versions compare the newest first: what is proved of it is used for the others (`verdicts`).
    """
    if old.node is new.node or verdicts.is_known(old.node, new.node):
        return []
    try:
        differences = _differences(old, new)
    except RecursionError:
        raise BudgetExceeded("nesting of the comparison", MAX_NESTING) from None
    if not differences:
        verdicts.remember(old.node, new.node)
    return differences


def _differences(old: JsonSchema, new: JsonSchema) -> list[Difference]:
    solver = Solver()
    likeness = Likeness(solver)
    if likeness.prove(old.node, new.node):
        return []
    try:
        likeness.show(old.node, new.node)
        shown = solver.solve((old.node, negate(new.node)))
    except BudgetExceeded:
        guess = likeness.example(old.node, new.node)
        found = Explainer(old.compiler, new.compiler, Solver(), guess).run() if guess.found else []
        if any(difference.counterexample is not None for difference in found):
            return found
        raise
    return [] if shown.impossible else Explainer(old.compiler, new.compiler, solver, shown).run()
