"""An argument that would have no effect is refused, before anybody is asked."""

from collections.abc import Callable
from pathlib import Path

import pytest

from messagehub import MessageHub
from messagehub.errors import ConfigurationError


@pytest.mark.parametrize(
    "ask",
    [
        lambda hub: hub.topic("t", replace=True),
        lambda hub: hub.schema("s", schema_id=1),
        lambda hub: hub.schema(schema_id=1, schema_hash="h"),
        lambda hub: hub.schema(schema_id=1, version=2),
        lambda hub: hub.schema(),
    ],
    ids=["replace", "subject and id", "id and hash", "version of an id", "nothing"],
)
def test_argument_without_effect_is_refused(tmp_path: Path, ask: Callable[[MessageHub], object]) -> None:
    with MessageHub(dir=tmp_path) as hub, pytest.raises(ConfigurationError):
        ask(hub)
