"""A hub with keys, in this process, and peers that hold one or another."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from messagehub import MessageHub
from messagehub.security.credentials import AccessFile, KeyPair, allow_key, revoke, server_keys
from messagehub.security.private_files import private_directory
from tests.conftest import QUICK
from tests.integration.harness import Peer, checked_broker

ROLES = {
    "watcher": ["observe"],
    "reader": ["consume"],
    "writer": ["produce"],
    "schemas": ["schema-admin"],
    "boss": ["admin"],
    "limited": ["produce:sensors.*", "consume:sensors.*", "schema-admin:sensors.*"],
}


class SharedHub:
    """One directory with a key for each role; the broker runs inside `running`."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        self.endpoint = ""
        private_directory(directory)
        self.access = AccessFile(directory / "access.json")
        self.server_key = server_keys(directory / "keys").public
        self.keys = {name: self.key(name, rights) for name, rights in ROLES.items()}

    def key(self, name: str, rights: list[str]) -> KeyPair:
        pair = KeyPair.new(self.server_key)
        pair.write(self.dir / "keys" / f"{name}.key")
        if rights:
            allow_key(self.access, name, pair.public, rights)
        return pair

    def revoke(self, name: str) -> None:
        revoke(self.access, "key", name)

    def peer(self, name: str, kind: int = zmq.REQ, *, endpoint: str = "", **more: int) -> Peer:
        pair = self.keys[name]
        options: dict[str, Any] = more | {
            "CURVE_SERVERKEY": self.server_key.encode(),
            "CURVE_PUBLICKEY": pair.public.encode(),
            "CURVE_SECRETKEY": pair.secret.encode(),
        }
        return Peer(endpoint or self.endpoint, kind, **options)

    def hub(self, name: str, **settings: Any) -> MessageHub:
        key_file = str(self.dir / "keys" / f"{name}.key")
        return MessageHub(endpoint=self.endpoint, dir=self.dir / "client", key_file=key_file, **settings)

    def local(self) -> Peer:
        """Whoever runs the hub, on its ipc endpoint."""
        return Peer(f"ipc://{self.dir}/broker.sock")

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.dir / "audit.log").read_text().splitlines()]

    @contextmanager
    def running(self, **settings: Any) -> Iterator["SharedHub"]:
        given = QUICK | {"endpoint": "tcp://127.0.0.1:0", "curve": True, "dir": self.dir} | settings
        with checked_broker(f"ipc://{self.dir}/broker.sock", **given) as self.endpoint:
            yield self
