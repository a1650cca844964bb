"""One frozen Settings: defaults < file < environment < arguments.

The directory holds the state of one hub: its database, its lock, its sockets and `messagehub.toml`.
Its location comes from the arguments or the environment only, since the file lies in it.
A setting that cannot be used is refused here, with the place that it came from, before anything starts.
"""

import hashlib
import logging
import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from messagehub import setting_checks
from messagehub.arguments import plain
from messagehub.errors import ConfigurationError
from messagehub.setting_checks import BadValue
from registry.decoding import decodable

SOCKET_PATH_LIMIT_BYTES = 107
_LONGEST_SOCKET = "broker-events.sock"
_ENVIRONMENT = {
    "endpoint": "MESSAGEHUB_ENDPOINT",
    "http": "MESSAGEHUB_HTTP",
    "domain": "MESSAGEHUB_DOMAIN",
    "log": "MESSAGEHUB_LOG",
    "transport": "MESSAGEHUB_TRANSPORT",
    "store_sync": "MESSAGEHUB_STORE_SYNC",
    "server_key": "MESSAGEHUB_SERVER_KEY",
    "key_file": "MESSAGEHUB_KEY",
}


RELOADABLE = frozenset(
    {
        *("log", "audit_bytes", "group_roles", "kept_limit_bytes"),
        *("requests_per_second", "registrations_per_peer", "subscriptions_per_peer"),
        *("http_cert", "http_key", "http_anonymous", "http_cors"),
        *("http_access_log", "http_trusted_proxies", "http_prefix"),
    }
)
"""What a running hub takes over at SIGHUP; everything else waits for the next start."""


_HUB_ONLY = RELOADABLE | {
    *("http", "log_format", "store_sync", "audit", "group"),
    *("site", "etcd", "etcd_user", "etcd_password_file", "etcd_ca", "etcd_cert", "etcd_key"),
    *("site_endpoint", "host_lease_seconds", "gateway", "gateway_unencrypted"),
}
"""What no client reads from the file."""
_told: set[str] = set()
log = logging.getLogger("messagehub")


class _Refused(NamedTuple):
    """Why settings cannot be used, and the names of the one, or the two that do not go together."""

    said: str
    names: tuple[str, ...]
    is_overridden: bool = False
    """Whether the file has it, and the environment or an argument stands above that."""


