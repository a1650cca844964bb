"""Rule sets that no client could execute are refused, with a schema and in the config."""

from typing import Any

import pytest

from registry.errors import InvalidRequest, InvalidRuleSet
from tests.registry.driving import Driver

RULE = {"name": "mask", "kind": "TRANSFORM", "type": "CEL_FIELD", "mode": "WRITEREAD"}
UPGRADE = {"name": "up", "kind": "TRANSFORM", "type": "JSONATA", "mode": "UPGRADE", "expr": "$"}
WRONG: dict[str, tuple[Any, str]] = {
    "kind": ({"domainRules": [RULE | {"kind": "TRANSLATE"}]}, "kind is one of TRANSFORM, CONDITION"),
    "mode": ({"domainRules": [RULE | {"mode": "SOMETIMES"}]}, "mode is one of UPGRADE"),
    "type": ({"domainRules": [RULE | {"type": "COBOL"}]}, "type is one of CEL"),
    "no type": ({"domainRules": [{"name": "mask"}]}, "required field `type`"),
    "no name": ({"domainRules": [{"type": "CEL"}]}, "required field `name`"),
    "empty name": ({"domainRules": [RULE | {"name": ""}]}, "length >= 1"),
    "one name twice": ({"domainRules": [RULE, RULE | {"expr": "x"}]}, "two rules named 'mask'"),
    "domain rule among migration rules": ({"migrationRules": [RULE]}, "those of migrationRules are UPGRADE"),
    "default mode among migration rules": ({"migrationRules": [{"name": "x", "type": "CEL"}]}, "has mode WRITEREAD"),
    "migration rule among domain rules": ({"domainRules": [UPGRADE]}, "those of domainRules are WRITE"),
    "migration rule among encoding rules": ({"encodingRules": [UPGRADE]}, "those of encodingRules are WRITE"),
    "unknown list": ({"otherRules": []}, "unknown field `otherRules`"),
    "no list": ({"domainRules": RULE}, "Expected `array"),
    "params that are no texts": ({"domainRules": [RULE | {"params": {"a": 1}}]}, "Expected `str`"),
}
RIGHT: list[dict[str, Any]] = [
    {},
    {"domainRules": None, "migrationRules": []},
    {"domainRules": [RULE], "migrationRules": [UPGRADE, UPGRADE | {"name": "down", "mode": "DOWNGRADE"}]},
    {"domainRules": [{"name": "mask", "type": "CEL"}], "encodingRules": [RULE | {"type": "ENCRYPT_PAYLOAD"}]},
]


@pytest.mark.parametrize(("rules", "said"), WRONG.values(), ids=WRONG)
def test_wrong_rule_set_is_refused_with_a_schema_and_in_the_config(hub: Driver, rules: Any, said: str) -> None:
    with_schema = hub.refused(InvalidRuleSet, "SCHEMA_REGISTER", subject="s", schema=True, rule_set=rules)
    assert said in with_schema.message
    for name in ("default_rule_set", "override_rule_set"):
        for subject in ("s", None):
            refusal = hub.refused(InvalidRuleSet, "SCHEMA_CONFIG_SET", subject=subject, config={name: rules})
            assert said in refusal.message


@pytest.mark.parametrize("rules", RIGHT)
def test_right_rule_set_is_kept_as_it_was_said(hub: Driver, rules: Any) -> None:
    hub.ask("SCHEMA_REGISTER", subject="s", schema=True, rule_set=rules)
    assert hub.ask("SCHEMA_REQUEST", subject="s").schema.rule_set == rules
    hub.ask("SCHEMA_CONFIG_SET", subject="t", config={"default_rule_set": rules})
    assert hub.ask("SCHEMA_CONFIG_REQUEST", subject="t").config.default_rule_set == rules


@pytest.mark.parametrize("name", ["alias", "compatibility_group"])
def test_config_that_would_have_no_effect_is_refused(hub: Driver, name: str) -> None:
    refusal = hub.refused(InvalidRequest, "SCHEMA_CONFIG_SET", subject="s", config={name: "x"})
    assert refusal.details == {"field": name}
    assert "not supported" in refusal.message
    hub.ask("SCHEMA_CONFIG_SET", subject="s", config={"normalize": True}, unset=[name])
