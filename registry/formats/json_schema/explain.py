"""Why the new schema refuses a document: the differences, each at the keyword that causes it.

The new schema is a conjunction, so it is compatible exactly when each of its parts is. A failing part that
wraps an inner schema is followed inwards. Each part is asked about in its place in the whole, so a value that
is found for it is a whole document. The old schema is consulted only to name the difference, never to decide.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import msgspec

from registry.formats.differences import BudgetExceeded, Difference

from . import dialects, wording
from .dialects import pointer
from .document import DocumentPlace
from .keywords import Compiler, Conjunct, negate_names_of, tuple_keywords
from .nodes import FALSE, Node, all_of, every_key, negate, negate_names, one_of_strings
from .outcomes import ProofOutcome
from .solver import Solver

MAX_DIFFERENCES = 100
EXPLANATION_STEPS = 50_000
_RESTS = ("items", "additionalItems")

Views = list[DocumentPlace]
Context = tuple[Callable[[Node], Node], ...]  # from the outermost inwards


class Explainer:
    """One comparison that failed, with what showed that it did."""

    def __init__(self, old: Compiler, new: Compiler, solver: Solver, shown: ProofOutcome) -> None:
        self.old = old
        self.new = new
        self.solver = solver
        self.shown = shown
        self.old_node = old.node(old.document.root)
        self._given = self.old_node.args[0] if self.old_node.kind == "and" else {self.old_node}
        self.differences: list[Difference] = []
        self._pending: deque[tuple[DocumentPlace, Views, Context]] = deque()
        self._met: set[tuple[int, ...]] = set()
        self._known: dict[int, dict[str, Any]] = {}
        self._engines: list[tuple[list[Any], bool]] | None = None

    def run(self) -> list[Difference]:
        """All differences up to a number; none when part by part everything proves compatible after all."""
        self.solver.grant(EXPLANATION_STEPS)
        try:
            again = self._walk_from([(self.new.document.root, self._views([self.old.document.root]), ())])
            if not self.differences:
                self._met.clear()
                self._walk_from(again)
        except BudgetExceeded:
            if not self.differences:
                self._report("SCHEMA_NARROWED", "#", self.shown)
        return self.differences

    def _walk_from(
        self, starts: list[tuple[DocumentPlace, Views, Context]]
    ) -> list[tuple[DocumentPlace, Views, Context]]:
        """Nearest places first. What is met again in the same company is put aside and returned: usually what
        fails there fails further out too and is reported there."""
        again = []
        self._pending = deque(starts)
        while self._pending and len(self.differences) < MAX_DIFFERENCES:
            place, views, context = self._pending.popleft()
            company = (id(place.schema), *(id(view.schema) for view in views if "$ref" not in view.schema))
            if isinstance(place.schema, dict) and company in self._met:
                again.append((place, views, context))
            else:
                self._met.add(company)
                self._walk(place, views, context)
        return again

    def _refuted(self, context: Context, node: Node) -> ProofOutcome | None:
        """How the old schema violates a demand of the new; None when it provably does not."""
        for wrap in reversed(context):
            node = wrap(node)
        if node in self._given:
            return None
        outcome = self.solver.solve((self.old_node, negate(node)))
        return None if outcome.impossible else outcome

    def _walk(self, place: DocumentPlace, views: Views, context: Context) -> None:
        if place.schema is False:
            outcome = self._refuted(context, FALSE)
            if outcome is not None:
                self._report("SCHEMA_BECAME_FALSE", place.path, outcome)
        elif place.schema is not True:
            for part in self.new.parts(place):
                outcome = self._refuted(context, part.node)
                if outcome is not None:
                    self._explain(place, part, views, context, outcome)

    def _explain(
        self, place: DocumentPlace, part: Conjunct, views: Views, context: Context, outcome: ProofOutcome
    ) -> None:
        keyword = part.tokens[0]
        if keyword == "additionalProperties" and part.inner is not None:
            self._explain_additional(place, part.inner, views, context)
            return
        path = pointer(place.path, *part.tokens)
        inner_views = self._step(views, place, part.tokens)
        is_reference = keyword.startswith("$")
        if (
            part.inner is not None
            and part.wrap is not None
            and (inner_views or is_reference or keyword == "allOf")
            and not (keyword in _RESTS and part.inner.schema is False)
        ):
            following = views if is_reference or keyword == "allOf" else inner_views
            self._pending.append((part.inner, following, (*context, part.wrap)))
            return
        old_values = [view.schema.get(keyword) for view in views if keyword in view.schema]
        kind = wording.kind_of(part.tokens, place, old_values, [view.schema for view in views])
        old_value = old_values[0] if old_values else None
        message = wording.sentence(kind, path, keyword, old_value, place.schema.get(keyword))
        self._report(kind, path, outcome, message)

    def _explain_additional(self, place: DocumentPlace, inner: DocumentPlace, views: Views, context: Context) -> None:
        """Closing an object: first the properties that the new schema no longer names, then all others."""
        schema = self.new.node(inner)
        left = negate_names_of(place.schema)
        named = {name for view in views for name in view.schema.get("properties", ())}
        removed = sorted(named - set(place.schema.get("properties", ())))
        model = "CLOSED" if inner.schema is False else "PARTIALLY_OPEN"
        for name in removed:
            names = all_of((one_of_strings((name,)), left))
            outcome = self._refuted(context, every_key(names, schema))
            if outcome is not None:
                kind = (
                    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"
                    if model == "CLOSED"
                    else "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
                )
                self._report(kind, pointer(place.path, "properties", name), outcome)
        names = all_of((negate_names(removed), left)) if removed else left
        outcome = self._refuted(context, every_key(names, schema))
        if outcome is not None:
            open_before = wording.content_model([view.schema for view in views]) == "open"
            gone = open_before and inner.schema is False
            kind = "ADDITIONAL_PROPERTIES_REMOVED" if gone else "ADDITIONAL_PROPERTIES_NARROWED"
            self._report(kind, pointer(place.path, "additionalProperties"), outcome)

    def _views(self, places: Views) -> Views:
        """Return the old schemas that apply where these do: they, what they refer to, and the members of `allOf`."""
        found: Views = []
        pending = list(reversed(places))
        while pending and len(found) < 50:
            place = pending.pop()
            if not isinstance(place.schema, dict):
                continue
            # Kept, so that the identity of a view stays that of its schema.
            schema = self._known.setdefault(id(place.schema), dialects.known(place.schema, place.dialect))
            place = place._replace(schema=schema)
            if any(schema is view.schema for view in found):
                continue
            found.append(place)
            document = self.old.document
            pending += [document.target(place, keyword) for keyword in document.reference_keywords(place)]
            pending += [
                document.inside(place, child, "allOf", str(index))
                for index, child in enumerate(place.schema.get("allOf", ()))
            ]
        return found

    def _step(self, views: Views, place: DocumentPlace, tokens: tuple[str, ...]) -> Views:
        """Where the old schema speaks about the same inner value."""
        found = []
        for view in views:
            for schema in _children(view, place, tokens):
                found.append(self.old.document.inside(view, schema, *tokens))
        return self._views(found)

    def _report(self, kind: str, path: str, outcome: ProofOutcome, message: str = "") -> None:
        counterexample = self._verified(outcome.value) if outcome.found else None
        message = message or wording.sentence(kind, path)
        if counterexample is None:
            message += " No document that shows it was found, but that there is none could not be proved."
        self.differences.append(Difference(kind, path, message, counterexample))

    def _verified(self, document: Any) -> str | None:
        """The document as JSON, if an independent validator confirms it, whatever it makes of formats."""
        if self._engines is None:
            self._engines = [(_engines(self.old), True), (_engines(self.new), False)]
        for engines, is_valid in self._engines:
            if not engines or any(engine.is_valid(document) is not is_valid for engine in engines):
                return None
        return msgspec.json.encode(document).decode()


def _children(view: DocumentPlace, place: DocumentPlace, tokens: tuple[str, ...]) -> Iterator[Any]:
    if len(tokens) == 2 and tokens[0] in ("prefixItems", "items"):
        prefix, rest = tuple_keywords(view.schema, view.dialect.version)
        index = int(tokens[1])
        first = view.schema[prefix] if prefix else []
        if index < len(first):
            yield first[index]
        elif rest in view.schema and not isinstance(view.schema[rest], bool):
            yield view.schema[rest]
    elif tokens in (("items",), ("additionalItems",)):
        prefix, rest = tuple_keywords(view.schema, view.dialect.version)
        new_prefix, new_rest = tuple_keywords(place.schema, place.dialect.version)
        shorter = len(place.schema[new_prefix]) if new_prefix else 0
        comparable = new_rest == tokens[0] and (not prefix or len(view.schema[prefix]) <= shorter)
        if comparable and rest in view.schema and not isinstance(view.schema[rest], bool):
            yield view.schema[rest]
    else:
        value = view.schema.get(tokens[0])
        if len(tokens) == 2 and isinstance(value, dict):
            value = value.get(tokens[1])
        if isinstance(value, dict):
            yield value


class _Ignored:
    """Stands in for a keyword that validators may ignore."""

    def __init__(self, parent_schema: Any, value: Any, schema_path: Any) -> None:
        del parent_schema, value, schema_path

    def validate(self, instance: Any) -> None:
        """Takes every instance."""


def _engines(compiler: Compiler) -> list[Any]:
    """Validators of the whole document, with and without the keywords that may be ignored; none if it has to
    be left unverified because the engine does not take the schema."""
    document = compiler.document
    texts = [(name, text) for name, text in document.references.items() if isinstance(text, dict)]
    ignored = ["contentEncoding", "contentMediaType"]
    ignored += ["dependencies"] if document.dialect.version >= 2019 else []
    try:
        registry = jsonschema_rs.Registry(texts) if texts else None
        return [
            document.dialect.engine(
                document.contents, validate_formats=False, offline=True, registry=registry, keywords=keywords
            )
            for keywords in ({}, dict.fromkeys(ignored, _Ignored))
        ]
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return []
