"""A secret that is blank, guessed easily or open to others lets nobody in, and is refused at the start."""

import datetime
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import zmq
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from messagehub import embedded_broker
from messagehub.errors import ConfigurationError
from messagehub.security.credentials import AccessFile, KeyPair, new_token, server_keys
from messagehub.security.private_files import write_private
from tests import preloaded
from tests.access.test_http_rights import certificate, refused_web
from tests.admin.conftest import Web
from tests.conftest import QUICK
from tests.integration.harness import Served, clean_environment, eventually

SCHEMA = {"schema": '{"type": "object"}', "schemaType": "JSON"}
WEAK = {
    "empty": b"",
    "a line end": b"\n",
    "spaces": b" \t \n",
    "short": b"secret\n",
    "one letter": b"a" * 40,
    "several words": b"correct horse battery staple",
    "not ASCII": "geheimniskrämerei-öffentlich".encode(),
}


def hub_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "hub"
    directory.mkdir(mode=0o700)
    return directory


@pytest.mark.parametrize("kind", WEAK)
def test_a_weak_owner_token_is_refused_with_what_to_do(tmp_path: Path, kind: str) -> None:
    directory = hub_directory(tmp_path)
    token = directory / "http.token"
    write_private(token, WEAK[kind])
    code, complaint = refused_web(directory, "--http", "127.0.0.1:0")
    assert code == 1
    assert f"rm {token}" in complaint
    assert "Traceback" not in complaint
    assert {path.name for path in directory.iterdir()} == {"http.token"}, "nothing was started"
    assert token.read_bytes() == WEAK[kind]


def test_a_start_after_removing_the_token_makes_a_good_one(tmp_path: Path) -> None:
    web = Web(tmp_path / "hub")
    try:
        assert len(web.token) >= 40
        assert web.ask("GET", "/subjects").status_code == 200
    finally:
        web.close()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    running = Web(tmp_path / "hub")
    yield running
    running.close()


def status_with(web: Web, **options: object) -> int:
    return web.client.post("/subjects/s/versions", json=SCHEMA, **options).status_code  # type: ignore[arg-type]


def status_of(web: Web, token: str) -> int:
    return status_with(web, headers={"authorization": f"Bearer {token}"})


def test_empty_credentials_match_nothing(web: Web) -> None:
    for given in ({"auth": ("", "")}, {"auth": ("admin", "")}, {"headers": {"authorization": "Bearer"}}):
        assert status_with(web, **given) == 401
    assert status_with(web, headers={"authorization": "Basic"}) == 401
    assert status_of(web, web.token) == 200


def test_a_replaced_owner_token_counts_at_once_and_the_old_one_no_longer(web: Web) -> None:
    assert status_of(web, web.token) == 200
    path, new = web.directory / "http.token", new_token()
    write_private(path, new.encode())
    assert (status_of(web, new), status_of(web, web.token)) == (200, 401)
    path.unlink()
    assert (status_of(web, new), status_of(web, web.token)) == (401, 401)
    write_private(path, b"\n")
    assert (status_of(web, new), status_with(web, auth=("", ""))) == (401, 401)
    write_private(path, new.encode(), mode=0o644)
    assert status_of(web, new) == 401, "others could have read it"
    path.chmod(0o600)
    assert status_of(web, new) == 200, "as the log says to do"
    path.chmod(0o666)
    assert status_of(web, new) == 401, "others can read it from now on"
    write_private(path, new.encode())
    assert status_of(web, new) == 200


def test_a_stream_of_the_owner_ends_when_its_token_is_replaced(web: Web) -> None:
    headers = {"authorization": f"Bearer {web.token}"}
    with web.client.stream("GET", "/api/v1/events", headers=headers) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        write_private(web.directory / "http.token", new_token().encode())
        assert not any("data:" in line for line in lines)  # and it ends, with the next beacon


@pytest.mark.parametrize("proof", ["", hashlib.sha256(b"").hexdigest(), "0", "Z" * 64])
def test_a_listed_token_without_a_real_hash_is_refused(tmp_path: Path, proof: str) -> None:
    directory = hub_directory(tmp_path)
    listed = {"tokens": {"ci": {"proof": proof, "rights": ["admin"]}}}
    write_private(directory / "access.json", json.dumps(listed).encode())
    with pytest.raises(ConfigurationError, match="not the hash of a token"):
        AccessFile(directory / "access.json").read()
    code, complaint = refused_web(directory, "--http", "127.0.0.1:0")
    assert (code, "damaged" in complaint) == (1, True), complaint


def test_a_listed_key_that_is_none_is_refused(tmp_path: Path) -> None:
    directory = hub_directory(tmp_path)
    write_private(directory / "access.json", json.dumps({"keys": {"a": {"proof": "", "rights": []}}}).encode())
    with pytest.raises(ConfigurationError, match="not a public key"):
        AccessFile(directory / "access.json").read()


