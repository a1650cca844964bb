"""What a hub gives as the answer to a discovery is all that the registry said."""

import msgspec
import pytest

from messagehub.discovery import Discovery
from registry.replies import Discovered, VersionDifferences

REQUIRED = {"channel": "c", "shm_name": "/s", "schema_hash": "h", "schema_version": "1", "status": "active"}


def test_an_answer_has_every_field_of_the_reply() -> None:
    assert {*Discovery.__struct_fields__} == {*Discovered.__struct_fields__, "source"} - {"id"}


@pytest.mark.parametrize("name", [name for name in Discovered.__struct_fields__ if name != "id"])
def test_each_field_of_the_reply_is_taken_over(name: str) -> None:
    said = [VersionDifferences(version=1, differences=[])] if name == "differences" else object()
    reply = Discovered(**REQUIRED | {name: said})  # type: ignore[arg-type]
    found = Discovery.of(reply, "broker")
    assert getattr(found, name) is said
    others = [other for other in REQUIRED if other != name]
    assert [getattr(found, other) for other in others] == [REQUIRED[other] for other in others]


def test_what_was_not_asked_for_is_not_said() -> None:
    found = Discovery.of(Discovered(**REQUIRED), "files")  # type: ignore[arg-type]
    assert (found.compatible, found.differences, found.source) == (None, [], "files")
    assert found == Discovery(**REQUIRED, source="files")  # type: ignore[arg-type]
    assert msgspec.UNSET not in msgspec.structs.astuple(found)