@decodable
class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dir: Path
    """The directory with the hub's database, sockets, keys and settings. Named with `--dir`, `dir=` or the variable,
    never in the file that lies in it."""
    endpoint: str = ""
    """Where requests go: `ipc://PATH` or `tcp://HOST:PORT`."""
    events_endpoint: str = ""
    """Where events are published: `ipc://PATH` or `tcp://HOST:PORT`."""
    http: str | None = None
    """Where HTTP is served: `HOST:PORT`."""
    domain: str = "default"
    """Which directory of channels in shared memory: a name without `/`, `@` and spaces."""
    log: str = "INFO"
    """The level: DEBUG, INFO, WARNING, ERROR, CRITICAL; from the environment also for clients."""
    log_format: str = "text"
    """`text`, or `json`: an object a line on stderr, with `time` (UTC), `level`, `logger`, `pid`, `message`,
    `exception`."""
    shm_prefix: str = "pylabhub_"
    """How the names of rings begin: a letter and up to 31 letters, digits, `_`, `-`, `.`."""
    heartbeat_seconds: float = 5.0
    """How often a client says that it lives; less than `stall_seconds`."""
    stall_seconds: float = 15.0
    """A member that is silent for so long is `stalled`, and may be replaced; less than `lease_seconds`."""
    lease_seconds: float = 30.0
    """A member that is silent for so long is unregistered."""
    beacon_seconds: float = 1.0
    """How often the broker publishes its newest revision, so that watchers notice what they missed."""
    request_timeout_seconds: float = 5.0
    """How long a client waits for an answer where the call says nothing else."""
    transport: str = "auto"
    """How a client talks to the hub of its own host: `auto` (its unix socket, else ZeroMQ) or `zmq`."""
    hello_timeout_seconds: float = 0.5
    """How long a client waits until it takes a silent broker for none."""
    reconnect_first_seconds: float = 0.05
    """The first pause before a client tries to connect again; pauses grow to `reconnect_max_seconds`."""
    reconnect_max_seconds: float = 2.0
    """The longest pause; not less than the first."""
    trace_size: int = 10_000
    """How many exchanges `messagehub trace` can look back at: 0 or more."""
    spin_us: int = 50
    """How many microseconds a producer or consumer waits without sleeping, where that paid lately: 0 to 1000."""
    store_sync: str = "full"
    """`full`: an answer comes when the disk has the change. `off`: a power cut may lose the last changes; kill -9
    does not."""
    kept_limit_bytes: int = 64 * 2**30
    """How much all retained topics may keep together: 0 or more."""
    # Who may come in (docs/howto/shared-hub.md). A client names its own key and the server's public one.
    curve: bool = False
    """Keys on TCP: only peers whose key is listed may connect."""
    group: str = ""
    """A group of this host whose members share the hub."""
    group_roles: str = setting_checks.GROUP_ROLES
    """What members of the group may do: rights, separated by spaces."""
    server_key: str = ""
    """Of a client: the hub's public key, where the key file does not name it."""
    key_file: str = ""
    """Of a client: the file with its own key."""
    audit: bool | None = None
    """Whether who did what is written to `audit.log`."""
    audit_bytes: int = 10 << 20
    """How large `audit.log` gets before it is turned over: 1 or more."""
    # What one peer of a shared hub may take; 0 is without a limit.
    requests_per_second: float = 10_000.0
    """How many requests a second one peer may send: 0 for no limit, or 1 or more."""
    registrations_per_peer: int = 10_000
    """How many producers, consumers, workers and subscribers one peer may have: 0 for no limit."""
    subscriptions_per_peer: int = 10_000
    """How many events one peer may watch: 0 for no limit."""
    http_cert: str = ""
    """The certificate, a file in PEM form; goes with `http_key`."""
    http_key: str = ""
    """The key of the certificate, a private file in PEM form."""
    http_anonymous: str | None = None
    """What callers without a token may do: rights, separated by spaces; an empty text for none."""
    http_cors: str = ""
    """Origins such as `https://lab.example:8443` whose pages may call the hub, separated by spaces, or `*`."""
    http_access_log: bool = False
    """A line in the log for each HTTP request."""
    # Behind a reverse proxy (docs/howto/reverse-proxy.md): whose word counts, and under which path it serves the hub.
    http_trusted_proxies: str = ""
    """Addresses and networks of reverse proxies, separated by spaces."""
    http_prefix: str = ""
    """The path under which a reverse proxy serves the hub, such as `/hub`."""
    # A site: several hubs that share one registry (docs/howto/several-hosts.md).
    site: str = ""
    """The name of the site that the hub is a member of; goes with `etcd`."""
    etcd: str = ""
    """The addresses of etcd's members: `http://HOST:PORT` or `https://HOST:PORT`, separated by commas."""
    etcd_user: str = ""
    """The user of etcd; goes with `etcd_password_file`."""
    etcd_password_file: str = ""
    """The file with the password of etcd's user, in its first line."""
    etcd_ca: str = ""
    """The certificates that those of etcd's members are signed by, a file in PEM form; the system's where none is
    named."""
    etcd_cert: str = ""
    """The certificate to show to etcd, a file in PEM form; goes with `etcd_key`."""
    etcd_key: str = ""
    """The key of that certificate."""
    site_endpoint: str = ""
    """Where this hub takes what other hubs of the site forward: `tcp://HOST:PORT`, which they can reach. Beside a TCP
    endpoint: five ports above it. Two ports above that, they hear what is published to topics here."""
    gateway: str = ""
    """Where the hub's Arrow Flight gateway serves, which other hosts can reach: `HOST:PORT`. By default the host of
    `site_endpoint`, and any port."""
    gateway_unencrypted: bool = False
    """Whether the gateway may serve beyond loopback without the certificate `http_cert`."""
    host_lease_seconds: float = 10.0
    """A host whose hub is silent for so long is lost, and what is registered there ends: 2 or more."""

    @classmethod
    def load(cls, **arguments: Any) -> "Settings":
        """Return the settings of a hub. Arguments that are None count as not given."""
        return cls._load(arguments, skips_hub_settings=False)

    @classmethod
    def for_client(cls, **arguments: Any) -> "Settings":
        """Return the settings for whoever only uses the hub of the directory, or looks at it.

        What is wrong in the file with a setting that only the hub reads, with a name that nobody knows, or with a line
        that is not TOML, is told once as a warning: the hub that runs was started before somebody wrote that, and its
        clients go on. A line that looks like one of the clients' own settings is refused.
        """
        return cls._load(arguments, skips_hub_settings=True)

    @classmethod
    def _load(cls, arguments: dict[str, Any], *, skips_hub_settings: bool) -> "Settings":
        given = {name: plain(value) for name, value in arguments.items() if value is not None}
        directory = _directory(given.pop("dir", None))
        file = directory / "messagehub.toml"
        from_file, damage = _from_file(file)
        if damage is not None:
            _refuse_or_warn(damage.said, goes_on=skips_hub_settings and all(map(_is_of_hub, damage.names)))
        from_environment = {name: os.environ[key] for name, key in _ENVIRONMENT.items() if os.environ.get(key)}
        while isinstance(found := cls._refused(directory, from_file, from_environment, given), _Refused):
            where = _where(found, file, from_file, from_environment, given)
            goes_on = skips_hub_settings and where == f" in {file}" and _is_of_hub(found.names[0])
            _refuse_or_warn(f"bad setting{where}: {found.said}", goes_on=goes_on)
            from_file = {name: value for name, value in from_file.items() if name not in found.names}
        return found

    @classmethod
    def _refused(
        cls,
        directory: Path,
        from_file: dict[str, Any],
        from_environment: dict[str, str],
        given: dict[str, Any],
    ) -> "Settings | _Refused":
        """Return the settings, or the first thing that is wrong with them."""
        values = from_file | from_environment | given
        for name in sorted(values.keys() - (set(cls.__struct_fields__) - {"dir"})):
            return _Refused(_unknown(name), (name,))
        for name in sorted(from_file.keys() & (from_environment.keys() | given.keys())):
            # It would be used the next time, when nothing stands above it.
            refused = cls._of(values | {name: from_file[name]}, directory)
            if isinstance(refused, _Refused) and refused.names == (name,):
                return _Refused(refused.said, (name,), is_overridden=True)
        return cls._of(values, directory)

    @classmethod
    def _of(cls, values: dict[str, Any], directory: Path) -> "Settings | _Refused":
        try:
            settings = msgspec.convert(values | {"dir": directory.absolute()}, cls, strict=False)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `$.")
            name = path.rstrip("`")
            return _Refused(f"{name} = {values[name]!r}: {reason}", (name,))
        try:
            return settings._checked()
        except BadValue as error:
            first = error.names[0]
            return _Refused(f"{first} = {getattr(settings, first)!r} {error.reason}", error.names)

    def _checked(self) -> "Settings":
        setting_checks.check(self)
        endpoint = self.endpoint or f"ipc://{broker_socket(self.dir)}"
        events = self.events_endpoint or _events_beside(endpoint)
        for name, used in (("endpoint", endpoint), ("events_endpoint", events)):
            if used.startswith("ipc://") and len(os.fsencode(used[6:])) > SOCKET_PATH_LIMIT_BYTES:
                reason = f"needs the socket path {used[6:]!r}, longer than the {SOCKET_PATH_LIMIT_BYTES} bytes that"
                raise BadValue(f"{reason} Linux takes: use a shorter one", name, "endpoint")
        return msgspec.structs.replace(self, endpoint=endpoint, events_endpoint=events)

    def to_json(self) -> str:
        """Return the settings in a form that `from_json` takes, for a process of the same hub."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        """Return settings that `load` has checked in another process."""
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value))

    def changed(self, other: "Settings") -> list[str]:
        """Return the names of the settings that differ."""
        return [name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)]

    @property
    def lock_path(self) -> Path:
        """Held by the broker that runs in the directory."""
        return self.dir / "broker.lock"

    @property
    def status_path(self) -> Path:
        """What a running broker says of itself."""
        return self.dir / "broker.json"

    @property
    def database_path(self) -> Path:
        """The registry: schemas, channels, retained topics."""
        return self.dir / "registry.db"

    @property
    def access_path(self) -> Path:
        """Which keys and tokens may do what."""
        return self.dir / "access.json"

    @property
    def site_path(self) -> Path:
        """Which site the hub is a member of."""
        return self.dir / "site.json"

    @property
    def home_topics_path(self) -> Path:
        """The messages and positions of the retained topics of a site whose home is this host."""
        return self.dir / "retained.db"

    @property
    def home_topics_since_path(self) -> Path:
        """The revision of the site at which that database was new."""
        return self.dir / "retained-since"

    @property
    def keys_path(self) -> Path:
        """The directory of the hub's own keys."""
        return self.dir / "keys"

    @property
    def is_shared(self) -> bool:
        """Whether anybody but the user who runs the hub is meant to use it."""
        return self.curve or bool(self.group)

    @property
    def local(self) -> "Settings":
        """With keys on TCP, the ipc endpoints in the directory, which local peers use beside it."""
        return msgspec.structs.replace(self, endpoint="", events_endpoint="", curve=False)._checked()

    @property
    def local_socket(self) -> Path | None:
        """The unix socket for clients of this host, beside an ipc endpoint; None where there is none."""
        return local_socket_of(self.endpoint)

    @property
    def topic_endpoints(self) -> tuple[str, str, str]:
        """Where publishers push and where subscribers listen (also to retained topics), beside the endpoint."""
        if self.endpoint.startswith("ipc://"):
            path = Path(self.endpoint[6:])
            pushed, heard, retained = (path.with_name(f"{path.stem}-{end}.sock") for end in ("in", "out", "stored"))
            return f"ipc://{pushed}", f"ipc://{heard}", f"ipc://{retained}"
        first, second, third = (ports_above(self.endpoint, step) for step in (2, 3, 4))
        return first, second, third

    @property
    def site_topics_endpoints(self) -> tuple[str, str]:
        """Where subscribers listen to what is published on other hosts of the site, and to what is stored there."""
        if self.endpoint.startswith("ipc://"):
            path = Path(self.endpoint[6:])
            pushed, retained = (path.with_name(f"{path.stem}-{end}.sock") for end in ("site", "homes"))
            return f"ipc://{pushed}", f"ipc://{retained}"
        return ports_above(self.endpoint, 6), ports_above(self.endpoint, 9)

    @property
    def hubs_endpoint(self) -> str:
        """Where this hub takes what other hubs of the site forward; empty if no setting says it."""
        if self.site_endpoint:
            return self.site_endpoint
        return ports_above(self.endpoint, 5) if self.endpoint.startswith("tcp://") else ""

    @property
    def is_local(self) -> bool:
        """Whether the endpoint is the one of this directory, so that its lock tells if a broker runs."""
        own = f"ipc://{broker_socket(self.dir)}"
        return self.endpoint == own or (self.curve and not self.key_file)  # the file there says where it listens


