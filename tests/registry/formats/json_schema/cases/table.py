"""How a case is written: two schemas, why they relate as they do, and the differences expected each way.

`widening`  every document of the first is one of the second, not the other way round
`same`      both schemas take the same documents
`unrelated` each takes a document that the other refuses

Each entry stands for two cases, one per direction.
"""

from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any] | bool


@dataclass(frozen=True)
class Case:
    why: str
    old: Schema
    new: Schema
    kinds: frozenset[str] | None  # None: compatible
    is_shown: bool  # a counterexample is expected


class Table:
    """The cases of one topic; all schemas are of one draft unless they name another."""

    def __init__(self, schema_uri: str = "http://json-schema.org/draft-07/schema#") -> None:
        self.uri = schema_uri
        self.cases: list[Case] = []

    def _add(self, why: str, old: Schema, new: Schema, kinds: str | None, is_shown: bool = True) -> None:
        expected = None if kinds is None else frozenset(kinds.split())
        self.cases.append(Case(why, self._dated(old), self._dated(new), expected, is_shown))

    def _dated(self, schema: Schema) -> Schema:
        return schema if isinstance(schema, bool) else {"$schema": self.uri, **schema}

    def widening(self, why: str, narrow: Schema, wide: Schema, kinds: str, is_shown: bool = True) -> None:
        self._add(why, narrow, wide, None)
        self._add(f"not back: {why}", wide, narrow, kinds, is_shown)

    def same(self, why: str, one: Schema, two: Schema) -> None:
        self._add(why, one, two, None)
        self._add(f"and back: {why}", two, one, None)

    def unrelated(self, why: str, one: Schema, two: Schema, kinds: str, back: str, *, is_shown: bool = True) -> None:
        self._add(why, one, two, kinds, is_shown)
        self._add(f"nor back: {why}", two, one, back, is_shown)


DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_6 = "http://json-schema.org/draft-06/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
