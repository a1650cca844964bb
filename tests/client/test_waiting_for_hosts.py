"""When a consumer calls another host missing, and when reading raises."""

import pytest

from messagehub.channels.consumer import missing_hosts
from messagehub.channels.consumer.missing_hosts import MissingHosts
from messagehub.shm.errors import BlockOnOtherHost

AWAY = BlockOnOtherHost("block", "alpha", "beta", "its gateway does not answer")


@pytest.fixture
def missing() -> MissingHosts:
    return MissingHosts("c", "skip")


def test_a_host_that_was_missing_when_the_consumer_was_made_is_waited_for_before_reading_raises(
    missing: MissingHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing.note([AWAY], is_served=True, is_made=False)
    assert list(missing.why) == ["alpha"]
    missing.note([AWAY], is_served=False, is_made=True)  # what else there was to read has ended
    assert list(missing.why) == ["alpha"]
    monkeypatch.setattr(missing_hosts, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(BlockOnOtherHost, match="its gateway does not answer"):
        missing.note([AWAY], is_served=False, is_made=True)
    missing.note([], is_served=False, is_made=True)
    assert (missing.why, missing.is_due()) == ({}, False)


def test_a_host_whose_stream_was_waited_for_is_not_waited_for_again(missing: MissingHosts) -> None:
    missing.note([AWAY], is_served=False, is_made=True)  # a new stream could not be opened just now
    assert missing.why == {}
    assert not missing.skips(AWAY, is_served=False)
    with pytest.raises(BlockOnOtherHost):
        missing.note([AWAY], is_served=False, is_made=True)


def test_a_consumer_that_finds_nothing_else_is_not_made(missing: MissingHosts) -> None:
    with pytest.raises(BlockOnOtherHost):
        missing.note([AWAY], is_served=False, is_made=False)
