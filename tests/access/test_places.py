"""Another user of this host, and files that are not what they should be."""

import grp
import json
import os
import pwd
import select
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from messagehub import MessageHub, embedded_broker
from messagehub.broker.instance_lock import InstanceLock
from messagehub.errors import ConfigurationError, Forbidden, HubError, InvalidName
from messagehub.security.credentials import AccessFile, KeyPair, allow_key, allow_token, server_keys
from messagehub.security.private_files import read_private, write_private
from messagehub.settings import Settings
from messagehub.shm.channel_directory.directory import Directory, component
from messagehub.shm.errors import DataBlockError
from registry import names
from tests.conftest import QUICK
from tests.integration.harness import PATIENCE_SECONDS, Peer, Served, checked_broker

pytestmark = pytest.mark.usefixtures("no_leaks")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
WORKER = {"endpoint": "unix:@x", "key": "k", "lease": "l"}
OF_THE_TEST = {"serve.log", "messagehub.toml"}
TRAVERSALS = ["../x", "..", ".", "a/../b", "/etc/passwd", "a/b", "a\0b", "", "~root", "a\nb", ".hidden", "x" * 300]


def as_nobody(work: Callable[[], list[str]], *, groups: tuple[int, ...] = ()) -> list[str]:
    """What `nobody`, who may also be in some groups, finds; in a forked child, as nobody may not read our Python."""
    nobody = pwd.getpwnam("nobody")
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(list(groups))
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            found = work()
        except Exception as error:  # noqa: BLE001  # the parent tells
            found = [repr(error)]
        os.write(sender, json.dumps(found).encode())
        os._exit(0)
    os.close(sender)
    try:
        assert select.select([receiver], [], [], PATIENCE_SECONDS)[0], "nobody is stuck"
        return list(json.loads(os.read(receiver, 1 << 20)))
    finally:
        os.close(receiver)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def connect_to(*paths: str) -> list[str]:
    found = []
    for path in paths:
        with socket.socket(socket.AF_UNIX) as tried:
            try:
                tried.connect(path)
                found.append("in")
            except OSError as error:
                found.append(type(error).__name__)
    return found


def readable(place: str) -> list[str]:
    paths = [os.path.join(root, name) for root, _, files in os.walk(place) for name in files]
    return [os.path.basename(path) for path in paths if os.access(path, os.R_OK)]


def reachable(directory: Path) -> None:
    """Let other users pass through the directories of the test run, down to the hub's own."""
    for place in directory.parents:
        if place.stat().st_uid == os.geteuid() and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o011)


@needs_root
def test_another_user_of_the_host_gets_neither_in_nor_a_byte(tmp_path: Path) -> None:
    directory = tmp_path / "hub"
    with Served(directory, **QUICK) as server, MessageHub(dir=directory) as hub:
        reachable(directory)
        with hub.producer("private.data") as producer:
            producer.write(b"secret")
            sockets = [str(path) for path in directory.glob("*.sock")]
            assert len(sockets) == 6
            assert as_nobody(lambda: connect_to(*sockets)) == ["PermissionError"] * 6
            assert as_nobody(lambda: readable(str(directory))) == []
            assert "registry.db" in readable(str(directory))
            assert any("private.data" in name for name in readable("/dev/shm"))
            assert not any("private.data" in name for name in as_nobody(lambda: readable("/dev/shm")))
        assert server.process is not None


@needs_root
def test_a_socket_outside_the_directory_is_private_too(tmp_path: Path) -> None:
    place = tmp_path / "sockets"
    place.mkdir()
    with checked_broker(dir=tmp_path / "hub", endpoint=f"ipc://{place}/hub.sock", **QUICK) as endpoint:
        reachable(place / "x")
        place.chmod(0o755)
        assert as_nobody(lambda: connect_to(f"{place}/hub.sock")) == ["PermissionError"]
        with Peer(endpoint) as peer:
            assert peer.ask({"type": "PING"})["type"] == "PONG"


