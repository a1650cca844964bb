"""The shape of a rule set. Rules are kept for clients, which execute them; the registry runs none.

Rule 1: migration rules are for UPGRADE, DOWNGRADE or UPDOWN; domain and encoding rules for WRITE, READ or WRITEREAD.
Rule 2: a rule that names no kind is a TRANSFORM, one that names no mode is a WRITEREAD.
Rule 3: the rules of one list have different names, because a later rule set replaces rules by name.
"""

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct, field

from registry.decoding import decodable
from registry.errors import InvalidRuleSet

Migration = Literal["UPGRADE", "DOWNGRADE", "UPDOWN"]
Transfer = Literal["WRITE", "READ", "WRITEREAD"]
RuleType = Literal["CEL", "CEL_FIELD", "JSONATA", "ENCRYPT", "ENCRYPT_PAYLOAD"]
"""What the executors of the Confluent clients are called."""


class SchemaRule(Struct, rename="camel"):
    name: Annotated[str, Meta(min_length=1)]
    type: RuleType
    kind: Literal["TRANSFORM", "CONDITION"] = "TRANSFORM"
    mode: Literal[Migration, Transfer] = "WRITEREAD"
    doc: str | None = None
    tags: list[str] | None = None
    params: dict[str, str] | None = None
    expr: str | None = None
    on_success: str | None = None
    on_failure: str | None = None
    disabled: bool | None = None


@decodable
class RuleSet(Struct, rename="camel", forbid_unknown_fields=True):
    migration_rules: list[SchemaRule] | None = field(default_factory=list)
    domain_rules: list[SchemaRule] | None = field(default_factory=list)
    encoding_rules: list[SchemaRule] | None = field(default_factory=list)
    enable_at: str | None = None


def check_rule_set(document: dict[str, Any] | None) -> None:
    """Refuse what no client could execute, or would execute at another time than its author thinks."""
    if document is None:
        return
    try:
        rules = msgspec.convert(document, RuleSet)
    except msgspec.ValidationError as error:
        raise InvalidRuleSet(f"Invalid rule set: {_explained(str(error))}") from None
    _check_list("migrationRules", rules.migration_rules or [], get_args(Migration))
    _check_list("domainRules", rules.domain_rules or [], get_args(Transfer))
    _check_list("encodingRules", rules.encoding_rules or [], get_args(Transfer))


def _check_list(name: str, rules: list[SchemaRule], modes: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for rule in rules:
        if rule.mode not in modes:
            said = f"rule {rule.name!r} has mode {rule.mode}, and those of {name} are {', '.join(modes)}"
            raise InvalidRuleSet(f"Invalid rule set: {said}", rule=rule.name)
        if rule.name in seen:
            raise InvalidRuleSet(f"Invalid rule set: {name} has two rules named {rule.name!r}", rule=rule.name)
        seen.add(rule.name)


def _explained(said: str) -> str:
    """msgspec names the wrong value and its place; add what may stand there."""
    for name in ("kind", "mode", "type"):
        if f".{name}`" in said:
            return f"{said}; {name} is one of {', '.join(_ALLOWED[name])}"
    return said


_ALLOWED = {
    "kind": ("TRANSFORM", "CONDITION"),
    "mode": (*get_args(Migration), *get_args(Transfer)),
    "type": get_args(RuleType),
}
