"""Judging schemas: everything slow about them, as one pure function from a question to a verdict.

The registry says what must be known (`SchemaCheck`), somebody computes it (`judge`: a worker process beside the broker,
or the caller itself), and the registry decides with the verdict.

Rule 1: a question holds everything that its verdict is computed from: every text, with all that it refers to.
Rule 2: a verdict names its question, and counts only while the registry would ask the very same.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec
from msgspec import Struct, field

from registry.formats.differences import BudgetExceeded, Difference, InvalidSchema, Parsed, TooLarge
from registry.records import Level, SchemaType
from registry.replies import VersionDifferences

MAX_PARSED = 2048
MAX_COMPARED = 8192
_MODULES: dict[SchemaType, str] = {
    "JSON": "registry.formats.json_schema",
    "AVRO": "registry.formats.avro",
    "PROTOBUF": "registry.formats.protobuf",
    "ARROW": "registry.formats.arrow",
}
References = tuple[tuple[str, str], ...]


class Against(Struct, kw_only=True, frozen=True):
    """A version to compare with."""

    version: int
    schema_type: SchemaType
    text: str
    references: References = ()


class Attached(Struct, kw_only=True, frozen=True):
    """A schema that live members of one role work with."""

    role: str
    schema_hash: str
    schema_type: SchemaType
    text: str
    references: References = ()


class SchemaCheck(Struct, kw_only=True, frozen=True):
    schema_type: SchemaType
    text: str
    references: References = ()
    normalize: bool = False
    level: Level = "NONE"
    against: tuple[Against, ...] = ()
    attached: tuple[Attached, ...] = ()


class CheckResult(Struct, kw_only=True, frozen=True):
    """`refusal` is set when the schema cannot be used at all; `is_budget` when it is only too much to judge, and
    `is_large` when it is so by its size; `is_lost` when nobody came to a verdict, which says nothing about the schema.
    """

    text: str = ""
    schema_hash: str = ""
    differences: list[VersionDifferences] = field(default_factory=list)
    broken: dict[str, bool] = field(default_factory=dict)
    """By role and hash, whether who is attached would break; what is too much to judge is left out."""
    refusal: str | None = None
    is_budget: bool = False
    is_large: bool = False
    is_lost: bool = False
    path: str = ""
    question: SchemaCheck | None = None
    """What it answers; the process beside the broker leaves it out, and who asked adds it."""


def text_of(schema: Any) -> str:
    """A schema given as a JSON value instead of a text."""
    return schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()


def judge(question: SchemaCheck, *, between: Callable[[], object] = lambda: None) -> CheckResult:
    """`between` is called before each version, so that whoever judges many can let others go first."""
    try:
        text = _normalized(question) if question.normalize else question.text
        parsed = _parse(question.schema_type, text, question.references)
        differences = []
        for old in question.against:
            between()
            if (found := _compared(question, old)) is not None:
                differences.append(found)
    except InvalidSchema as error:
        return CheckResult(refusal=str(error), path=error.path, question=question)
    except BudgetExceeded as error:
        is_large = isinstance(error, TooLarge)
        return CheckResult(refusal=str(error), is_budget=True, is_large=is_large, question=question)
    judged = {f"{one.role} {one.schema_hash}": _breaks(question, one) for one in question.attached}
    broken = {who: breaks for who, breaks in judged.items() if breaks is not None}
    return CheckResult(text=text, schema_hash=parsed.hash, differences=differences, broken=broken, question=question)


def _breaks(question: SchemaCheck, attached: Attached) -> bool | None:
    """A consumer breaks by what the new schema lets others write; a producer's data by what it refuses."""
    if attached.schema_type != question.schema_type:
        return True
    new, present = (question.text, question.references), (attached.text, attached.references)
    written, read = (new, present) if attached.role == "consumer" else (present, new)
    try:
        return bool(_compare(question.schema_type, "BACKWARD", written, read))
    except BudgetExceeded:
        return None


def _compared(question: SchemaCheck, old: Against) -> VersionDifferences | None:
    """What is in the way of one version; None when nothing is."""
    if old.schema_type != question.schema_type:
        message = f"the schema type changed from {old.schema_type} to {question.schema_type}"
        return VersionDifferences(version=old.version, differences=[Difference("SCHEMA_TYPE_CHANGED", "", message)])
    level = question.level.removesuffix("_TRANSITIVE")
    found = _compare(question.schema_type, level, (old.text, old.references), (question.text, question.references))
    return VersionDifferences(version=old.version, differences=found) if found else None


@lru_cache(maxsize=MAX_COMPARED)
def _compare(
    schema_type: SchemaType, level: str, old: tuple[str, References], new: tuple[str, References]
) -> list[Difference]:
    module = _module(schema_type)
    before, after = _parse(schema_type, *old), _parse(schema_type, *new)
    found: list[Difference] = []
    if level == "LAYOUT":
        if schema_type != "ARROW":
            return [Difference("LEVEL_NOT_APPLICABLE", "", "level LAYOUT is for ARROW schemas only")]
        found += module.compare_layout(before, after)
    if level in ("BACKWARD", "FULL"):
        found += module.compare(before, after)
    if level in ("FORWARD", "FULL"):
        found += module.compare(after, before)
    return found


@lru_cache(maxsize=MAX_PARSED)
def _parse(schema_type: SchemaType, text: str, references: References) -> Parsed:
    parsed: Parsed = _module(schema_type).parse(text, dict(references))
    return parsed


def _normalized(question: SchemaCheck) -> str:
    references: Mapping[str, str] = dict(question.references)
    normalized: str = _module(question.schema_type).normalize(question.text, references)
    return normalized


def _module(schema_type: SchemaType) -> ModuleType:
    """Imported on first use: each brings a library that most processes never need."""
    return import_module(_MODULES[schema_type])


def preload() -> None:
    """Import every format now, so that no question pays for it."""
    for name in _MODULES.values():
        import_module(name)
