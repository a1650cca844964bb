"""JSON documents against a registered JSON Schema, with nothing ever fetched."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import urljoin

import jsonschema_rs
import msgspec

from registry.errors import InvalidSchema

MAX_PROBLEMS = 100
_BASE = "http://schema.invalid/"  # for a schema that names no place of its own; names are relative to it


class DocumentSchema:
    """One schema, with the texts of what it refers to by name."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        schema = msgspec.json.decode(text)
        others = {name: msgspec.json.decode(other) for name, other in references.items()}
        bases = {_BASE, *others, *(_own_uri(one) for one in (schema, *others.values()))}
        known = {urljoin(urljoin(_BASE, base), name): other for base in bases for name, other in others.items()}
        known |= others

        def retrieve(uri: str) -> Any:
            try:
                return known[uri]
            except KeyError:
                raise ValueError(f"{uri} is not part of the schema, and nothing is fetched") from None

        try:
            self._validator = jsonschema_rs.validator_for(schema, retriever=retrieve, base_uri=_BASE)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise InvalidSchema(f"documents cannot be validated against this schema: {error}") from None

    def problems(self, document: Any) -> list[dict[str, str]]:
        """What is wrong, each with its place in the document; none when it is valid, and never more than a hundred."""
        return [
            {"path": "".join(f"/{_escaped(step)}" for step in error.instance_path), "message": error.message}
            for error in islice(self._validator.iter_errors(document), MAX_PROBLEMS)
        ]


@lru_cache(maxsize=256)
def document_schema(text: str, references: tuple[tuple[str, str], ...]) -> DocumentSchema:
    """The same again for the same texts."""
    return DocumentSchema(text, dict(references))


def _own_uri(schema: Any) -> str:
    return str(schema.get("$id", schema.get("id", ""))) if isinstance(schema, dict) else ""


def _escaped(step: str | int) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")