def weak_pair() -> KeyPair:
    secret = "0" * 40
    return KeyPair(public=zmq.curve_public(secret.encode()).decode(), secret=secret)


@pytest.mark.parametrize("kind", ["blank", "weak", "swapped"])
def test_a_hub_key_that_is_blank_or_weak_is_refused(tmp_path: Path, kind: str) -> None:
    directory = hub_directory(tmp_path)
    path = directory / "keys" / "server.key"
    whole = server_keys(directory / "keys")
    pair = {"weak": weak_pair(), "swapped": KeyPair(public=whole.public, secret=KeyPair.new().secret)}.get(kind)
    content = b"" if pair is None else json.dumps({"public": pair.public, "secret": pair.secret}).encode()
    write_private(path, content)
    with (
        pytest.raises(ConfigurationError, match=r"server\.key"),
        embedded_broker(dir=directory, endpoint="tcp://127.0.0.1:0", curve=True, **QUICK),
    ):
        pytest.fail("it must not start")


@pytest.mark.parametrize("kind", ["blank key", "blank certificate", "another key", "encrypted", "missing", "swapped"])
def test_a_certificate_that_cannot_be_used_is_refused_before_anything_starts(tmp_path: Path, kind: str) -> None:
    cert, key = certificate(tmp_path)
    if kind == "blank key":
        key.write_bytes(b"")
    elif kind == "blank certificate":
        cert.write_bytes(b"")
    elif kind == "another key":
        (tmp_path / "other").mkdir()
        key = certificate(tmp_path / "other")[1]
    elif kind == "encrypted":
        command = ["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:x", "-out", str(key)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    elif kind == "swapped":
        cert.chmod(0o644)
        cert, key = key, cert
    else:
        key.unlink()
    directory = hub_directory(tmp_path)
    options = ["--http", "127.0.0.1:0", "--http-cert", str(cert), "--http-key", str(key)]
    code, complaint = refused_web(directory, *options)
    assert code == 1
    assert str(key) in complaint or str(cert) in complaint
    assert ("swap http_cert and http_key" in complaint) == (kind == "swapped")
    assert "Traceback" not in complaint
    assert list(directory.iterdir()) == []


def date_again(cert: Path, key: Path, *, ends_at: datetime.datetime) -> None:
    """Sign the certificate again with another end; the `openssl` program makes none that has expired."""
    old = x509.load_pem_x509_certificate(cert.read_bytes())
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(old.issuer).public_key(old.public_key())
    builder = builder.serial_number(old.serial_number).not_valid_before(ends_at - datetime.timedelta(days=30))
    signer = load_pem_private_key(key.read_bytes(), None)
    cert.write_bytes(builder.not_valid_after(ends_at).sign(signer, SHA256()).public_bytes(Encoding.PEM))


@pytest.mark.parametrize("days", [2, -1])
def test_a_certificate_that_has_expired_is_told_of(tmp_path: Path, days: int) -> None:
    cert, key = certificate(tmp_path)
    date_again(cert, key, ends_at=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days))
    directory = hub_directory(tmp_path)
    write_private(directory / "messagehub.toml", f'http_cert = "{cert}"\nhttp_key = "{key}"\n'.encode())
    with Served(directory, "--http", "127.0.0.1:0", with_http=True) as hub:
        assert ("certificate has expired" in hub.log()) is (days < 0)
    doctor = [sys.executable, "-m", "messagehub", "doctor", "--json", "--dir", str(directory)]
    found = json.loads(preloaded.run(doctor, env=clean_environment(), timeout=60).stdout)["findings"]
    told = [(one["severity"], str(cert) in one["message"]) for one in found if one["check"] == "secrets"]
    assert told == ([("warning", True)] if days < 0 else [])


def test_wrong_and_missing_tokens_are_told_apart(web: Web) -> None:
    answers: list[httpx.Response] = [
        web.client.post("/subjects/s/versions", json=SCHEMA),
        web.client.post("/subjects/s/versions", json=SCHEMA, headers={"authorization": f"Bearer {new_token()}"}),
    ]
    assert [answer.json()["error_code"] for answer in answers] == [40101, 40101]
    missing, wrong = (answer.json()["message"] for answer in answers)
    assert "needs a token" in missing
    assert "is not known" in wrong
    log = web.directory / "audit-http.log"
    eventually(lambda: log.read_text().count('"UNAUTHORIZED"') == 2)
    reasons = [json.loads(line)["reason"] for line in log.read_text().splitlines()]
    assert reasons == ["no token", "unknown token"]


@pytest.mark.parametrize("secret", ["_" * 40, "two words of forty characters in a row !", "ö" * 40, ""])
def test_a_key_file_whose_secret_is_no_key_is_refused_with_what_to_do(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "a.key"
    write_private(path, json.dumps({"public": KeyPair.new().public, "secret": secret}).encode())
    with pytest.raises(ConfigurationError, match="remove it and make another one"):
        KeyPair.read(path)
