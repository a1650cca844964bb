"""Data between users of one group: each is a process of another user, with the group as a supplementary one."""

import grp
import io
import json
import os
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer import Exit
from typer.testing import CliRunner

from messagehub import MessageHub, embedded_broker
from messagehub.cli import app
from messagehub.cli.doctor import doctor
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.location import directory_of, shared_with
from messagehub.shm.errors import NotInGroup, RingFull
from messagehub.shm.rings.ring import describe
from tests.conftest import QUICK
from tests.integration.harness import PATIENCE_SECONDS, Served, checked_broker, eventually
from tests.shm.children import die_with_parent, fork, wait

GID = 1
ALICE, BOB, CAROL, OUTSIDER = 54321, 54322, 54323, 54324
TABLE = pa.table({"n": list(range(50_000))})
pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming other users needs root"),
]


class Person:
    """The test's end of a process of another user."""

    def __init__(self, pid: int, link: Connection) -> None:
        self.pid = pid
        self.tell = link.send
        self._link = link

    def says(self) -> Any:
        assert self._link.poll(PATIENCE_SECONDS), "it says nothing"
        return self._link.recv()


def warm(place: Path) -> None:
    """What the work imports, loaded before a user comes who may not read our Python."""
    with checked_broker(**QUICK) as endpoint, MessageHub(dir=place / "warm", endpoint=endpoint) as hub:
        hub.publish_table("warm.table", TABLE)
        with hub.producer("warm") as producer, hub.consumer("warm", start="oldest") as consumer:
            producer.write(b"x")
            consumer.read(PATIENCE_SECONDS)
        with hub.subscribe("warm.>") as subscription:
            hub.publish("warm.x", TABLE)
            assert subscription.receive(PATIENCE_SECONDS).payload.equals(TABLE)


@contextmanager
def person(uid: int, work: Callable[[Connection], object], *groups: int) -> Iterator[Person]:
    ours, theirs = Pipe()

    def run() -> None:
        ours.close()
        os.setgroups(groups)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os.umask(0o077)
        die_with_parent()
        work(theirs)

    pid = fork(run)
    theirs.close()
    ended = False
    try:
        yield Person(pid, ours)
        ended = True
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
        ours.close()
        code = wait(pid)
        if ended:
            assert code in (0, -signal.SIGKILL), f"user {uid} failed"


