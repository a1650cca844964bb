"""A defect in the broker itself: one request pays for it, nobody else."""

from collections.abc import Callable
from typing import Any

import pytest

from registry import replies
from tests.conftest import QUICK
from tests.integration.harness import Embedded, Listener, Peer, hub_of, producer

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_half_a_change_is_undone_and_the_request_is_answered(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = replies.ChannelCreated

    def broken(**fields: Any) -> replies.Reply:
        """The reply is made last, after all changes."""
        if fields["channel"] == "half":
            raise ZeroDivisionError
        return real(**fields)

    monkeypatch.setattr(replies, "ChannelCreated", broken)
    broker = embedded(**QUICK)
    with Peer(broker.endpoint) as peer, Listener(broker.endpoint, b"channel/") as listener, hub_of(broker) as hub:
        registration = hub.register_producer("before", schema_hash="h", required=True)
        for count in range(1, 4):
            refused = peer.ask({"type": "CHANNEL_CREATE", "channel": "half", "id": "d"})
            assert (refused["code"], refused["id"]) == ("INTERNAL_ERROR", "d")
            assert "ZeroDivisionError" in refused["message"]
            assert peer.counter("internal_errors") == count
            assert set(peer.snapshot()) == {"before", *(f"after{number}" for number in range(1, count))}
            assert peer.ask({"type": "CHANNEL_CREATE", "channel": f"after{count}"})["type"] == "CHANNEL_CREATE_ACK"
        assert registration
        heard = [listener.event()[1] for _ in range(5)]
        assert [event["channel"] for event in heard] == ["before", "before", "after1", "after2", "after3"]
        revisions = [event["revision"] for event in heard]
        assert revisions == sorted(set(revisions))
        assert peer.ask(producer("last"))["type"] == "PRODUCER_REGISTER_ACK"
