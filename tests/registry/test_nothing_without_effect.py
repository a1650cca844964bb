"""What a command says has an effect, or is refused."""

import pytest

from registry.errors import InvalidRequest
from tests.registry.driving import Driver


@pytest.mark.parametrize("unbound", [{"schema_version": "1"}, {"schema_type": "AVRO"}])
def test_declaration_of_a_version_or_type_without_a_schema_is_refused(hub: Driver, unbound: dict[str, str]) -> None:
    refusal = hub.refused(InvalidRequest, "CHANNEL_CREATE", channel="c", **unbound)
    assert refusal.details == {"field": next(iter(unbound))}
    hub.ask("CHANNEL_CREATE", channel="c", schema_hash="h", **unbound)
    assert getattr(hub.discover(), next(iter(unbound))) == next(iter(unbound.values()))


@pytest.mark.parametrize("address", ["service:s", "name:n", "id:w"])
def test_strategy_where_nothing_is_chosen_is_refused(hub: Driver, address: str) -> None:
    asked = {"worker_id": "w", "endpoint": "unix:@e", "key": "k", "lease": "l", "strategy": "random"}
    hub.refused(InvalidRequest, "SERVICE_REGISTER", address=address, **asked)
    hub.ask("SERVICE_REGISTER", address="pool:p", **asked)


def test_config_with_what_holds_for_all_has_every_field_of_it(hub: Driver) -> None:
    overall = {"normalize": True, "default_metadata": {"properties": {"owner": "lab"}}}
    hub.ask("SCHEMA_CONFIG_SET", config=overall)
    hub.ask("SCHEMA_CONFIG_SET", subject="s", config={"compatibility": "FULL"})
    found = hub.ask("SCHEMA_CONFIG_REQUEST", subject="s", default_to_global=True).config
    assert (found.compatibility, found.normalize) == ("FULL", True)
    assert found.default_metadata == overall["default_metadata"]
    assert hub.ask("SCHEMA_CONFIG_REQUEST", subject="s").config.normalize is None
