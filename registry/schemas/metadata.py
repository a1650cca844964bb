"""What a new version gets besides what its author wrote: metadata and rules of the config and of the version before.

`default…` of the config, then the author's own (or, where there is none, that of the newest version), then `override…`:
what comes later wins, entry by entry.
"""

from typing import Any

from registry.records import SchemaConfig, SchemaVersion

Document = dict[str, Any] | None
RULE_LISTS = ("migrationRules", "domainRules", "encodingRules")


def effective_metadata(config: SchemaConfig, own: Document, newest: SchemaVersion | None) -> Document:
    if own is None and newest is not None:
        own = newest.metadata
    return _metadata(_metadata(config.default_metadata, own), config.override_metadata)


def effective_rules(config: SchemaConfig, own: Document, newest: SchemaVersion | None) -> Document:
    if own is None and newest is not None:
        own = newest.rule_set
    return _rules(_rules(config.default_rule_set, own), config.override_rule_set)


def _metadata(old: Document, new: Document) -> Document:
    """Properties one by one, tags and what is sensitive as sets."""
    if old is None or new is None:
        return old if new is None else new
    merged = old | new
    if isinstance(old.get("properties"), dict) and isinstance(new.get("properties"), dict):
        merged["properties"] = old["properties"] | new["properties"]
    if isinstance(old.get("tags"), dict) and isinstance(new.get("tags"), dict):
        tags = old["tags"] | new["tags"]
        merged["tags"] = {path: _union(old["tags"].get(path), tags[path]) for path in tags}
    if "sensitive" in merged:
        merged["sensitive"] = _union(old.get("sensitive"), merged["sensitive"])
    return merged


def _rules(old: Document, new: Document) -> Document:
    """Rules of one name replace each other."""
    if old is None or new is None:
        return old if new is None else new
    merged = old | new
    for name in RULE_LISTS:
        before, after = old.get(name), new.get(name)
        if isinstance(before, list) and isinstance(after, list):
            replaced = [_name(rule) for rule in after]
            merged[name] = [rule for rule in before if _name(rule) not in replaced] + after
    return merged


def _name(rule: Any) -> Any:
    return rule.get("name") if isinstance(rule, dict) else None


def _union(old: Any, new: Any) -> Any:
    if isinstance(old, list) and isinstance(new, list):
        return old + [value for value in new if value not in old]
    return new
