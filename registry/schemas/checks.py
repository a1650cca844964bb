"""Schema checks: everything slow about schemas, as one pure function from a check to its result.

The registry says which check a command needs, somebody runs it (`run_check`: a worker process beside the broker, or
the caller itself), and the registry decides with the result.

Rule 1: a check holds everything that its result is computed from: every text, with all that it refers to.
Rule 2: a result names its check, and counts only while the command still needs that very check.
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
    """`refusal` is set when the schema cannot be used at all; `is_budget` when checking it takes too much, and
    `is_large` when that is because of its size; `is_lost` when the check came to no end, which says nothing about
    the schema.
    """

    text: str = ""
    schema_hash: str = ""
    differences: list[VersionDifferences] = field(default_factory=list)
    broken: dict[str, bool] = field(default_factory=dict)
    """Return, by role and hash, whether attached members would break. What takes too much to check is left out."""
    refusal: str | None = None
    is_budget: bool = False
    is_large: bool = False
    is_lost: bool = False
    path: str = ""
    check: SchemaCheck | None = None
    """The check that was run; the process beside the broker leaves it out, and whoever asked adds it."""


def text_of(schema: Any) -> str:
    """A schema given as a JSON value instead of a text."""
    return schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()


def run_check(check: SchemaCheck, *, between: Callable[[], object] = lambda: None) -> CheckResult:
    """`between` is called before each version, so that whoever runs many checks can let others go first."""
    try:
        text = _normalized(check) if check.normalize else check.text
        parsed = _parse(check.schema_type, text, check.references)
        differences = []
        for old in check.against:
            between()
            if (found := _compared(check, old)) is not None:
                differences.append(found)
    except InvalidSchema as error:
        return CheckResult(refusal=str(error), path=error.path, check=check)
    except BudgetExceeded as error:
        is_large = isinstance(error, TooLarge)
        return CheckResult(refusal=str(error), is_budget=True, is_large=is_large, check=check)
    breaks_by = {f"{one.role} {one.schema_hash}": _breaks(check, one) for one in check.attached}
    broken = {who: breaks for who, breaks in breaks_by.items() if breaks is not None}
    return CheckResult(text=text, schema_hash=parsed.hash, differences=differences, broken=broken, check=check)


def _breaks(check: SchemaCheck, attached: Attached) -> bool | None:
    """A consumer breaks by what the new schema lets others write; a producer's data by what it refuses."""
    if attached.schema_type != check.schema_type:
        return True
    new, present = (check.text, check.references), (attached.text, attached.references)
    written, read = (new, present) if attached.role == "consumer" else (present, new)
    try:
        return bool(_compare(check.schema_type, "BACKWARD", written, read))
    except BudgetExceeded:
        return None


def _compared(check: SchemaCheck, old: Against) -> VersionDifferences | None:
    """What is in the way of one version; None when nothing is."""
    if old.schema_type != check.schema_type:
        message = f"the schema type changed from {old.schema_type} to {check.schema_type}"
        return VersionDifferences(version=old.version, differences=[Difference("SCHEMA_TYPE_CHANGED", "", message)])
    level = check.level.removesuffix("_TRANSITIVE")
    found = _compare(check.schema_type, level, (old.text, old.references), (check.text, check.references))
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


def _normalized(check: SchemaCheck) -> str:
    references: Mapping[str, str] = dict(check.references)
    normalized: str = _module(check.schema_type).normalize(check.text, references)
    return normalized


def _module(schema_type: SchemaType) -> ModuleType:
    """Imported on first use: each brings a library that most processes never need."""
    return import_module(_MODULES[schema_type])


def preload() -> None:
    """Import every format now, so that no check pays for it."""
    for name in _MODULES.values():
        import_module(name)