@pytest.fixture(params=["broker", "files"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The directory of a group's hub, whose broker runs, or has run."""
    with group_hub(tmp_path) as (directory, server):
        if request.param == "files":
            server.stop()
        yield directory


@contextmanager
def group_hub(tmp_path: Path, **settings: Any) -> Iterator[tuple[Path, Served]]:
    """Not below pytest's own directory, which the next run of pytest closes to other users."""
    warm(tmp_path)
    with tempfile.TemporaryDirectory(prefix="messagehub-group-") as place:
        os.chmod(place, 0o711)
        directory = Path(place) / "hub"
        directory.mkdir(mode=0o750)
        os.chown(directory, -1, GID)
        with Served(directory, "--group", grp.getgrgid(GID).gr_name, "--no-http", **QUICK | settings) as server:
            yield directory, server


def mapped_file(array: Any) -> str:
    """The file behind the memory of an Arrow column or a buffer."""
    address = array.chunk(0).buffers()[1].address if isinstance(array, pa.ChunkedArray) else array
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            if first <= address < last:
                return line.split(maxsplit=5)[-1].strip()
    return ""


def test_a_member_reads_rings_and_tables_of_another(shared: Path) -> None:
    def produce(link: Connection) -> None:
        with MessageHub(dir=shared) as hub:
            hub.publish_table("t", TABLE)
            with hub.producer("x", capacity=2, when_full="block") as producer:
                producer.write(b"1")
                producer.write(b"2")
                link.send((producer.source, producer.shm_name))
                assert link.recv() == "full?"
                with pytest.raises(RingFull):
                    producer.write(b"3", timeout=0.0)  # the reader of another user is waited for
                link.send("full")
                assert link.recv() == "more"
                producer.write(b"3", timeout=PATIENCE_SECONDS)
                assert link.recv() == "end"

    def consume(link: Connection) -> None:
        with MessageHub(dir=shared) as hub:
            with hub.consumer("t", start="oldest") as tables:
                table = tables.read(PATIENCE_SECONDS)
                link.send((table.equals(TABLE), tables.source, mapped_file(table["n"])))
            with hub.consumer("x", start="oldest") as consumer:
                link.send(describe(directory_of(hub.settings).exclusive_block("x"))[1]["readers"])
                assert link.recv() == "read"
                link.send([bytes(consumer.read(PATIENCE_SECONDS)), bytes(consumer.read(PATIENCE_SECONDS))])
                link.send(bytes(consumer.read(PATIENCE_SECONDS)))  # asleep until the other user rings

    source = "broker" if (shared / "broker.sock").exists() else "files"
    place = f"/messagehub@{GID}/{os.environ['MESSAGEHUB_DOMAIN']}/channels"
    with person(ALICE, produce, GID) as alice:
        assert alice.says() == (source, f"{place}/x/_exclusive.ring")
        with person(BOB, consume, GID) as bob:
            is_equal, found_by, mapped = bob.says()
            assert (is_equal, found_by) == (True, source)
            assert mapped.startswith(f"/dev/shm{place}/t/tables/")
            assert bob.says() == 1, "the writer sees one reader"
            alice.tell("full?")
            assert alice.says() == "full"
            bob.tell("read")
            assert bob.says() == [b"1", b"2"]
            alice.tell("more")
            assert bob.says() == b"3"
        alice.tell("end")
    for here, below, files in os.walk(f"/dev/shm{place}"):
        for name in (*below, *files):
            found = os.lstat(os.path.join(here, name))
            wanted = 0o2770 if stat.S_ISDIR(found.st_mode) else 0o660
            assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (GID, wanted), name


def test_who_is_not_in_the_group_gets_a_permission_error_and_nothing_else(shared: Path) -> None:
    settings = Settings.load(dir=shared)

    def knock(link: Connection) -> None:
        for attempt in (lambda: MessageHub(dir=shared), lambda: MessageHub(settings), lambda: directory_of(settings)):
            try:
                attempt()
                link.send("in")
            except (ConfigurationError, NotInGroup) as error:
                link.send(error.message)
        link.send([os.access(f"/dev/shm/messagehub@{GID}", right) for right in (os.R_OK, os.W_OK, os.X_OK)])

    with MessageHub(dir=shared) as hub, hub.producer("x") as producer:
        producer.write(b"secret")
    with person(OUTSIDER, knock) as outsider:
        assert all("ermission denied" in outsider.says() for _ in range(3))
        assert outsider.says() == [False, False, False]


def test_a_killed_producer_is_noticed_cleaned_and_succeeded_by_another_member(shared: Path) -> None:
    def produce(link: Connection) -> None:
        with MessageHub(dir=shared) as hub, hub.producer("x") as producer:
            link.send(producer.write(b"of alice"))
            link.recv()

    def succeed(link: Connection) -> None:
        with MessageHub(dir=shared) as hub:
            with hub.producer("x") as producer:
                link.send(producer.write(b"of bob"))
            hub.publish_table("t", TABLE)
            done = clean(directory_of(hub.settings), now=0.0, linger_seconds=-1.0)
            link.send((done.producers, len(done.blocks), done.flaws))

    with MessageHub(dir=shared) as hub:
        with person(ALICE, produce, GID) as alice:
            assert alice.says() == 1
            eventually(lambda: (found := hub.discover("x")) is not None and found.is_active)
            os.kill(alice.pid, signal.SIGKILL)
        eventually(lambda: (found := hub.discover("x")) is None or not found.is_active)
    with person(BOB, succeed, GID) as bob:
        assert bob.says() == 2  # in the same ring
        assert bob.says() == (["_default"], 1, [])


def test_members_share_a_channel_as_one_consumer_group(tmp_path: Path) -> None:
    def consume(link: Connection) -> None:
        with MessageHub(dir=directory) as hub, hub.consumer("x", group="crew", start="oldest") as consumer:
            link.send("here")
            link.send(bytes(consumer.read(PATIENCE_SECONDS)))
            assert link.recv() == "both read"  # else one may read all before the other begins
            while (value := consumer.read()) is not None:
                link.send(bytes(value))
            link.send(None)

    def produce(link: Connection) -> None:
        with MessageHub(dir=directory) as hub, hub.producer("x", when_full="block", capacity=4) as producer:
            link.send("here")
            assert link.recv() == "write"
            for number in range(400):
                producer.write(b"%d" % number, timeout=PATIENCE_SECONDS)

    with group_hub(tmp_path) as (directory, _), person(CAROL, produce, GID) as carol:
        assert carol.says() == "here"
        with person(ALICE, consume, GID) as alice, person(BOB, consume, GID) as bob:
            assert (alice.says(), bob.says()) == ("here", "here")
            carol.tell("write")
            first = [alice.says(), bob.says()]
            for each in (alice, bob):
                each.tell("both read")
            read = [[one, *iter(each.says, None)] for one, each in zip(first, (alice, bob), strict=True)]
    assert {int(value) for each in read for value in each} == set(range(400))
    assert all(read)


def test_a_large_message_of_a_topic_reaches_another_member(tmp_path: Path) -> None:
    def listen(link: Connection) -> None:
        with MessageHub(dir=directory) as hub, hub.subscribe("lab.>") as subscription:
            link.send("here")
            message = subscription.receive(PATIENCE_SECONDS)
            link.send(message.payload.equals(TABLE))

    def publish(link: Connection) -> None:
        with MessageHub(dir=directory) as hub:
            hub.publish("lab.big", TABLE)
            link.recv()

    with group_hub(tmp_path) as (directory, _), person(BOB, listen, GID) as bob:
        assert bob.says() == "here"
        with person(ALICE, publish, GID) as alice:
            assert bob.says() is True
            alice.tell("end")


def test_only_a_broker_makes_a_hub_shared_and_a_private_one_takes_it_back(tmp_path: Path) -> None:
    directory = tmp_path / "hub"
    settings = Settings.load(dir=directory)
    assert shared_with(settings) is None
    with embedded_broker(dir=directory, **QUICK):
        assert shared_with(settings) is None
    for path, mode in ((directory, 0o750), (settings.lock_path, 0o640)):
        path.chmod(mode)
        os.chown(path, -1, GID)
    assert shared_with(settings) is None  # opened by hand: clients stay private, brokers refuse it
    with embedded_broker(dir=directory, group=grp.getgrgid(GID).gr_name, **QUICK):
        assert shared_with(settings) == GID
    assert shared_with(settings) == GID
    os.chown(settings.lock_path, -1, 0)
    with pytest.raises(ConfigurationError, match="belongs to group 0"):
        shared_with(settings)
    for path, mode in ((directory, 0o700), (settings.lock_path, 0o600)):
        path.chmod(mode)
    with embedded_broker(dir=directory, **QUICK):
        assert shared_with(settings) is None


def troubles(directory: Path) -> list[tuple[str, str]]:
    """What `messagehub doctor` says that needs attention."""
    with redirect_stdout(io.StringIO()) as said, suppress(Exit):
        doctor(dir=directory, as_json=True)
    findings = json.loads(said.getvalue())["findings"]
    return [(each["check"], each["message"]) for each in findings if each["severity"] in ("warning", "error")]


def test_doctor_tells_a_member_that_all_is_fine_and_what_is_too_loose(tmp_path: Path) -> None:
    def diagnose(link: Connection) -> None:
        while link.recv() == "look":
            link.send(troubles(directory))

    with group_hub(tmp_path) as (directory, _), MessageHub(dir=directory) as hub:
        troubles(directory)  # loads what the member may not read
        hub.publish_table("t", TABLE)
        place = Path(directory_of(hub.settings).path)
        with person(BOB, diagnose, GID) as bob:
            bob.tell("look")
            assert [found for found in bob.says() if found[0] in ("directory", "blocks", "database", "broker")] == []
            place.chmod(0o2775)
            bob.tell("look")
            assert any(check == "blocks" and "open to others" in message for check, message in bob.says())
            bob.tell("end")


def test_the_owner_purges_a_stopped_hub_and_what_members_left_in_shared_memory(tmp_path: Path) -> None:
    def produce(link: Connection) -> None:
        with MessageHub(dir=directory) as hub:
            hub.publish_table("lab.table", TABLE)
        link.send("done")

    with group_hub(tmp_path) as (directory, server):
        with person(ALICE, produce, GID) as alice:
            assert alice.says() == "done"
        server.stop()
        domain = Path(directory_of(Settings.load(dir=directory)).path).parent
        assert domain.is_dir()
        asked = CliRunner().invoke(app, ["purge", "--dir", str(directory)], input="n\n")
        assert f"of group {GID}" in asked.stderr
        assert domain.is_dir()
        done = CliRunner().invoke(app, ["purge", "--yes", "--dir", str(directory)])
        assert done.exit_code == 0, done.stderr
        assert not domain.exists()
        assert not (directory / "registry.db").exists()


def said_to(directory: Path, *command: str) -> str:
    """What a command that must fail says."""
    done = CliRunner().invoke(app, [*command, "--dir", str(directory)])
    assert done.exit_code == 1, (command, done.exit_code, done.output)
    assert "remove" not in done.output
    assert "move it away" not in done.output
    assert "Errno" not in done.output
    return done.output


def test_what_only_the_owner_may_do_is_refused_to_a_member_as_permission_denied(tmp_path: Path) -> None:
    commands = (["tokens", "list"], ["keys", "list"], ["backup", str(tmp_path / "copy")], ["stop"])

    def ask(link: Connection) -> None:
        link.send([said_to(directory, *command) for command in commands])

    def ask_status(link: Connection) -> None:
        link.send([said_to(directory, "status"), CliRunner().invoke(app, ["doctor", "--dir", str(directory)]).output])

    def lack_a_right(link: Connection) -> None:
        link.send(said_to(directory, "schemas", "config", "--mode", "READONLY"))

    with group_hub(tmp_path) as (directory, server):
        for command in (
            ["tokens", "new", "ci", "--role", "observe"],
            ["keys", "list"],
            ["status"],
            ["doctor"],
            ["schemas", "config"],
        ):
            CliRunner().invoke(app, [*command, "--dir", str(directory)])
        CliRunner().invoke(app, ["stop", "--dir", str(tmp_path)])
        CliRunner().invoke(app, ["backup", str(tmp_path / "first"), "--dir", str(directory)])
        with person(BOB, ask, GID) as bob:
            for said in bob.says():
                assert "permission denied" in said
                assert "root" in said
        with person(BOB, lack_a_right, GID) as bob:
            assert "group_roles in its messagehub.toml" in bob.says()
        with person(OUTSIDER, ask_status) as outsider:
            for said in outsider.says():
                assert "permission denied" in said
                assert "group" in said
                assert "chmod 700" not in said
        (directory / "messagehub.toml").write_text("")
        (directory / "messagehub.toml").chmod(0o600)
        with person(BOB, ask_status, GID) as bob:
            assert all("chmod 640" in said and "chmod 700" not in said for said in bob.says())
        server.stop()


def test_an_entry_in_the_directory_gives_no_right_that_the_door_would_refuse(tmp_path: Path) -> None:
    def produce(link: Connection) -> None:
        """Past the broker: this client finds none."""
        past = f"ipc://{tmp_path}/none.sock"
        with MessageHub(dir=directory, endpoint=past) as hub, hub.producer("a.x"), hub.producer("b.x") as producer:
            link.send(producer.source)
            link.recv()

    with (
        group_hub(tmp_path, group_roles="consume produce:a.*") as (directory, _),
        MessageHub(dir=directory) as hub,
        person(ALICE, produce, GID) as alice,
    ):
        assert alice.says() == "files"
        eventually(lambda: (found := hub.describe("a.x")) is not None and found.channel.producers)
        shown = eventually(lambda: found if (found := hub.describe("b.x")) and found.channel.conflict else None)
        assert not shown.channel.producers
        assert "produce" in shown.channel.conflict
        alice.tell("end")
        noted = [json.loads(line) for line in (directory / "audit.log").read_text().splitlines()]
        assert sorted((entry["event"], entry["who"], entry["name"]) for entry in noted) == [
            ("changed", f"user:{ALICE}", "a.x"),
            ("refused", f"user:{ALICE}", "b.x"),
        ]
