"""HTTP: every route from a token of every role, tokens without a restart, and TLS."""

import hmac
import json
import os
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from messagehub.admin import api
from messagehub.admin.confluent import paths as confluent_paths
from messagehub.admin.endpoints import Endpoint
from messagehub.security.credentials import AccessFile, ListedCredential, allow_token, revoke, token_hash, token_owner
from registry.access import ROLES
from tests.admin.conftest import Web
from tests.integration.harness import eventually, refused

ENDPOINTS = [*confluent_paths.ENDPOINTS, *api.ENDPOINTS]
GUARDED = [endpoint for endpoint in ENDPOINTS if endpoint.role is not None]
SCHEMA = {"schema": '{"type": "object"}', "schemaType": "JSON"}
BODIES: dict[str, Any] = {
    "/api/v1/topics/{topic}/messages": {"text": "x"},
    "/config": {"compatibility": "NONE"},
    "/config/{subject}": {"compatibility": "NONE"},
    "/mode": {"mode": "READONLY"},
    "/mode/{subject}": {"mode": "READONLY"},
    "/api/v1/schemas": [SCHEMA | {"subject": "there"}],
    "/api/v1/channels/{channel}": {},
}


class WebOfMany(Web):
    """A hub whose HTTP lets nobody look without a token, and a token for each role."""

    def __init__(self, directory: Path, *arguments: str, settings: str = 'http_anonymous = ""\n') -> None:
        directory.mkdir(mode=0o700, parents=True)
        (directory / "messagehub.toml").write_text(settings)
        self.access = AccessFile(directory / "access.json")
        self.tokens = {role: allow_token(self.access, role, [role]) for role in ROLES}
        self.tokens["limited"] = allow_token(self.access, "limited", [f"{role}:mine.*" for role in ROLES[:-1]])
        super().__init__(directory, *arguments)

    def try_with(self, token: str | None, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return self.client.request(method, path, json=body, headers=headers)

    def state(self) -> Any:
        return [
            self.ask("GET", path).json() for path in ("/api/v1/channels", "/schemas?deleted=true", "/config", "/mode")
        ]

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "audit-http.log").read_text().splitlines()]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebOfMany]:
    running = WebOfMany(tmp_path_factory.mktemp("rights") / "hub")
    running.register("there", {"type": "object"})
    running.ask("POST", "/api/v1/channels/there", {})
    yield running
    running.close()


def filled(endpoint: Endpoint) -> tuple[str, str, Any]:
    path = endpoint.path.replace("{subject}", "there").replace("{channel}", "there")
    path = path.replace("{version}", "1").replace("{id}", "1").replace("{guid}", "1")
    return endpoint.method, path, BODIES.get(endpoint.path, SCHEMA) if endpoint.body is not None else None


@pytest.mark.parametrize("endpoint", GUARDED, ids=lambda e: f"{e.method} {e.path}")
def test_every_route_refuses_each_wrong_role_and_changes_nothing(many: WebOfMany, endpoint: Endpoint) -> None:
    before = many.state()
    for role, token in many.tokens.items():
        is_allowed = role in (endpoint.role, "admin") or (endpoint.role == "observe" and role != "limited")
        if is_allowed or (role == "limited" and endpoint.path == "/schemas/guids/{guid}"):
            continue  # nobody has that GUID, so nobody may be refused it
        answer = many.try_with(token, *filled(endpoint))
        if endpoint.path == "/api/v1/schemas" and role == "limited":
            (answer_of_item,) = answer.json()
            assert (answer_of_item["status"], answer_of_item["code"]) == (403, "FORBIDDEN")
            continue
        if endpoint.path.startswith("/schemas/guids") and role == "limited":
            assert answer.status_code == 404
            continue
        assert (answer.status_code, answer.json()["error_code"]) == (403, 40301), (role, answer.text)
        assert answer.json()["code"] == "FORBIDDEN"
    for token in (None, "wrong"):
        answer = many.try_with(token, *filled(endpoint))
        assert (answer.status_code, answer.json()["error_code"]) == (401, 40101)
        assert "www-authenticate" in answer.headers
    assert many.state() == before


def test_a_token_works_on_its_own_names(many: WebOfMany) -> None:
    token = many.tokens["limited"]
    made = many.try_with(
        token, "POST", "/subjects/mine.a/versions", {"schema": '{"title": "mine"}', "schemaType": "JSON"}
    )
    assert made.status_code == 200, made.text
    assert many.try_with(token, "GET", f"/schemas/ids/{made.json()['id']}").status_code == 200
    assert many.try_with(token, "GET", "/schemas/ids/1").status_code == 403
    many.ask("GET", f"/schemas/ids/{made.json()['id']}")  # kept answers are no way around
    assert many.try_with(None, "GET", f"/schemas/ids/{made.json()['id']}").status_code == 401
    changed = [entry for entry in many.audit() if entry["event"] == "changed" and entry["who"] == "token:limited"]
    assert changed[0]["name"] == "mine.a"
    assert changed[0]["correlation_id"]
    assert changed[0]["request_id"] == made.headers["x-request-id"]


