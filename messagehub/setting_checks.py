"""What each setting may be. `Settings.load` asks here before anything uses a setting.

`BadValue` names the setting, so that whoever loaded it can say where it came from.
"""

import math
import re
from typing import Any
from urllib.parse import urlsplit

from messagehub.errors import HubError

MOST_SECONDS = 7 * 86_400.0
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
GROUP_ROLES = "consume produce"
MOST_SPIN_US = 1000
_DOMAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=+,-]{0,199}")
_SHM_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,31}")
_HTTP_PREFIX = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
HTTP_PATHS = frozenset(
    (
        *("subjects", "schemas", "config", "mode", "compatibility", "contexts", "v1", "api"),
        *("docs", "openapi.json", "healthz", "readyz", "metrics"),
    )
)
"""What the paths that HTTP serves begin with."""
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SITE_ONLY = ("etcd_user", "etcd_password_file", "etcd_ca", "etcd_cert", "etcd_key", "site_endpoint", "gateway")
LEAST_HOST_LEASE_SECONDS = 2.0
_LEAST = {
    "trace_size": 0,
    "kept_limit_bytes": 0,
    "audit_bytes": 1,
    "requests_per_second": 0,
    "registrations_per_peer": 0,
    "subscriptions_per_peer": 0,
}
_MOST = 2**63 - 1
_USUAL_PORTS = {"http": 80, "https": 443}


class BadValue(Exception):
    """`reason` completes a sentence that begins with the first setting and its value.

    Where two settings do not go together, `names` has both.
    """

    def __init__(self, reason: str, *names: str) -> None:
        super().__init__(f"{names[0]} {reason}")
        self.reason = reason
        self.names = names


def check(settings: Any) -> None:
    """Raise BadValue for the first of the `Settings` that cannot be used."""
    _check_numbers(settings)
    _check_words(settings)
    _check_addresses(settings)
    _check_rights(settings)
    _check_proxies(settings.http_trusted_proxies)
    _check_prefix(settings.http_prefix)
    _check_site(settings)


MOST_PORT = 65535


def host_and_port(address: str) -> tuple[str, int] | None:
    """Return the two parts of HOST:PORT, or None where it is none. An IPv6 address may stand in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MOST_PORT:
        return None
    return host.strip("[]"), int(port)


def is_any_address(host: str) -> bool:
    """Whether a host stands for all addresses of this one, so that nobody elsewhere can connect to it."""
    return host in ("", "*", "0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Whether a host is a name or an address of the loopback interface."""
    from ipaddress import ip_address  # which every client would load for nothing

    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _check_numbers(settings: Any) -> None:
    for name in settings.__struct_fields__:
        if name.endswith("_seconds") and not 0 < getattr(settings, name) <= MOST_SECONDS:
            raise BadValue(f"is not a number of seconds above 0 and up to {MOST_SECONDS:.0f}", name)
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if not math.isfinite(value) or not least <= value <= _MOST:
            raise BadValue(f"is not a number of {least} or more", name)
    if not 0 <= settings.spin_us <= MOST_SPIN_US:
        raise BadValue(f"is not a number of microseconds from 0 to {MOST_SPIN_US}", "spin_us")
    if 0 < settings.requests_per_second < 1:
        raise BadValue("would let nobody in: it is 0 (no limit), or 1 or more", "requests_per_second")
    for less, more in (("heartbeat_seconds", "stall_seconds"), ("stall_seconds", "lease_seconds")):
        if not getattr(settings, less) < getattr(settings, more):
            raise BadValue(f"is not less than {more} = {getattr(settings, more):g}", less, more)
    first, most = "reconnect_first_seconds", "reconnect_max_seconds"
    if getattr(settings, first) > getattr(settings, most):
        raise BadValue(f"is more than {most} = {getattr(settings, most):g}", first, most)


def _check_words(settings: Any) -> None:
    if settings.store_sync not in ("full", "off"):
        raise BadValue("is neither full nor off", "store_sync")
    if settings.log.upper() not in LOG_LEVELS:
        raise BadValue(f"is not one of {', '.join(LOG_LEVELS)}", "log")
    if settings.log_format not in ("text", "json"):
        raise BadValue("is neither text nor json", "log_format")
    if settings.transport not in ("auto", "zmq"):
        raise BadValue("is neither auto nor zmq", "transport")
    if not _DOMAIN.fullmatch(settings.domain):
        raise BadValue("must begin with a letter, digit or '_' and hold no '/', '@' or spaces", "domain")
    if not _SHM_PREFIX.fullmatch(settings.shm_prefix):
        raise BadValue("must be a letter and up to 31 letters, digits, '_', '-' or '.'", "shm_prefix")


