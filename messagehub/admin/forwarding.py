"""Requests that came through a reverse proxy: who sent them, and under which path the proxy serves the hub.

Rule 1: a request came through a proxy if it has a header that proxies add, or a path with `http_prefix`. Whoever wrote
the header: a caller of this host has no reason to.
Rule 2: what such a header says counts only if the peer is one of `http_trusted_proxies`. The sender is then the last
address in X-Forwarded-For that is no trusted proxy; what stands before it may be anybody's invention.
Rule 3: a request is matched and answered as if it had come without the prefix.
"""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from starlette.types import ASGIApp, Receive, Scope, Send

FORWARDED, PREFIX = "is_forwarded", "public_prefix"
"""Keys of a request's scope: whether it came through a proxy, and what precedes its path where its sender is."""
_ADDED_BY_PROXIES = frozenset(
    (
        *(b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-prefix"),
        *(b"x-forwarded-server", b"x-forwarded-by", b"x-forwarded-ssl", b"x-forwarded-scheme", b"x-forwarded-uri"),
        *(b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"x-original-for"),
        *(b"true-client-ip", b"cf-connecting-ip", b"fastly-client-ip", b"x-envoy-external-address"),
    )
)


class Forwarding:
    def __init__(self, app: ASGIApp, *, trusted: str, prefix: str) -> None:
        """Both are as in the settings, which have checked them."""
        self._app = app
        self._proxies = TrustedProxies(trusted)
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._note(scope)
        await self._app(scope, receive, send)

    def _note(self, scope: Scope) -> None:
        has_prefix = bool(self._prefix) and self._remove_prefix(scope)
        if not has_prefix and not _is_of_a_proxy(scope):
            return
        scope[FORWARDED] = True
        scope[PREFIX] = self._prefix if has_prefix else ""
        client = scope.get("client")
        if client and client[0] in self._proxies:
            scope[PREFIX] = self._prefix
            headers = scope["headers"]
            given = ",".join(value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for")
            scope["client"] = (self._proxies.sender(given, client[0]), 0)
            scheme = dict(headers).get(b"x-forwarded-proto", b"").decode("latin-1").strip().lower()
            if scheme in ("http", "https"):
                scope["scheme"] = scheme

    def _remove_prefix(self, scope: Scope) -> bool:
        path: str = scope["path"]
        rest = path.removeprefix(self._prefix)
        if rest == path or rest[:1] not in ("", "/"):
            return False
        scope["path"] = rest or "/"
        scope["raw_path"] = scope["raw_path"].removeprefix(self._prefix.encode()) or b"/"
        return True


def _is_of_a_proxy(scope: Scope) -> bool:
    return any(name in _ADDED_BY_PROXIES for name, _ in scope["headers"])


class TrustedProxies:
    def __init__(self, listed: str) -> None:
        """`listed` has addresses and networks, with spaces between them."""
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(one) for one in listed.split()]
        self._is_one = lru_cache(maxsize=1024)(self._look)

    def __contains__(self, address: str) -> bool:
        return bool(self._networks) and self._is_one(address)

    def _look(self, address: str) -> bool:
        known = canonical(address)
        return known is not None and any(ip_address(known) in network for network in self._networks)

    def sender(self, forwarded_for: str, peer: str) -> str:
        """Return the address that a request comes from, as trusted proxies say. `peer` is the last of them."""
        sender = peer
        for text in reversed(forwarded_for.split(",")):
            address = canonical(text)
            if address is None:
                break
            sender = address
            if address not in self:
                break
        return sender


def canonical(text: str) -> str | None:
    """Return an address in its canonical form, without a port; None if it is none."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
