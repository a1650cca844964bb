"""JSON Schema, drafts 4, 6, 7, 2019-09 and 2020-12: reading, canonical text, what changes between versions.

`compare` is exact where logic allows: it asks for a document that the old schema takes and the new refuses,
and says compatible only when it has proved that there is none. `Difference.counterexample` is such a
document, confirmed by an independent validator. Formats and other keywords that validators may ignore are
never relied on: adding one is a difference (without a counterexample), keeping or removing one is not.

    text_limits        text, limits, canonical text     nodes       the logic that schemas compile to
    dialects           the drafts                       solver      is there a value for these formulas?
    document           references                       *_values    the same for one JSON type
    keywords           schemas to nodes                 explain     which keyword is to blame
    unevaluated        unevaluated*                     wording     its name and sentence
    structural_proof   a quick proof, before the solver
    known_proofs       proofs of earlier checks
    regex, automaton   patterns as regular languages
"""

import hashlib
from collections.abc import Mapping

from registry.formats.differences import BudgetExceeded, Difference, Parsed, TooLarge

from . import known_proofs
from .document import Document
from .explain import Explainer
from .keywords import MAX_SCHEMAS, Compiler
from .nodes import Node, negate
from .solver import Solver
from .structural_proof import StructuralProof
from .text_limits import MAX_NESTING, read, write_normalized

__all__ = ["JsonSchema", "compare", "normalize", "parse"]


class JsonSchema(Parsed):
    """A parsed JSON Schema. Its formulas are compiled when it is first compared, as most never are."""

    document: Document
    compiled: tuple[Compiler, Node] | None = None

    @property
    def dialect(self) -> str:
        """The URI of the draft that the schema is read as."""
        return self.document.dialect.uri

    @property
    def compiler(self) -> Compiler:
        return self._formulas()[0]

    @property
    def node(self) -> Node:
        """The formula of the whole schema."""
        return self._formulas()[1]

    def _formulas(self) -> tuple[Compiler, Node]:
        if self.compiled is None:
            self.compiled = _compiled(self.document)
        return self.compiled


def parse(text: str, references: Mapping[str, str]) -> JsonSchema:
    """Read a schema; `references` are other schema texts by the names under which it refers to them.

    A schema that refers to anything is compiled at once: only compiling it shows a circle, and how much it refers to.
    """
    contents, canonical = read(text)
    others = {name: read(other, f"reference {name!r}")[0] for name, other in references.items()}
    try:
        document = Document(contents, canonical, others)
    except RecursionError:
        raise BudgetExceeded("nesting of a schema", MAX_NESTING) from None
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    schema = JsonSchema("JSON", canonical, digest, document)
    if document.has_references:
        schema.compiled = _compiled(document)
    elif document.schemas > MAX_SCHEMAS:
        raise TooLarge("schemas in one text", MAX_SCHEMAS)
    return schema


def _compiled(document: Document) -> tuple[Compiler, Node]:
    try:
        compiler = Compiler(document)
        node = compiler.root()
        if compiler.is_recursive:
            compiler = Compiler(document, by_reference=True)
            node = compiler.root()
    except RecursionError:
        raise BudgetExceeded("nesting of a schema", MAX_NESTING) from None
    return compiler, node


def normalize(text: str, references: Mapping[str, str]) -> str:
    """A text that ignores white space and the order of keys, types, required names and listed values."""
    parse(text, references)
    return write_normalized(read(text)[0])


def compare(old: JsonSchema, new: JsonSchema) -> list[Difference]:
    """Return why some document that is valid under `old` is not valid under `new`; nothing when there is none.

    Against many versions compare the newest first: what is proved of it is used for the others (`known_proofs`).
    """
    if old.node is new.node or known_proofs.is_known(old.node, new.node):
        return []
    try:
        differences = _differences(old, new)
    except RecursionError:
        raise BudgetExceeded("nesting of the comparison", MAX_NESTING) from None
    if not differences:
        known_proofs.remember(old.node, new.node)
    return differences


def _differences(old: JsonSchema, new: JsonSchema) -> list[Difference]:
    solver = Solver()
    structural = StructuralProof(solver)
    if structural.prove(old.node, new.node):
        return []
    try:
        structural.show(old.node, new.node)
        shown = solver.solve((old.node, negate(new.node)))
    except BudgetExceeded:
        guess = structural.example(old.node, new.node)
        found = Explainer(old.compiler, new.compiler, Solver(), guess).run() if guess.found else []
        if any(difference.counterexample is not None for difference in found):
            return found
        raise
    return [] if shown.impossible else Explainer(old.compiler, new.compiler, solver, shown).run()
