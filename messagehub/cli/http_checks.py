"""What of HTTP can be refused before anything starts: its address, its certificate and its token."""

import importlib.util
import re
import ssl
from pathlib import Path

from messagehub.errors import ConfigurationError
from messagehub.security.credentials import new_token, read_owner_token
from messagehub.security.private_files import check_private, write_private
from messagehub.setting_checks import host_and_port, is_loopback
from messagehub.settings import Settings

DEFAULT_ADDRESS = "127.0.0.1:8081"
TOKEN_NAME = "http.token"
PEM_BYTES = 65536
_WRONG_DATES = (9, 10)
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


def check_http(settings: Settings, *, is_open: bool) -> None:
    """Refuse what the HTTP process could not serve with, or what would let everybody in."""
    host, _ = http_address(settings)
    if not settings.http_cert and not is_loopback(host):
        raise ConfigurationError(
            f"--http {settings.http} is not on the loopback interface: serve HTTPS with --http-cert and --http-key,"
            " or use 127.0.0.1:PORT"
        )
    if is_open and not is_loopback(host):
        raise ConfigurationError("--http-open is for the loopback interface: make tokens with `messagehub tokens new`")
    if settings.http_cert:
        check_certificate(settings.http_cert, settings.http_key)
    token = settings.dir / TOKEN_NAME
    if not is_open and token.exists():
        read_owner_token(token)


def make_token(settings: Settings) -> None:
    """Make the token of whoever runs the hub, once, readable by its owner only."""
    path = settings.dir / TOKEN_NAME
    try:
        write_private(path, f"{new_token()}\n".encode(), replace=False)
    except FileExistsError:
        read_owner_token(path)


def wrong_dates(settings: Settings) -> str | None:
    """Say that the certificate, which `check_http` has accepted, has expired or is not valid yet; None when it is.

    OpenSSL checks them: a client that trusts this certificate alone shakes hands with a server that shows it, in
    memory. Only the dates can be wrong then.
    """
    if not settings.http_cert:
        return None
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(settings.http_cert, settings.http_key)
    client.check_hostname = False
    client.load_verify_locations(settings.http_cert)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (asking, answering, asking):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in _WRONG_DATES:
                return f"{settings.http_cert} is served, and clients refuse it: {error.verify_message}"
            break
    return None


def is_available() -> bool:
    """Whether the `admin` extra is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("fastapi", "uvicorn"))


def http_address(settings: Settings) -> tuple[str, int]:
    found = host_and_port(settings.http or DEFAULT_ADDRESS)
    assert found is not None  # settings are checked when they are loaded
    return found


def check_certificate(cert: str, key: str) -> None:
    if _holds(cert) == "a private key" and _holds(key) == "a certificate":
        raise ConfigurationError(f"{cert} holds a private key, and {key} a certificate: swap http_cert and http_key")
    check_private(Path(key).resolve())

    def refuse_password() -> str:
        raise ConfigurationError(f"the private key {key} is encrypted: store it without a passphrase, readable by you")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, refuse_password)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"cannot serve HTTPS with the certificate {cert} and the key {key}: {_reason(error)}"
        ) from None
    except OSError as error:
        missing = next((path for path in (cert, key) if not Path(path).is_file()), cert)
        raise ConfigurationError(f"cannot read {missing}: {error.strerror}") from None


def _holds(path: str) -> str:
    """Say what the first PEM block of the file is; blank for what cannot be read, or is not PEM."""
    try:
        text = Path(path).read_bytes()[:PEM_BYTES]
    except OSError:
        return ""
    found = re.search(rb"-----BEGIN ([A-Z ]+)-----", text)
    name = found[1] if found else b""
    return "a private key" if name.endswith(b"PRIVATE KEY") else "a certificate" if b"CERTIFICATE" in name else ""


def _reason(error: ssl.SSLError) -> str:
    known = {
        "KEY_VALUES_MISMATCH": "the key is not the certificate's",
        "NO_START_LINE": "one of them is blank, or not in PEM form",
        "EE_KEY_TOO_SMALL": "the key is too short to be safe",
    }
    return known.get(error.reason or "", error.reason or str(error) or "one of them is not in PEM form")