def work_in_the_group(directory: Path) -> list[str]:
    with MessageHub(dir=directory) as hub:
        registration = hub.register_producer("lab.data", schema_hash="h")
        try:
            hub.create_channel("mine")
        except Forbidden as error:
            return [str(registration.source), error.code]
    return ["created"]


@needs_root
def test_members_of_the_group_may_work_and_others_stay_outside(tmp_path: Path) -> None:
    group = grp.getgrgid(1).gr_name
    directory = tmp_path / "hub"
    directory.mkdir(mode=0o750)
    os.chown(directory, -1, 1)
    with Served(directory, "--group", group, **QUICK) as server:
        reachable(directory)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o750
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
        assert {modes[name] for name in modes if name.endswith(".sock")} == {0o660}
        assert {modes["broker.json"], modes["broker.lock"]} == {0o640}
        assert modes["registry.db"] == modes["audit.log"] == 0o600
        assert as_nobody(lambda: connect_to(f"{directory}/broker.sock")) == ["PermissionError"]
        assert as_nobody(lambda: work_in_the_group(directory), groups=(1,)) == ["broker", "FORBIDDEN"]
        seen = [n for n in as_nobody(lambda: readable(str(directory)), groups=(1,)) if not n.endswith(".sock")]
        assert set(seen) <= {"broker.json", "broker.lock", "broker.sock.lock", "broker-events.sock.lock", *OF_THE_TEST}
        with Peer(server.endpoint) as peer:  # whoever runs the hub may do everything
            assert peer.ask({"type": "CHANNEL_CREATE", "channel": "x"})["type"] == "CHANNEL_CREATE_ACK"
    entries = (directory / "audit.log").read_text()
    assert f'"who":"user:{pwd.getpwnam("nobody").pw_uid}"' in entries


def test_a_group_that_is_not_there_and_a_directory_that_is_not_its_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="no group"),
        embedded_broker(dir=tmp_path / "a", group="no-such-group"),
    ):
        pytest.fail("it must not start")
    private = tmp_path / "b"
    private.mkdir(mode=0o700)
    own = grp.getgrgid(os.getegid()).gr_name
    with pytest.raises(ConfigurationError, match="chmod 750"), embedded_broker(dir=private, group=own):
        pytest.fail("it must not start")
    with (
        pytest.raises(ConfigurationError, match="with keys"),
        embedded_broker(dir=tmp_path / "c", group=own, endpoint="tcp://127.0.0.1:0"),
    ):
        pytest.fail("it must not start")


@pytest.mark.parametrize(
    "name", ["registry.db", "http.token", "access.json", "audit.log", "audit-access.log", "broker.lock", "broker.json"]
)
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o622])
def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path, name: str, mode: int) -> None:
    refuses(tmp_path, lambda path: (path.write_bytes(b""), path.chmod(mode)), name, "chmod 600")


@pytest.mark.parametrize(
    "name", ["registry.db", "http.token", "access.json", "audit.log", "audit-access.log", "broker.lock", "broker.json"]
)
def test_a_symlink_in_the_place_of_a_file_is_refused_and_its_target_left_alone(tmp_path: Path, name: str) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    target.chmod(0o600)
    refuses(tmp_path, lambda path: path.symlink_to(target), name, "symbolic link")
    assert target.read_text() == "precious"


@needs_root
@pytest.mark.parametrize("name", ["registry.db", "access.json", "broker.lock", "http.token"])
def test_a_file_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    def give_away(path: Path) -> None:
        path.write_bytes(b"")
        path.chmod(0o600)
        os.chown(path, 65534, 65534)

    refuses(tmp_path, give_away, name, "another user")


def test_settings_that_others_can_write_are_refused(tmp_path: Path) -> None:
    refuses(tmp_path, lambda path: (path.write_text(""), path.chmod(0o666)), "messagehub.toml", "open to other users")


def refuses(tmp_path: Path, make: Callable[[Path], object], name: str, saying: str) -> None:
    directory = tmp_path / "hub"
    directory.mkdir(mode=0o700)
    make(directory / name)
    with pytest.raises(ConfigurationError, match=saying), embedded_broker(dir=directory, **QUICK):
        pytest.fail("it must not start")


