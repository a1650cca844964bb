"""What any peer sees of a hub, at one that follows: the tests of a hub on its own, run against it.

`make test` runs some of each kind; the others are `slow`, since each test has a site of its own.
"""

import os
from collections.abc import Iterator

import pytest

from tests.etcd_server import EtcdMember
from tests.integration import (
    test_bad_input,
    test_draft_messages,
    test_evictions,
    test_leases_end,
    test_liveness_and_events,
    test_observability,
    test_priorities_and_versions,
    test_registrations,
)
from tests.integration.block_processes import Place, place_in
from tests.site.follower import Follower, embedded, etcd_member, served, start_broker, taken

__all__ = ["embedded", "etcd_member", "served", "start_broker"]

_QUICK = {
    test_bad_input: {"test_odd_but_valid_values_are_kept_exactly"},
    test_draft_messages: {
        "test_ten_lines_of_plain_req_receive_the_fourth_draft_message_also_when_run_twice",
        "test_what_a_producer_registers_comes_back_from_discovery",
    },
    test_evictions: {"test_an_evicted_producer_ends_its_stream_and_makes_room"},
    test_leases_end: {"test_a_consumer_that_was_closed_while_its_broker_was_away_does_not_stay"},
    test_liveness_and_events: {
        "test_a_client_keeps_its_lease_alive_by_itself_and_one_heartbeat_covers_all",
        "test_members_are_told_with_their_heartbeats",
        "test_a_watchers_view_equals_the_brokers_state_after_any_churn",
        "test_what_a_client_changed_itself_it_discovers_at_once",
    },
    test_observability: {"test_reconnects_are_counted"},
    test_priorities_and_versions: {"test_found_not_ready_and_unknown_are_three_answers"},
    test_registrations: {"test_a_killed_process_has_died"},
}
_LEFT_OUT = {
    "test_both_sides_count_the_same_requests_and_errors_exactly": "a client pings a hub whose etcd takes long to write",
}

for _module, _quick in _QUICK.items():
    _here = {name: reason for name, reason in _LEFT_OUT.items() if hasattr(_module, name)}
    globals().update(taken(_module, quick=_quick, left_out=_here))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, etcd_member: EtcdMember) -> Iterator[Place]:
    """A follower that some tests share, as they do the hub on its own that they are written for."""
    with place_in(tmp_path_factory.mktemp("evict") / "hub", f"w{os.getpid()}") as made:
        follower = Follower(made.dir, etcd_member, heartbeat_seconds=0.5)
        yield made
        follower.close()
