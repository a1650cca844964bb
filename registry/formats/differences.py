"""What every schema format reports: parsed schemas, differences between two of them, and refusals.

    ValueError
    ├── MalformedSchema   the text is not a schema of its type; says where
    └── BudgetExceeded    the question is too much to answer; names the budget
        └── TooLarge      the schema itself is

Rule: a list of differences is empty exactly when the new schema takes every document that the old one takes,
as far as the format can prove it. What cannot be proved is reported as a difference.
"""

from typing import Annotated

import msgspec
from msgspec import Meta


class Difference(msgspec.Struct, frozen=True):
    """One reason why the new schema refuses what the old one takes."""

    kind: Annotated[str, Meta(description="what kind of difference, in UPPER_SNAKE")]
    path: Annotated[str, Meta(description="where: a JSON pointer, or the path of a field")]
    message: Annotated[str, Meta(description="one sentence for people")]
    counterexample: Annotated[
        str | None,
        Meta(description="the text of a JSON document that the old schema takes and the new one refuses"),
    ] = None


class MalformedSchema(ValueError):
    """The text is not a valid schema; `path` says where, empty when the whole text is meant."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{message} at {path}" if path else message)
        self.message = message
        self.path = path


InvalidSchema = MalformedSchema  # the name in json_schema/ and schemas/checks.py; goes when they say MalformedSchema


class BudgetExceeded(ValueError):
    """The schema or the comparison needs more than is granted to any one of them."""

    def __init__(self, budget: str, value: int) -> None:
        super().__init__(f"exceeds the budget {budget} = {value}")
        self.budget = budget
        self.value = value


class TooLarge(BudgetExceeded):
    """The schema has more of something than any one may have, whatever it is compared with."""


class Parsed(msgspec.Struct):
    """A schema that parsed. Formats extend it with the form that they compare."""

    schema_type: str
    canonical: str
    hash: str  # sha256 hex of the canonical text in UTF-8