def test_private_files_are_neither_followed_nor_left_half_written(tmp_path: Path) -> None:
    target = tmp_path / "target"
    write_private(target, b"x")
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        read_private(link)
    write_private(link, b"y")
    assert (target.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"x", b"y", False)
    with pytest.raises(FileExistsError):
        write_private(target, b"z", replace=False)
    assert {path.name for path in tmp_path.iterdir()} == {"target", "link"}
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    with pytest.raises(ConfigurationError, match="regular file"):
        read_private(fifo)


def test_a_damaged_list_stops_a_start_and_while_running_the_last_good_one_stays(tmp_path: Path) -> None:
    from tests.access.shared import SharedHub

    shared = SharedHub(tmp_path / "hub")
    with shared.running(), shared.peer("boss") as peer:
        assert peer.ask({"type": "PING"})["type"] == "PONG"
        write_private(shared.access.path, b'{"keys": ')
        for _ in range(20):
            assert peer.ask({"type": "PING"})["type"] == "PONG"
    with pytest.raises(ConfigurationError, match="damaged"), shared.running():
        pytest.fail("it must not start")


@pytest.mark.parametrize("name", TRAVERSALS)
def test_no_name_leads_out_of_its_place(tmp_path: Path, name: str) -> None:
    """Every name that becomes a path: keys, tokens, channels, members, shared memory, blocks, domains."""
    access = AccessFile(tmp_path / "hub" / "access.json")
    server = server_keys(tmp_path / "hub" / "keys").public
    with pytest.raises(InvalidName):
        allow_key(access, name, KeyPair.new(server).public, ["admin"])
    with pytest.raises(InvalidName):
        allow_token(access, name, ["admin"])
    with pytest.raises(InvalidName):
        names.check_channel(name)
    with pytest.raises(InvalidName):
        names.check_role("producer", name)
    if name != "x" * 300:
        with pytest.raises(InvalidName):
            names.check_shm(f"/{name}" if name != "a/b" else "a/b") if name not in ("~root", "a\nb", ".hidden") else (
                names.check_shm(name)
            )
    for take in (component, Directory):
        with pytest.raises(DataBlockError):
            take(name)
    assert {path.name for path in (tmp_path / "hub").iterdir()} <= {"keys", "access.lock"}


@pytest.mark.parametrize("name", [name for name in TRAVERSALS if "\0" not in name])
def test_no_name_that_a_peer_sends_leads_out(name: str) -> None:
    with checked_broker(**QUICK) as endpoint, Peer(endpoint) as peer:
        for message in (
            {"type": "PRODUCER_REGISTER", "channel": name, "schema_hash": "h"},
            {"type": "PRODUCER_REGISTER", "channel": "c", "producer_id": name or "..", "schema_hash": "h"},
            {"type": "PRODUCER_REGISTER", "channel": "c", "shm_name": f"/../{name}", "schema_hash": "h"},
            {"type": "PRODUCER_REGISTER", "channel": "c", "schema_hash": "h", "shm_name": f"../{name}"},
            {"type": "CONSUMER_REGISTER", "channel": name, "consumer_id": "r"},
            {"type": "CHANNEL_CREATE", "channel": name},
            {"type": "TOPIC_KEEP", "topic": name},
            {"type": "SERVICE_REGISTER", "address": f"service:{name}", "worker_id": "w", **WORKER},
            {"type": "SERVICE_REGISTER", "address": "service:s", "worker_id": name, **WORKER},
        ):
            assert peer.ask(message)["code"] in ("INVALID_NAME", "INVALID_REQUEST"), message
        assert peer.snapshot() == {}
        peer.ask({"type": "PRODUCER_REGISTER", "channel": "c", "schema_hash": "h"})
        for message in (
            {"type": "CONSUMER_REGISTER", "channel": "c", "consumer_id": name},
            {"type": "CONSUMER_REGISTER", "channel": "c", "consumer_id": "r", "group": name},
        ):
            assert peer.ask(message)["code"] in ("INVALID_NAME", "INVALID_REQUEST"), message


