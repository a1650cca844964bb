"""The checks of a storm over a site, with histories that are made up: each broken promise is seen, and named."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.chaos.history import History, Writer
from tests.site.storm import checker

HOSTS = ("anna", "bert")
SUBJECT = "storm.anna"


class Told:
    """A history of what two hosts saw, which a test adds to."""

    def __init__(self, directory: Path) -> None:
        self.history = History(directory)
        self._writers: dict[tuple[str, int], Writer] = {}

    def note(self, role: str, what: str, *, process: int = 1, **details: object) -> None:
        if (role, process) not in self._writers:
            self._writers[role, process] = Writer(self.history.next_file(role), role)
        self._writers[role, process].note(what, **{"host": "anna", "pid": process, **details})

    def schema(self, version: int, *, schema_id: int, title: str, on: tuple[str, ...] = HOSTS) -> None:
        """A schema that was acknowledged, and is found on some hosts."""
        what = {"subject": SUBJECT, "version": version, "id": schema_id, "title": title}
        self.note("write", "asks", title=title)
        self.note("write", "schema", **what)
        for host in on:
            self.note("collect", "kept_schema", host=host, **what)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    """Histories that keep all promises."""
    made = Told(tmp_path / "history")
    made.schema(1, schema_id=1, title="a")
    made.note("write", "channel", channel="declared.a")
    for host in HOSTS:
        made.note("collect", "kept_channel", host=host, channel="declared.a")
        made.note("collect", "collected", host=host)
        made.note("watch", "event", process=HOSTS.index(host), host=host, revision=1, type="SCHEMA_REGISTERED", crc=7)
    made.note("write", "read", subject=SUBJECT, version=1, id=1)
    made.note("write", "answered", asked="read", began_at=time.time())
    for role, what in (("consume", "got"), ("talk", "heard")):
        made.note(role, what, of="bert", writer_pid=9, number=3, missing=2, counted=2)
    yield made
    made.close()


def test_histories_that_keep_all_promises_pass(told: Told) -> None:
    told.schema(2, schema_id=2, title="b")
    assert checker.no_acknowledged_write_is_lost(told.history, HOSTS) == {"schemas": 2, "channels": 1}
    assert checker.nothing_is_given_twice(told.history) == {"events": 1}
    assert checker.reads_never_go_back(told.history) == 1
    assert checker.data_is_right(told.history) == {"missed, of what was got": 2, "missed, of what was heard": 2}
    assert checker.every_call_ends_in_time(told.history) < 1.0


def test_an_acknowledged_schema_that_one_hub_lacks_is_seen(told: Told) -> None:
    told.schema(2, schema_id=2, title="b", on=("anna",))
    with pytest.raises(AssertionError, match=r"version 2 of storm\.anna was acknowledged .*'b'; bert has None"):
        checker.no_acknowledged_write_is_lost(told.history, HOSTS)


def test_an_acknowledged_channel_that_is_lost_is_seen(told: Told) -> None:
    told.note("write", "channel", channel="declared.b")
    with pytest.raises(AssertionError, match=r"anna lacks 1 of 2 channels, the first is declared\.b"):
        checker.no_acknowledged_write_is_lost(told.history, HOSTS)


def test_hubs_that_have_different_schemas_are_seen(told: Told) -> None:
    told.note("collect", "kept_schema", host="bert", subject=SUBJECT, version=2, id=2, title="a")
    with pytest.raises(AssertionError, match="bert and anna have different schemas"):
        checker.no_acknowledged_write_is_lost(told.history, HOSTS)


def test_a_schema_that_nobody_registered_is_seen(told: Told) -> None:
    for host in HOSTS:
        told.note("collect", "kept_schema", host=host, subject=SUBJECT, version=2, id=2, title="b")
    with pytest.raises(AssertionError, match="nobody registered b"):
        checker.no_acknowledged_write_is_lost(told.history, HOSTS)


def test_a_history_in_which_nothing_was_acknowledged_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nothing was acknowledged"):
        checker.no_acknowledged_write_is_lost(History(tmp_path), HOSTS)


def test_a_schema_id_that_was_given_twice_is_seen(told: Told) -> None:
    told.schema(2, schema_id=1, title="b")
    with pytest.raises(AssertionError, match="schema id 1 was given to 'a' and to 'b'"):
        checker.nothing_is_given_twice(told.history)


def test_a_version_that_was_given_twice_is_seen(told: Told) -> None:
    told.schema(1, schema_id=2, title="b")
    with pytest.raises(AssertionError, match=r"version 1 of storm\.anna was given to the ids 1 and 2"):
        checker.nothing_is_given_twice(told.history)


def test_a_revision_that_is_another_event_on_another_host_is_seen(told: Told) -> None:
    told.note("watch", "event", process=1, host="bert", revision=2, type="CHANNEL_DECLARED", crc=1)
    told.note("watch", "event", process=0, host="anna", revision=2, type="CHANNEL_DECLARED", crc=2)
    with pytest.raises(AssertionError, match=r"revision 2 is a CHANNEL_DECLARED at (anna|bert), and another"):
        checker.nothing_is_given_twice(told.history)


@pytest.mark.parametrize("what", ["schema", "read"])
def test_a_read_that_goes_back_behind_what_was_read_or_written_is_seen(told: Told, what: str) -> None:
    told.note("write", what, subject=SUBJECT, version=3, id=3, title="c")
    told.note("write", "read", subject=SUBJECT, version=2, id=2)
    with pytest.raises(AssertionError, match=r"read version 2 of storm\.anna after 3"):
        checker.reads_never_go_back(told.history)


def test_a_subject_that_is_not_there_any_more_is_seen(told: Told) -> None:
    told.note("write", "absent", subject=SUBJECT)
    with pytest.raises(AssertionError, match=r"storm\.anna is not there, after it was"):
        checker.reads_never_go_back(told.history)


def test_another_client_may_read_an_older_version(told: Told) -> None:
    told.note("write", "read", process=1, subject=SUBJECT, version=3, id=3)
    told.note("write", "read", process=2, subject=SUBJECT, version=2, id=2)
    assert checker.reads_never_go_back(told.history) == 3


def test_an_event_that_comes_twice_is_seen(told: Told) -> None:
    told.note("watch", "event", process=0, revision=1, type="SCHEMA_REGISTERED", crc=7)
    with pytest.raises(AssertionError, match="told revision 1 after 1"):
        checker.reads_never_go_back(told.history)


@pytest.mark.parametrize(("role", "what"), [("consume", "got"), ("talk", "heard")])
def test_a_loss_that_was_not_counted_is_seen(told: Told, role: str, what: str) -> None:
    told.note(role, what, of="bert", writer_pid=9, number=7, missing=5, counted=4)
    with pytest.raises(AssertionError, match=f"{role} on anna missed 5 items of bert, and 4 were counted"):
        checker.data_is_right(told.history)


@pytest.mark.parametrize("role", ["consume", "talk"])
def test_an_item_that_came_twice_is_seen(told: Told, role: str) -> None:
    told.note(role, "wrong", of="bert", writer="bert", number=3, before=3)
    with pytest.raises(AssertionError, match=f"{role} on anna got 3 of bert after 3"):
        checker.data_is_right(told.history)


def test_a_call_that_took_too_long_is_seen(told: Told) -> None:
    told.note("write", "refused", asked="register", began_at=time.time() - 60)
    with pytest.raises(AssertionError, match="register on anna took 60"):
        checker.every_call_ends_in_time(told.history)


def test_what_does_not_work_after_the_storm_is_named(told: Told) -> None:
    since = time.time() - 10
    for number, host in enumerate(HOSTS):
        told.note(
            "write", "schema", process=10 + number, host=host, subject="s", version=9, id=9, title="t", at=since + 1
        )
        told.note("watch", "event", process=10 + number, host=host, revision=9, type="T", crc=1, at=since + 1)
        told.note("produce", "wrote", process=20 + number, host=host, pid=20 + number, number=5, at=since + 1)
        told.note("talk", "published", process=30 + number, host=host, pid=30 + number, number=5, at=since + 1)
        for of in range(len(HOSTS)):
            got = {"host": host, "of": HOSTS[of], "number": 5, "missing": 0, "counted": 0, "at": since + 1}
            told.note("consume", "got", process=40 + number, writer_pid=20 + of, **got)
            if (host, of) != ("bert", 0):
                told.note("talk", "heard", process=50 + number, writer_pid=30 + of, **got)
    assert checker.who_has_not_recovered(told.history, HOSTS, since) == ["bert talks from anna"]
    told.note(
        "talk", "heard", process=51, host="bert", of="anna", writer_pid=30, number=6, missing=0, counted=0, at=since + 2
    )
    assert checker.who_has_not_recovered(told.history, HOSTS, since) == []
    assert "bert writes" in checker.who_has_not_recovered(told.history, HOSTS, since + 5)
