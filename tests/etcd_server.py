"""A real etcd for tests: Debian's, on loopback ports of its own, stopped by whoever started it."""

import base64
import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.debian import program_or_skip
from tests.integration.harness import eventually
from tests.ports import own_ports


class EtcdMember:
    """One process of etcd; `start` after `kill` goes on with the same data."""

    def __init__(self, directory: Path, command: list[str], url: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self._directory, self._command, self._tls = directory, command, tls
        self.start()

    def start(self) -> None:
        with (self._directory / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def is_healthy(self) -> bool:
        try:
            return bool(self.ask("/v3/maintenance/status", {}).get("leader"))
        except OSError:
            return False

    def leads(self) -> bool:
        status = self.ask("/v3/maintenance/status", {})
        return bool(status["leader"] == status["header"]["member_id"])

    def ask(self, path: str, body: dict[str, Any], token: str = "") -> Any:
        """The answer of the JSON gateway, for what only administrators do."""
        headers = {"Authorization": token} if token else {}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=10, context=self._tls) as answer:
            return json.load(answer)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


def _fast_place() -> str | None:
    """Where syncing costs nothing: a loaded disk makes etcd miss its own deadlines."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _command(name: str, directory: Path, client: str, peer: str, cluster: str, *options: str) -> list[str]:
    ends_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []  # a killed run leaves no etcd
    return [
        *(*ends_with_us, program_or_skip("etcd", "etcd-server"), "--name", name, "--data-dir", str(directory / "data")),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster),
        *options,
    ]


@contextlib.contextmanager
def etcd(members: int = 1, *options: str, tls: ssl.SSLContext | None = None) -> Iterator[list[EtcdMember]]:
    """A cluster that has a leader. `tls` is what its clients trust, where `options` give it certificates."""
    program_or_skip("etcd", "etcd-server")
    scheme = "https" if tls else "http"
    with contextlib.ExitStack() as ending:
        base = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="messagehub-etcd-", dir=_fast_place())))
        ports = own_ports(2 * members)
        peers = [f"http://127.0.0.1:{port}" for port in ports[members:]]
        cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        started = []
        for number, peer in enumerate(peers):
            directory = base / f"m{number}"
            directory.mkdir()
            url = f"{scheme}://127.0.0.1:{ports[number]}"
            member = EtcdMember(directory, _command(f"m{number}", directory, url, peer, cluster, *options), url, tls)
            ending.callback(member.kill)
            started.append(member)
        eventually(lambda: all(member.is_healthy() for member in started))
        yield started


def enable_authentication(member: EtcdMember, user: str, password: str, prefix: str) -> str:
    """Ask for users from now on. `user` may read and write keys with the prefix; returns the token of root."""
    for name, secret in (("root", "root's own"), (user, password)):
        member.ask("/v3/auth/user/add", {"name": name, "password": secret})
        member.ask("/v3/auth/role/add", {"name": name})
        member.ask("/v3/auth/user/grant", {"user": name, "role": name})
    start, end = prefix.encode(), prefix.encode()[:-1] + bytes([prefix.encode()[-1] + 1])
    encoded = {"key": base64.b64encode(start).decode(), "range_end": base64.b64encode(end).decode()}
    member.ask("/v3/auth/role/grant", {"name": user, "perm": {"permType": "READWRITE", **encoded}})
    member.ask("/v3/auth/enable", {})
    token: str = member.ask("/v3/auth/authenticate", {"name": "root", "password": "root's own"})["token"]
    return token


def key_values(member: EtcdMember, prefix: str) -> dict[str, bytes]:
    """All keys with a prefix, as they are."""
    start, end = prefix.encode(), prefix.encode()[:-1] + bytes([prefix.encode()[-1] + 1])
    asked = {"key": base64.b64encode(start).decode(), "range_end": base64.b64encode(end).decode()}
    found = member.ask("/v3/kv/range", asked).get("kvs", [])
    return {base64.b64decode(each["key"]).decode(): base64.b64decode(each.get("value", "")) for each in found}


def put(member: EtcdMember, key: str, value: bytes) -> None:
    encoded = {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value).decode()}
    member.ask("/v3/kv/put", encoded)


def remove(member: EtcdMember, key: str) -> None:
    member.ask("/v3/kv/deleterange", {"key": base64.b64encode(key.encode()).decode()})


def free(member: EtcdMember) -> None:
    """Make room in a full etcd, as its administrator does."""
    revision = member.ask("/v3/kv/range", {"key": "YQ=="})["header"]["revision"]
    member.ask("/v3/kv/compaction", {"revision": revision, "physical": True})
    member.ask("/v3/maintenance/defragment", {})
    for alarm in member.ask("/v3/maintenance/alarm", {"action": "GET"})["alarms"]:
        member.ask("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
