"""Known secrets go through everything, and come out nowhere: not in logs, traces, metrics, errors or URLs."""

import contextlib
import json
import sys
from pathlib import Path

import httpx
import msgspec

from messagehub import MessageHub
from messagehub.errors import HubError
from messagehub.security.credentials import AccessFile, KeyPair, allow_key, allow_token, server_keys
from messagehub.security.private_files import private_directory
from registry import commands
from tests import preloaded
from tests.integration.harness import ROOT, clean_environment, eventually


def test_no_secret_is_found_anywhere_but_in_its_own_file(tmp_path: Path) -> None:
    directory = tmp_path / "hub"
    private_directory(directory)
    access = AccessFile(directory / "access.json")
    server = server_keys(directory / "keys")
    boss, stranger = KeyPair.new(server.public), KeyPair.new(server.public)
    boss.write(directory / "keys" / "boss.key")
    stranger.write(directory / "keys" / "stranger.key")
    allow_key(access, "boss", boss.public, ["admin"])
    token, wrong_token = allow_token(access, "ci", ["observe"]), "a-wrong-token-that-somebody-typed"
    names = {"address": "service:s", "worker_id": "w", "endpoint": "unix:@x", "lease": "l"}
    worker = commands.RegisterWorker(key="a-key-that-opens-a-worker", **names)
    said: list[str] = []

    command = [sys.executable, "-m", "messagehub", "serve", "--dir", str(directory), "--log", "DEBUG", "--curve"]
    command += ["--endpoint", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0"]
    with (tmp_path / "err").open("w") as err, (tmp_path / "out").open("w") as out:
        process = preloaded.Popen(command, stdout=out, stderr=err, cwd=ROOT, env=clean_environment())
    try:
        eventually(lambda: "ready" in (tmp_path / "out").read_text())
        status = json.loads((directory / "broker.json").read_text())
        own_token = (directory / "http.token").read_text().strip()
        with httpx.Client(base_url=status["http"], timeout=30) as client:
            eventually(lambda: _answers(client))
            for given in (token, own_token, wrong_token):
                for method, path in (
                    ("GET", "/subjects"),
                    ("PUT", "/config"),
                    ("GET", "/metrics"),
                    ("GET", "/nowhere"),
                ):
                    for headers in ({"authorization": f"Bearer {given}"}, {"authorization": _basic(given)}):
                        answer = client.request(method, path, json={"compatibility": "NONE"}, headers=headers)
                        said.append(answer.text + str(answer.headers))
                answer = client.get(f"/subjects?token={given}&access_token={given}")
                said.append(answer.text + str(answer.headers))
            said.append(client.get("/api/v1/traces", headers={"authorization": f"Bearer {own_token}"}).text)
        for name in ("boss", "stranger"):
            key_file = str(directory / "keys" / f"{name}.key")
            with MessageHub(endpoint=status["remote_endpoint"], dir=tmp_path / "client", key_file=key_file) as hub:
                try:
                    hub.register_producer("c", schema_hash="h")
                    hub.ask(worker)
                    said.append(str(hub.trace()) + str(hub.stats()) + repr(hub.settings))
                    hub.ask(msgspec.structs.replace(worker, lease="of-nobody"))
                except HubError as error:
                    said.append(f"{error!r} {error.details}")
        for arguments in (("status",), ("keys", "list"), ("tokens", "list"), ("doctor",)):
            command = [sys.executable, "-m", "messagehub", *arguments, "--dir", str(directory), "--json"]
            ran = preloaded.run(command, timeout=60, env=clean_environment())
            said.append(ran.stdout + ran.stderr)
        said.append(Path(f"/proc/{process.pid}/cmdline").read_text())
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                said.append(Path(f"/proc/{child}/cmdline").read_text())
    finally:
        process.terminate()
        assert process.wait(60) == 0
    said += [(tmp_path / "err").read_text(), (tmp_path / "out").read_text(), repr(boss)]
    own_files = {"boss.key", "stranger.key", "server.key", "http.token"}
    said += [
        path.read_bytes().decode("latin-1")
        for path in directory.rglob("*")
        if path.is_file() and path.name not in own_files
    ]
    assert "stranger" not in (directory / "audit.log").read_text()
    assert '"denied"' in (directory / "audit.log").read_text()
    everything = "\n".join(said)
    for secret in (server.secret, boss.secret, stranger.secret, token, own_token, wrong_token, worker.key):
        assert secret not in everything


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def _basic(token: str) -> str:
    import base64

    return "Basic " + base64.b64encode(f"u:{token}".encode()).decode()
