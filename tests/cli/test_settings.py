"""Settings that cannot be used are refused before anything starts, with the file and the key."""

import os
import tempfile
from pathlib import Path

import pytest

from messagehub import MessageHub
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings
from tests.cli.program import Program
from tests.integration.harness import Served, refused

BAD = [
    'http_anonymous = "nope"',
    'http_anonymous = "observe:a..b"',
    'group_roles = "king"',
    "audit_bytes = -5",
    "audit_bytes = 0",
    'audit_bytes = "many"',
    "requests_per_second = -1",
    "requests_per_second = 0.5",
    "requests_per_second = nan",
    "requests_per_second = inf",
    "registrations_per_peer = -1",
    "subscriptions_per_peer = -1",
    "trace_size = -1",
    "kept_limit_bytes = -1",
    "beacon_seconds = 0",
    "beacon_seconds = inf",
    "hello_timeout_seconds = -1.0",
    "request_timeout_seconds = nan",
    "reconnect_first_seconds = 10",
    "heartbeat_seconds = 20",
    "stall_seconds = 3",
    "lease_seconds = 1e300",
    'http_cors = "lab.example"',
    'http_cors = "https://lab.example/path"',
    'http_cors = "https://fine.example ftp://lab.example"',
    'http_cors = "https://Lab.example"',
    'http_cors = "https://lab.example:443"',
    'http_cors = "http://lab.example:80"',
    'http_cors = "http://lab.example:"',
    'http_cert = "/a/cert.pem"',
    'http_key = "/a/key.pem"',
    'http = "8081"',
    'http = "127.0.0.1:99999"',
    'endpoint = "tcp://127.0.0.1"',
    'endpoint = "tcp://127.0.0.1:65535"',
    'endpoint = "http://127.0.0.1:1"',
    'events_endpoint = "udp://127.0.0.1:1"',
    'endpoint = "ipc://relative.sock"',
    'events_endpoint = "tcp://127.0.0.1:port"',
    'domain = "../elsewhere"',
    'shm_prefix = "/x"',
    'store_sync = "sometimes"',
    'log = "LOUD"',
    "no_such_setting = 1",
    'dir = "/elsewhere"',
]


@pytest.mark.parametrize("line", BAD)
def test_a_bad_setting_is_refused_with_its_file_and_key(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MESSAGEHUB_DOMAIN")
    file = tmp_path / "messagehub.toml"
    file.write_text(line + "\n")
    with pytest.raises(ConfigurationError) as caught:
        Settings.load(dir=tmp_path)
    key = line.partition(" =")[0]
    assert f"bad setting in {file}: " in caught.value.message
    assert key in caught.value.message or key == "dir"


@pytest.mark.parametrize("line", ['http_anonymous = "nope"', "audit_bytes = -5", 'http_cors = "lab.example"'])
def test_serve_refuses_a_bad_setting_before_anything_starts(tmp_path: Path, line: str) -> None:
    directory = tmp_path / "hub"
    directory.mkdir(mode=0o700)
    (directory / "messagehub.toml").write_text(line + "\n")
    code, complaint = refused(directory, "--http", "127.0.0.1:0", with_http=True)
    assert code == 1
    assert complaint.startswith(f"messagehub: bad setting in {directory / 'messagehub.toml'}: {line.partition(' ')[0]}")
    assert [path.name for path in directory.iterdir()] == ["messagehub.toml"]


def test_a_bad_setting_of_the_environment_or_an_argument_names_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "messagehub.toml").write_text('log = "DEBUG"\n')
    monkeypatch.setenv("MESSAGEHUB_LOG", "loud")
    with pytest.raises(ConfigurationError, match="in the environment variable MESSAGEHUB_LOG: log = 'loud'"):
        Settings.load(dir=tmp_path)
    with pytest.raises(ConfigurationError, match="bad setting: http = '8081'"):
        Settings.load(dir=tmp_path, log="INFO", http="8081")


@pytest.mark.parametrize(
    ("line", "above"),
    [("audit_bytes = -5", {"audit_bytes": 1}), ('log = "LOUD"', {}), ('http = "8081"', {"http": "127.0.0.1:0"})],
)
def test_a_bad_setting_of_the_file_is_refused_also_where_another_stands_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, above: dict[str, object]
) -> None:
    """The next start, without the flag or the variable, would use it."""
    file = tmp_path / "messagehub.toml"
    file.write_text(line + "\n")
    monkeypatch.setenv("MESSAGEHUB_LOG", "INFO")
    with pytest.raises(ConfigurationError, match=f"bad setting in {file}: {line.partition(' ')[0]}"):
        Settings.load(dir=tmp_path, **above)
    file.write_text("")
    assert Settings.load(dir=tmp_path, **above).log == "INFO"