def ports_above(endpoint: str, step: int) -> str:
    """Return the TCP endpoint that is so many ports above another one; any port if there is no such port."""
    base, _, text = endpoint.rpartition(":")
    port = int(text) + step if int(text) else 0
    return f"{base}:{port if port < 65536 else 0}"


def default_dir() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else in_home("~") / ".local" / "state") / "messagehub"


def in_home(path: str | Path) -> Path:
    """Return the path with a leading `~` replaced by the home directory of its user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigurationError(
            f"user {os.geteuid()} has no home directory (HOME is not set, and there is no entry in the password"
            f" database), so {str(path)!r} leads nowhere: name the hub's directory with --dir or MESSAGEHUB_DIR"
        ) from None


def _directory(given: str | Path | None) -> Path:
    return in_home(given or os.environ.get("MESSAGEHUB_DIR") or default_dir())


def broker_socket(directory: Path) -> Path:
    """In the directory, or where that is too long for this socket or one beside it, in a private directory named by its
    hash."""
    if len(os.fsencode(directory / _LONGEST_SOCKET)) > SOCKET_PATH_LIMIT_BYTES:
        digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
        directory = Path(f"/tmp/messagehub-{os.getuid()}") / digest
    return directory / "broker.sock"


def local_socket_of(endpoint: str) -> Path | None:
    """Return the unix socket beside an ipc endpoint; None for another endpoint, or where its path were too long."""
    path = Path(endpoint.removeprefix("ipc://"))
    beside = path.with_name(f"{path.stem}-local.sock") if path.is_absolute() and path.name else None
    return beside if beside and len(os.fsencode(beside)) <= SOCKET_PATH_LIMIT_BYTES else None


def _events_beside(endpoint: str) -> str:
    """ipc: a socket beside the broker's. tcp: the next port, or any free one beside any free one (port 0)."""
    if endpoint.startswith("ipc://"):
        path = Path(endpoint[6:])
        return f"ipc://{path.with_name(path.stem + '-events.sock')}"
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if int(port) > 65534:
        raise BadValue("leaves no port for events: use one below 65535", "endpoint")
    return f"tcp://{host}:{int(port) + 1 if int(port) else 0}"