@pytest.mark.parametrize("name", ["../x", "..", "a/../b", "/etc/passwd", ".hidden"])
def test_a_subject_may_be_any_text_because_it_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    with checked_broker(dir=tmp_path / "hub", **QUICK) as endpoint, Peer(endpoint) as peer:
        before = sorted(path.name for path in tmp_path.rglob("*"))
        registered = peer.ask({"type": "SCHEMA_REGISTER", "subject": name, "schema": {"type": "object"}})
        assert registered["type"] == "SCHEMA_REGISTER_ACK"
        assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_broker_is_not_fooled_by_a_squatter_below_tmp(tmp_path: Path) -> None:
    """The stand-in place of sockets whose directory has too long a name."""
    if os.geteuid() != 0:
        pytest.skip("giving a directory away needs root")

    def take(directory: Path) -> None:
        InstanceLock(Settings.load(dir=tmp_path / "hub", endpoint=f"ipc://{directory}/b.sock"))

    squatted = tmp_path / "squatted"
    (squatted / "hash").mkdir(parents=True)
    os.chown(squatted, 65534, 65534)
    with pytest.raises(ConfigurationError, match="another user"):
        take(squatted / "hash")
    own = tmp_path / "own"
    (own / "hash").mkdir(parents=True)
    planted = tmp_path / "planted"
    planted.symlink_to(own)
    os.lchown(planted, 65534, 65534)
    with pytest.raises(ConfigurationError, match="another user"):
        take(planted / "hash")


@needs_root
def test_a_directory_that_is_another_users_link_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(own)
    with checked_broker(dir=link, **QUICK) as endpoint, Peer(endpoint) as peer:
        assert peer.ask({"type": "PING"})["type"] == "PONG"  # one's own is fine
    os.lchown(link, 65534, 65534)
    with pytest.raises(ConfigurationError, match="another user"), embedded_broker(dir=link, **QUICK):
        pytest.fail("it must not start")


@pytest.mark.parametrize(("name", "mode"), [("keys", 0o755), ("keys/server.key", 0o640), ("keys/server.key", 0o604)])
def test_keys_that_are_open_to_others_are_refused(tmp_path: Path, name: str, mode: int) -> None:
    server_keys(tmp_path / "hub" / "keys")
    (tmp_path / "hub").chmod(0o700)
    (tmp_path / "hub" / name).chmod(mode)
    curve = QUICK | {"curve": True, "endpoint": "tcp://127.0.0.1:0"}
    with pytest.raises(ConfigurationError, match="open to other users"), embedded_broker(dir=tmp_path / "hub", **curve):
        pytest.fail("it must not start")


@needs_root
def test_keys_of_another_user_are_refused(tmp_path: Path) -> None:
    server_keys(tmp_path / "hub" / "keys")
    (tmp_path / "hub").chmod(0o700)
    key = tmp_path / "hub" / "keys" / "server.key"
    os.chown(key, 65534, 65534)
    curve = QUICK | {"curve": True, "endpoint": "tcp://127.0.0.1:0"}
    with (
        pytest.raises(ConfigurationError, match=f"{key} belongs to another user"),
        embedded_broker(dir=tmp_path / "hub", **curve),
    ):
        pytest.fail("it must not start")
    with (
        pytest.raises(ConfigurationError, match=f"{key} belongs to another user"),
        MessageHub(endpoint="tcp://127.0.0.1:9", key_file=str(key), server_key="x" * 40) as hub,
    ):
        hub.connect(required=True, timeout=30)


def test_loopback_sockets_are_what_they_say(tmp_path: Path) -> None:
    """`localhost` must not be a way to listen elsewhere."""
    with checked_broker(dir=tmp_path / "hub", endpoint="tcp://127.0.0.1:0", **QUICK) as endpoint:
        port = int(endpoint.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 10):
            pass
    with pytest.raises(HubError), embedded_broker(dir=tmp_path / "other", endpoint="tcp://0.0.0.0:0"):
        pytest.fail("it must not start")