def test_tokens_come_and_go_without_a_restart_and_are_kept_as_hashes(many: WebOfMany) -> None:
    token = allow_token(many.access, "guest", ["observe"])
    assert many.try_with(token, "GET", "/subjects").status_code == 200
    assert token not in many.access.path.read_text()
    assert stat.S_IMODE(many.access.path.stat().st_mode) == 0o600
    revoke(many.access, "token", "guest")
    eventually(lambda: many.try_with(token, "GET", "/subjects").status_code == 401)


def test_a_token_with_rights_to_some_names_lists_them(many: WebOfMany) -> None:
    for channel in ("mine.listed", "theirs.listed"):
        many.ask("POST", f"/api/v1/channels/{channel}", {})
    listed = many.try_with(many.tokens["limited"], "GET", "/api/v1/channels?prefix=mine.l")
    assert [channel["channel"] for channel in listed.json()] == ["mine.listed"]
    for prefix in ("", "?prefix=theirs."):
        refused = many.try_with(many.tokens["limited"], "GET", f"/api/v1/channels{prefix}")
        assert refused.status_code == 403
        assert "list one of these prefixes: mine." in refused.json()["message"]
    for channel in ("mine.listed", "theirs.listed"):
        many.ask("DELETE", f"/api/v1/channels/{channel}")


def test_a_token_is_compared_with_every_one_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {
        name: ListedCredential(proof=token_hash(name), rights=["observe"]) for name in ("first", "second", "third")
    }
    compared: list[str] = []
    same = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(b) or same(a, b))
    assert [token_owner(tokens, given) for given in ("first", "third", "none")] == ["first", "third", None]
    assert compared == [listed.proof for listed in tokens.values()] * 3


def test_a_token_in_the_url_is_not_looked_at(many: WebOfMany) -> None:
    assert many.try_with(None, "GET", f"/subjects?token={many.token}&access_token={many.token}").status_code == 401


def test_other_origins_are_served_only_when_they_are_named(tmp_path: Path, many: WebOfMany) -> None:
    asked = {"origin": "https://lab.example", "access-control-request-method": "GET"}
    assert "access-control-allow-origin" not in many.client.options("/subjects", headers=asked).headers
    web = WebOfMany(tmp_path / "hub", settings='http_cors = "https://lab.example"\n')
    try:
        assert web.client.options("/subjects", headers=asked).headers["access-control-allow-origin"] == asked["origin"]
        other = web.client.get("/subjects", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
    finally:
        web.close()


def test_http_beyond_loopback_takes_a_certificate(tmp_path: Path) -> None:
    code, complaint = refused_web(tmp_path / "a", "--http", "0.0.0.0:0")
    assert code == 1
    assert "--http-cert" in complaint
    cert, key = certificate(tmp_path)
    code, complaint = refused_web(tmp_path / "b", "--http", "0.0.0.0:0", "--http-cert", str(cert))
    assert "go together" in complaint
    key.chmod(0o644)
    code, complaint = refused_web(tmp_path / "c", "--http-cert", str(cert), "--http-key", str(key))
    assert "open to other users" in complaint


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
def test_a_certificates_key_of_another_user_is_refused(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    os.chown(key, 65534, 65534)
    code, complaint = refused_web(tmp_path / "hub", "--http-cert", str(cert), "--http-key", str(key))
    assert code == 1
    assert f"{key} belongs to another user" in complaint


def test_https_is_served_and_lets_nobody_look_from_elsewhere(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    directory = tmp_path / "hub"
    command = ["--http", "0.0.0.0:0", "--http-cert", str(cert), "--http-key", str(key)]
    web = SecureWeb(directory, cert, *command)
    try:
        assert web.client.get("/healthz").headers["strict-transport-security"]
        assert web.client.get("/subjects").status_code == 401
        assert web.ask("GET", "/subjects").status_code == 200
    finally:
        web.close()


class SecureWeb(Web):
    def __init__(self, directory: Path, cert: Path, *arguments: str) -> None:
        self.cert = cert
        super().__init__(directory, *arguments)

    def answers(self) -> bool:
        port = self.url.rpartition(":")[2]
        if self.client.base_url.host != "localhost":
            self.client.close()
            context = ssl.create_default_context(cafile=str(self.cert))
            self.client = httpx.Client(base_url=f"https://localhost:{port}", timeout=30, verify=context)
        return super().answers()


def refused_web(directory: Path, *arguments: str) -> tuple[int, str]:
    """A `serve` with HTTP that must not start."""
    return refused(directory, *arguments, with_http=True)


def certificate(place: Path) -> tuple[Path, Path]:
    """For localhost, of its own making."""
    cert, key = place / "cert.pem", place / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True, timeout=60)
    key.chmod(0o600)
    return cert, key


def test_a_stream_of_events_ends_with_its_token(many: WebOfMany) -> None:
    token = allow_token(many.access, "listener", ["observe"])
    headers = {"authorization": f"Bearer {token}"}
    with many.client.stream("GET", "/api/v1/events", headers=headers) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        revoke(many.access, "token", "listener")
        many.ask("POST", "/api/v1/channels/unheard", {})
        assert not any("unheard" in line for line in lines)  # and it ends
    many.ask("DELETE", "/api/v1/channels/unheard")