def test_what_may_be_set_is_taken(tmp_path: Path) -> None:
    (tmp_path / "messagehub.toml").write_text(
        'http_anonymous = ""\nhttp_cors = "https://a.example:8443 http://[::1]:3000 *"\nrequests_per_second = 0\n'
        'group_roles = "observe produce:lab.>"\ntrace_size = 0\nhttp = "[::1]:8081"\nlog = "debug"\naudit = true\n'
    )
    settings = Settings.load(dir=tmp_path)
    assert settings.http == "[::1]:8081"
    assert settings.local.endpoint == f"ipc://{tmp_path}/broker.sock"


def test_a_user_without_a_home_is_told_in_one_line(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import os, pwd, sys\n"
        "def nobody(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = nobody\n"  # as in a container that is run under any user id
        "from messagehub.cli import main\n"
        "main()\n"
    )
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    for command in (["status"], ["serve"], ["doctor"], ["keys"], ["status", "--dir", "~/hub"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1, (command, done)
        assert "has no home directory" in done.stderr + done.stdout
        assert "MESSAGEHUB_DIR" in done.stderr + done.stdout
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("line", ["requests_per_secnd = 1", 'http_anonymous = "nope"', "zzz = 1", "http_cert = 'x'"])
def test_a_mistake_in_what_only_the_hub_reads_locks_nobody_out_of_a_running_hub(alone: Program, line: str) -> None:
    with alone.serve() as running:
        file = alone.dir / "messagehub.toml"
        file.write_text(f"{line}\n")
        told = f"bad setting in {file}: "
        shown = alone.run("status")
        assert shown.stderr.count(told) == 1
        assert "healthy" in shown.stdout
        with MessageHub(dir=alone.dir, domain=alone.environment["MESSAGEHUB_DOMAIN"]) as hub:
            assert hub.connect()
        found = alone.json("doctor", code=1)["findings"]
        assert [each["check"] for each in found if each["severity"] == "error"] == ["settings"]
        assert any(each["check"] == "broker" and each["severity"] == "ok" for each in found)
        assert told in alone.run("tokens", "list").stderr
        alone.run("stop")
        assert running.process.wait(60) == 0
    assert told in alone.run("serve", code=1).stderr


@pytest.mark.parametrize("line", ['domian = "lab"', 'shm_prefx = "a"', 'endpoint = "ftp://x"', 'domain = "a/b"'])
def test_a_mistake_in_what_clients_read_is_an_error_for_them_too(tmp_path: Path, line: str) -> None:
    (tmp_path / "messagehub.toml").write_text(f"{line}\n")
    with pytest.raises(ConfigurationError, match=f"bad setting in {tmp_path}/messagehub.toml"):
        MessageHub(dir=tmp_path)


@pytest.mark.parametrize(
    "line", ["audit_bytes = ", 'http_cors "*"', "what is this", 'log = "INFO', "audit = true\naudit = true"]
)
def test_a_file_that_is_no_toml_locks_nobody_out_of_a_running_hub(alone: Program, line: str) -> None:
    with alone.serve() as running:
        file = alone.dir / "messagehub.toml"
        file.write_text(f"hello_timeout_seconds = 7.5\n{line}\nrequest_timeout_seconds = 9\n")
        told = f"{file} is not TOML: "
        shown = alone.run("status")
        assert shown.stderr.count(told) == 1
        assert "healthy" in shown.stdout
        settings = Settings.for_client(dir=alone.dir)
        assert (settings.hello_timeout_seconds, settings.request_timeout_seconds) == (7.5, 9.0), "its good lines count"
        found = alone.json("doctor", code=1)["findings"]
        assert [each["check"] for each in found if each["severity"] == "error"] == ["settings"]
        alone.run("stop")
        assert running.process.wait(60) == 0
    refusal = alone.run("serve", code=1).stderr
    assert told in refusal
    assert f"line {line.count(chr(10)) + 2}, column" in refusal
    assert "correct that line" in refusal


def test_a_file_that_is_no_text_is_refused_by_the_hub_and_told_to_clients(alone: Program) -> None:
    alone.configure()
    (alone.dir / "messagehub.toml").write_bytes(b"log = '\xff'\n")
    assert "is not TOML" in alone.run("serve", code=1).stderr
    assert "is not TOML" in alone.run("blocks").stderr


@pytest.mark.parametrize("line", ['domain = "lab', "endpoint = tcp://127.0.0.1:5570", 'domian "lab"'])
def test_a_line_that_is_no_toml_and_of_the_clients_is_an_error_for_them_too(tmp_path: Path, line: str) -> None:
    (tmp_path / "messagehub.toml").write_text(f"{line}\n")
    with pytest.raises(ConfigurationError, match=r"is not TOML: .* line 1"):
        MessageHub(dir=tmp_path)


@pytest.mark.parametrize("length", [88, 89, 90, 95, 96, 120])
def test_a_hub_starts_in_a_directory_of_any_length(length: int) -> None:
    """Linux takes 107 bytes for a socket's path: around 89 the broker's own fits, and the one for events does not."""
    with tempfile.TemporaryDirectory(prefix="mh-") as parent:
        directory = Path(parent) / ("d" * (length - len(parent) - 1))
        with Served(directory), MessageHub(dir=directory) as hub:
            hub.connect(required=True)
            assert hub.is_connected