def _where(
    refused: _Refused, file: Path, from_file: dict[str, Any], from_environment: dict[str, str], given: dict[str, Any]
) -> str:
    """Name the file or variable that the setting came from; the caller knows its own arguments."""
    if refused.is_overridden:
        return f" in {file}"
    name = next((name for name in refused.names if name in from_file | from_environment | given), "")
    if name in given:
        return ""
    if name in from_environment:
        return f" in the environment variable {_ENVIRONMENT[name]}"
    return f" in {file}" if name in from_file else ""


def _is_of_hub(name: str) -> bool:
    """Whether clients go on without it: a setting that only the hub reads, or a name that resembles none of theirs."""
    near = get_close_matches(name, Settings.__struct_fields__, 1)
    return name in _HUB_ONLY or (name not in Settings.__struct_fields__ and (not near or near[0] in _HUB_ONLY))


def _unknown(name: str) -> str:
    if name == "dir":
        return "the directory is named with --dir or MESSAGEHUB_DIR, not in a file that lies in it"
    near = get_close_matches(name, Settings.__struct_fields__, 1)
    return f"there is none called {name!r}" + (f"; is {near[0]!r} meant?" if near else "")


def _refuse_or_warn(said: str, *, goes_on: bool) -> None:
    """Raise what is wrong, or where it is no business of the caller's, warn of it once."""
    is_new = said not in _told
    _told.add(said)
    if not goes_on:
        raise ConfigurationError(said)
    if is_new:
        log.warning("%s. Clients go on without it; the hub does not start with it", said)


def _from_file(path: Path) -> tuple[dict[str, Any], _Refused | None]:
    """Return the settings of the file. Where it is not TOML: those of its good lines, and what is wrong."""
    try:
        data = path.read_bytes()
        return tomllib.loads(data.decode()), None
    except FileNotFoundError:
        return {}, None
    except PermissionError:
        raise ConfigurationError(
            f"permission denied for {path}: whoever uses this hub reads its settings there, so its owner runs chmod 640"
            f" {path} (and chgrp GROUP {path}) for a hub of a group, or adds you to the group (usermod -aG GROUP USER)"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        values, names = _good_lines(data.decode(errors="replace"))
        said = f"{path} is not TOML: {error}; correct that line: name = value, a text in quotes, each name once"
        return values, _Refused(said, tuple(names))


def _good_lines(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return what the lines that are TOML set, and the first word of each that is not. All settings take one line."""
    values: dict[str, Any] = {}
    names: list[str] = []
    for line in text.splitlines():
        try:
            found = tomllib.loads(line)
        except tomllib.TOMLDecodeError:
            found = None
        if found is None or found.keys() & values.keys():
            names.append(line.partition("=")[0].strip().split(" ")[0])
        else:
            values |= found
    return values, names
