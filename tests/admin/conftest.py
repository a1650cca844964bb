"""One hub with HTTP for all tests of a module, on an ephemeral port; each test uses subjects of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import preloaded
from tests.admin import documented
from tests.integration.harness import eventually


class Web:
    """A running hub and a client of its HTTP side."""

    def __init__(self, directory: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "messagehub", "serve", "--dir", str(directory), "--http", "127.0.0.1:0"]
        self.directory = directory
        domain = {"MESSAGEHUB_DOMAIN": f"pytest-{os.getpid()}-{directory.name}"}
        self.process = preloaded.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, text=True, env=os.environ | domain | (environment or {})
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert "ready" in ready, ready
        self.url = json.loads((directory / "broker.json").read_text())["http"]
        token = directory / "http.token"
        self.token = token.read_text().strip() if token.exists() else ""
        self.client = httpx.Client(base_url=self.url, timeout=30)
        eventually(self.answers, timeout=60)

    def answers(self) -> bool:
        try:
            return self.client.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """With the token, unless `headers` say otherwise."""
        headers = {"authorization": f"Bearer {self.token}"} | options.pop("headers", {})
        answer = self.client.request(method, path, json=body, headers=headers, **options)
        documented.check(answer)
        return answer

    def register(self, subject: str, schema: Any, schema_type: str = "JSON", **fields: Any) -> httpx.Response:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": schema_type, **fields}
        return self.ask("POST", f"/subjects/{subject}/versions", body)

    def close(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    running = Web(tmp_path_factory.mktemp("admin") / "hub")
    yield running
    running.close()


@pytest.fixture(scope="session")
def open_web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    running = Web(tmp_path_factory.mktemp("admin") / "open", "--http-open")
    yield running
    running.close()
