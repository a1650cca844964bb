"""Whether the HTTP side of a hub answers and takes writes, asked over HTTP as anybody would."""

import json
from typing import NamedTuple
from urllib.parse import urlsplit

DRAINING = "HTTP takes no writes until somebody sends DELETE /api/v1/drain"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for every interface, and where to ask instead."""


class HttpHealth(NamedTuple):
    why_silent: str | None
    """Why `GET /healthz` is not answered within the timeout, or None when it is."""
    is_draining: bool | None = None
    """Return None if the answer does not say."""


def why_silent(url: str, *, timeout: float) -> str | None:
    return ask(url, timeout=timeout).why_silent


def ask(url: str, *, timeout: float) -> HttpHealth:
    """The certificate is not checked: it names the host that callers know, and nothing secret is sent."""
    import http.client  # with email and ssl a fifth of what a command imports, for hubs with HTTP only
    import ssl

    parts = urlsplit(url)
    host = _EVERYWHERE.get(parts.hostname or "", parts.hostname or "")
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, parts.port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=timeout)
    try:
        connection.request("GET", "/healthz", headers={"Connection": "close"})
        response = connection.getresponse()
        if response.status >= 500:
            return HttpHealth(f"GET /healthz is answered with {response.status}")
        return HttpHealth(None, _says_draining(response.read(10_000)))
    except TimeoutError:
        return HttpHealth(f"no answer within {timeout:g} s")
    except (OSError, http.client.HTTPException) as error:
        return HttpHealth(str(error) or type(error).__name__)
    finally:
        connection.close()


def _says_draining(answer: bytes) -> bool | None:
    try:
        return bool(json.loads(answer).get("draining", False))
    except (ValueError, AttributeError):
        return None
