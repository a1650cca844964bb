"""How a hub reaches etcd: addresses, certificates, user and password. Checked before anything connects."""

from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from messagehub.errors import ConfigurationError


class EtcdAccess(Struct, frozen=True, kw_only=True):
    endpoints: tuple[str, ...]
    """`http://HOST:PORT` or `https://HOST:PORT`, one for each member of the cluster."""
    user: str = ""
    password_file: Path | None = None
    ca: Path | None = None
    """Certificates that the members' own are signed by; the system's where none is named."""
    cert: Path | None = None
    key: Path | None = None

    def checked(self) -> "EtcdAccess":
        """Return itself; raise ConfigurationError for what cannot be used."""
        if not self.endpoints:
            raise ConfigurationError("no address of etcd is given: name at least one, such as https://etcd1:2379")
        if len({is_secure(url) for url in map(_checked_url, self.endpoints)}) > 1:
            said = "addresses of etcd begin with http:// and with https://: all members of a cluster do the same"
            raise ConfigurationError(f"{said}, and a password must not go to one in clear text")
        if bool(self.cert) != bool(self.key):
            raise ConfigurationError("of etcd's client certificate and its key only one is given: they go together")
        if bool(self.user) != bool(self.password_file):
            raise ConfigurationError("of etcd's user and the file with the password only one is given")
        if not is_secure(self.endpoints[0]) and (self.ca or self.cert):
            raise ConfigurationError("certificates for etcd are given, but its addresses begin with http://")
        return self

    def password(self) -> str:
        """Return the first line of the file."""
        return _read(self.password_file, "the password of etcd's user").decode().partition("\n")[0]

    def certificates(self) -> dict[str, bytes | None]:
        """Return what `grpc.ssl_channel_credentials` takes."""
        return {
            "root_certificates": _read(self.ca, "the certificates that etcd's are signed by") or None,
            "private_key": _read(self.key, "the key of etcd's client certificate") or None,
            "certificate_chain": _read(self.cert, "etcd's client certificate") or None,
        }


def is_secure(url: str) -> bool:
    return url.startswith("https://")


def target(url: str) -> str:
    """Return HOST:PORT of an address that was checked."""
    return urlsplit(url).netloc


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and bool(parts.port)
    except ValueError:
        is_usable = False
    if not is_usable or parts.path.rstrip("/") or parts.query:
        raise ConfigurationError(f"{url!r} is no address of etcd: it is http://HOST:PORT or https://HOST:PORT")
    if "@" in parts.netloc:
        said = "an address of etcd holds a user or password, which every user of this host could see"
        raise ConfigurationError(f"{said}: name the user, and a file with the password")
    return url


def _read(path: Path | None, what: str) -> bytes:
    if path is None:
        return b""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{what} cannot be read from {path}: {error.strerror}") from None