def _check_addresses(settings: Any) -> None:
    for name in ("endpoint", "events_endpoint"):
        endpoint: str = getattr(settings, name)
        if endpoint.startswith("tcp://"):
            if host_and_port(endpoint.removeprefix("tcp://")) is None:
                raise BadValue("must be tcp://HOST:PORT", name)
        elif endpoint and (not endpoint.startswith("ipc://") or endpoint == "ipc://"):
            raise BadValue("must start with ipc:// or tcp:// and name a place", name)
        elif endpoint and not endpoint.startswith("ipc:///"):
            raise BadValue("is relative to wherever each process was started: name an absolute path", name)
    if settings.http is not None and host_and_port(settings.http) is None:
        raise BadValue("is not HOST:PORT", "http")
    for origin in settings.http_cors.split():
        if origin != "*" and not _is_origin(origin):
            raise BadValue(f"names {origin!r}, which is no origin such as https://lab.example:8443", "http_cors")
    if bool(settings.http_cert) != bool(settings.http_key):
        given, missing = ("http_cert", "http_key") if settings.http_cert else ("http_key", "http_cert")
        raise BadValue(f"is set and {missing} is not: they go together", given)


def _is_origin(text: str) -> bool:
    """Whether a browser would send it: scheme and host in small letters, and a port that is not the scheme's own."""
    try:
        parts = urlsplit(text)
        is_whole = bool(parts.hostname) and parts.scheme in _USUAL_PORTS
        is_usual = parts.port in (0, _USUAL_PORTS.get(parts.scheme))
    except ValueError:
        return False
    is_bare = "@" not in parts.netloc and not parts.netloc.endswith(":")
    return is_whole and not is_usual and is_bare and text == f"{parts.scheme}://{parts.netloc}".lower()


def _check_rights(settings: Any) -> None:
    for name in ("http_anonymous", "group_roles"):
        value = getattr(settings, name)
        if value and value != GROUP_ROLES:
            # Not above: most processes load settings that name no rights of their own.
            from registry.access import Rights

            try:
                Rights.parse(value.split())
            except HubError as error:
                raise BadValue(f"is refused: {error.message}", name) from None


def _check_proxies(listed: str) -> None:
    if not listed:
        return
    from ipaddress import ip_network  # which every client would load for nothing

    for text in listed.split():
        try:
            ip_network(text)
        except ValueError as error:
            said = "is not a list of addresses and networks such as 127.0.0.1 or 10.1.0.0/16"
            raise BadValue(f"{said}: {error}", "http_trusted_proxies") from None


def _check_prefix(prefix: str) -> None:
    if prefix and not _HTTP_PREFIX.fullmatch(prefix):
        raise BadValue("is not a path such as /hub, without a slash at its end", "http_prefix")
    if prefix and prefix.split("/")[1] in HTTP_PATHS:
        raise BadValue("begins with a path of the hub's own: choose another", "http_prefix")


def _check_site(settings: Any) -> None:
    if bool(settings.site) != bool(settings.etcd):
        given, missing = ("site", "etcd") if settings.site else ("etcd", "site")
        advice = f"say --{missing} too, or set {missing} in messagehub.toml"
        raise BadValue(f"is set and {missing} is not: {advice}. The registry of a site is in etcd", given)
    for name in _SITE_ONLY:
        if getattr(settings, name) and not settings.site:
            raise BadValue("is set, but this hub is a member of no site: name one with site and etcd", name, "site")
    if settings.gateway_unencrypted and not settings.site:
        raise BadValue("is set, but this hub is a member of no site", "gateway_unencrypted", "site")
    if settings.host_lease_seconds < LEAST_HOST_LEASE_SECONDS:
        raise BadValue(f"is less than {LEAST_HOST_LEASE_SECONDS:g} s, which a busy host may miss", "host_lease_seconds")
    if not settings.site:
        return
    if not _SITE.fullmatch(settings.site):
        raise BadValue("is not a letter or digit and up to 63 letters, digits, '_', '-' or '.'", "site")
    if settings.store_sync == "off":
        raise BadValue("has no effect in a member of a site, whose registry is in etcd: leave it out", "store_sync")
    endpoint = settings.site_endpoint
    if endpoint and (not endpoint.startswith("tcp://") or host_and_port(endpoint.removeprefix("tcp://")) is None):
        raise BadValue("must be tcp://HOST:PORT", "site_endpoint")
    hubs = host_and_port(settings.hubs_endpoint.removeprefix("tcp://"))
    if hubs is not None and is_any_address(hubs[0]):
        said = (
            "stands for all addresses, so other hubs cannot connect to it: name one in site_endpoint, tcp://HOST:PORT"
        )
        raise BadValue(said, "site_endpoint" if endpoint else "endpoint")
    if hubs is not None and hubs[1] > MOST_PORT - 2:
        raise BadValue(f"needs a port up to {MOST_PORT - 2}: topics take the one two above it", "site_endpoint")
    if settings.gateway and host_and_port(settings.gateway) is None:
        raise BadValue("must be HOST:PORT", "gateway")
