"""JSON documents against a registered JSON Schema, with nothing ever fetched."""

from functools import lru_cache
from typing import Any

import jsonschema_rs
import msgspec

MAX_PROBLEMS = 100


def validate(schema: str, document: Any) -> list[dict[str, str]]:
    """Every problem, with the place in the document; none when it is valid."""
    problems = []
    for error in _validator(schema).iter_errors(document):
        problems.append({"path": "/".join(["", *map(str, error.instance_path)]), "message": error.message})
        if len(problems) == MAX_PROBLEMS:
            break
    return problems


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    return jsonschema_rs.validator_for(msgspec.json.decode(schema), retriever=_refuse)


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is not part of the schema, and nothing is fetched")
