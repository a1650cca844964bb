"""Credentials: the keys and tokens that `access.json` in the hub's directory lists, and key files.

Rule 1: secrets stand in files of their own (0600) or are kept as hashes; `access.json` holds public keys and hashes.
Rule 2: the file is replaced whole, under a lock, so whoever reads it while it changes reads the old or the new one.
Rule 3: a damaged or opened-up file stops a start; while the hub runs, the last good list stays in force.
Rule 4: every change of the list is written down in `audit-access.log`, whether a hub runs or not.
"""

import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zmq

from messagehub.errors import ConfigurationError, HubError
from messagehub.security.audit import AuditLog
from messagehub.security.private_files import check_own_directory, private_directory, read_private, write_private
from messagehub.settings import in_home
from messagehub.shm.locks import OWNER, Descriptor, exclusive, lock_within
from registry import names
from registry.access import Rights
from registry.decoding import decodable

log = logging.getLogger("messagehub")

LOCK_SECONDS = 5.0
KEY_LENGTH = 40
LEAST_TOKEN_LENGTH = 16
LEAST_DISTINCT = 8
"""A secret of fewer different characters was typed, not drawn at random."""
MAX_ENTRIES = 10_000
SERVER_KEY = "server.key"
AUDIT_NAME = "audit-access.log"
AUDIT_BYTES = 10 << 20
Version = tuple[int, int, int]


class ListedCredential(msgspec.Struct, kw_only=True):
    """One key or token. `proof` is the public key, or the token's hash."""

    proof: str
    rights: list[str]
    created_at: float = 0.0


@decodable
class AccessList(msgspec.Struct, kw_only=True):
    keys: dict[str, ListedCredential] = msgspec.field(default_factory=dict)
    tokens: dict[str, ListedCredential] = msgspec.field(default_factory=dict)


class AccessFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def version(self) -> Version | None:
        return version_of(self.path)

    def read(self) -> AccessList:
        try:
            found = msgspec.json.decode(read_private(self.path), type=AccessList)
        except FileNotFoundError:
            return AccessList()
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ConfigurationError(
                f"{self.path} is damaged ({error}): restore it, or remove it and list anew"
            ) from None
        try:
            for listed in (*found.keys.values(), *found.tokens.values()):
                Rights.parse(listed.rights)
            for key in found.keys.values():
                check_key(key.proof)
            for token in found.tokens.values():
                _check_hash(token.proof)
        except HubError as error:
            raise ConfigurationError(f"{self.path} is damaged: {error.message}") from None
        return found

    @contextlib.contextmanager
    def editing(self, request: str, name: str, rights: list[str] | None = None) -> Iterator[AccessList]:
        """Give the list to be changed.

        It is written after the block, unless that raises; the arguments go into the audit log.
        """
        private_directory_of(self.path)
        lock_path = str(self.path.with_suffix(".lock"))
        lock = Descriptor.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            lock_within(lock, exclusive(OWNER), lock_path, LOCK_SECONDS)
            found = self.read()
            yield found
            if len(found.keys) + len(found.tokens) > MAX_ENTRIES:
                raise ConfigurationError(f"{self.path} holds {MAX_ENTRIES} entries at most: revoke some")
            write_private(self.path, msgspec.json.format(msgspec.json.encode(found), indent=2))
            log = AuditLog(self.path.with_name(AUDIT_NAME), max_bytes=AUDIT_BYTES)
            log.write("changed", f"user:{os.getuid()}", request=request, name=name, rights=rights)
            log.close()
        finally:
            lock.close()


def version_of(path: Path) -> Version | None:
    """Return what differs whenever the file, its mode or its owner has been changed; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size


def private_directory_of(path: Path) -> None:
    """Have the hub's directory, which holds the path, to write in: the one that is there (a group may see it), or make
    a private one."""
    if path.parent.is_dir():
        check_own_directory(path.parent)
    else:
        private_directory(path.parent)


# -- tokens ----------------------------------------------------------------------------------------------------


def new_token() -> str:
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """Return the hash of a token. A plain hash is enough, since a token is 256 random bits and cannot be guessed."""
    return hashlib.sha256(token.encode()).hexdigest()


def _check_hash(proof: str) -> None:
    if not re.fullmatch("[0-9a-f]{64}", proof) or proof == token_hash(""):
        raise ConfigurationError(f"{proof[:70]!r} is not the hash of a token")


def read_owner_token(path: Path) -> str:
    """Return the token of whoever runs the hub, which may do everything; refuse one that could be guessed."""
    token = read_private(path).decode(errors="replace").strip()
    mend = f"rm {path}, and `messagehub serve` makes a new one"
    if not token:
        raise ConfigurationError(f"{path} is blank: {mend}")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigurationError(f"{path} holds more than one word of printable ASCII: {mend}")
    if len(token) < LEAST_TOKEN_LENGTH or len(set(token)) < LEAST_DISTINCT:
        least = f"at least {LEAST_TOKEN_LENGTH} characters, {LEAST_DISTINCT} of them different"
        raise ConfigurationError(f"{path} holds a token that could be guessed ({least}, are needed): {mend}")
    return token


class OwnerToken:
    """The token of whoever runs the hub, as its file has it now.

    A file that was replaced counts at once. One that was removed, or that would be refused at a start, lets nobody in;
    all else is served, also by a process that begins meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = version_of(path)
        self._listed = self._read()

    def listed(self) -> ListedCredential:
        """Return it as `access.json` lists tokens. Where nobody is let in, no token has the hash."""
        version = version_of(self._path)
        if version != self._version:
            self._version = version
            self._listed = self._read()
            if self._listed.proof:
                log.warning("%s was replaced: the token in it counts from now on", self._path)
        return self._listed

    def _read(self) -> ListedCredential:
        try:
            return ListedCredential(proof=token_hash(read_owner_token(self._path)), rights=["admin"])
        except (ConfigurationError, OSError) as error:
            log.error("%s; until that is mended it lets nobody in", error)
            return ListedCredential(proof="", rights=[])


def token_owner(tokens: dict[str, ListedCredential], given: str) -> str | None:
    """Return whose token it is, in the same time for every token."""
    digest = token_hash(given)
    owner = None
    for name, listed in tokens.items():
        if hmac.compare_digest(digest, listed.proof):
            owner = name
    return owner


# -- keys ------------------------------------------------------------------------------------------------------


@decodable
class KeyPair(msgspec.Struct, kw_only=True, frozen=True):
    """A CURVE key pair as its file has it, with the public key of the server it is for, if that is known."""

    public: str
    secret: str
    server_key: str = ""

    @classmethod
    def new(cls, server_key: str = "") -> "KeyPair":
        """Make a pair whose public key can be typed as an argument of a command: it does not begin like an option."""
        public, secret = zmq.curve_keypair()
        while public.startswith(b"-"):
            public, secret = zmq.curve_keypair()
        return cls(public=public.decode(), secret=secret.decode(), server_key=server_key)

    @classmethod
    def read(cls, path: Path) -> "KeyPair":
        try:
            pair = msgspec.json.decode(read_private(path), type=cls)
        except FileNotFoundError:
            raise ConfigurationError(f"there is no key file {path}: messagehub keys new") from None
        except (msgspec.DecodeError, UnicodeError):
            raise ConfigurationError(
                f"{path} is not a key file of messagehub: restore it, or remove it and make another one"
            ) from None
        check_key(pair.public)
        if not _is_z85(pair.secret) or zmq.curve_public(pair.secret.encode()).decode() != pair.public:
            raise ConfigurationError(
                f"the two keys in {path} do not belong together: restore it, or remove it and make another one"
            )
        if len(set(pair.secret)) < LEAST_DISTINCT:
            raise ConfigurationError(
                f"the secret key in {path} could be guessed: make another with messagehub keys new"
            )
        return pair

    def write(self, path: Path) -> None:
        """Write a key file. An existing one is never overwritten, since whoever has that key would be locked out."""
        try:
            write_private(path, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n", replace=False)
        except FileExistsError:
            raise ConfigurationError(f"{path} exists already: choose another name, or remove it first") from None

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def server_keys(directory: Path) -> KeyPair:
    """Return the hub's own key pair, made if there is none."""
    path = directory / SERVER_KEY
    if not path.exists():
        private_directory_of(directory)
    private_directory(directory)
    if not path.exists():
        try:
            write_private(path, msgspec.json.encode(KeyPair.new()), replace=False)
        except FileExistsError:
            pass  # somebody else made it in the same moment
    return KeyPair.read(path)


def server_public_key(directory: Path) -> str | None:
    """Return the public key of the hub; None while it has none. Nothing is made."""
    path = directory / SERVER_KEY
    return KeyPair.read(path).public if path.exists() else None


def check_key(public: str) -> str:
    if not _is_z85(public):
        raise ConfigurationError(f"{public[:60]!r} is not a public key: {KEY_LENGTH} characters of Z85")
    return public


def _is_z85(key: str) -> bool:
    """Return whether it has the form of a public or secret key: 32 bytes in Z85."""
    from zmq.utils import z85

    try:
        return len(key) == KEY_LENGTH and len(z85.decode(key.encode())) == 32
    except (ValueError, KeyError, UnicodeError):
        return False


def allow_key(access: AccessFile, name: str, public: str, rights: list[str]) -> None:
    """List a key, or give a listed one other rights. One key has one name."""
    names.check_role("key", name)
    check_key(public)
    rights = _checked(rights)
    with access.editing("KEY_ALLOW", name, rights) as found:
        for other, listed in found.keys.items():
            if listed.proof == public and other != name:
                raise ConfigurationError(f"this key is listed already, as {other!r}")
        found.keys[name] = ListedCredential(proof=public, rights=rights, created_at=time.time())


def allow_token(access: AccessFile, name: str, rights: list[str]) -> str:
    names.check_role("token", name)
    token = new_token()
    rights = _checked(rights)
    with access.editing("TOKEN_NEW", name, rights) as found:
        if name in found.tokens:
            raise ConfigurationError(f"there is a token {name!r} already: revoke it first, or choose another name")
        found.tokens[name] = ListedCredential(proof=token_hash(token), rights=rights, created_at=time.time())
    return token


def revoke(access: AccessFile, kind: str, name: str) -> ListedCredential:
    """Take a key or token off the list, and return its entry."""
    with access.editing(f"{kind.upper()}_REVOKE", name) as found:
        listed = (found.keys if kind == "key" else found.tokens).pop(name, None)
        if listed is None:
            raise ConfigurationError(f"no {kind} {name!r} is listed")
    return listed


def remove_revoked_key(path: Path, revoked: ListedCredential) -> bool:
    """Remove the file of a key that was revoked, so that its name is free; a file with another key stays."""
    try:
        if KeyPair.read(path).public != revoked.proof:
            return False
    except ConfigurationError:
        return False
    path.unlink()
    return True


def _checked(rights: list[str]) -> list[str]:
    return [str(right) for right in Rights.parse(rights).all]


class ClientKeys:
    """What a client's sockets need for CURVE; nothing is set when no server key is known."""

    def __init__(self, server_key: str, key_file: str) -> None:
        pair = KeyPair.read(in_home(key_file)) if key_file else None
        self.server = server_key or (pair.server_key if pair else "")
        if pair is not None and not self.server:
            raise ConfigurationError(f"the key file {key_file} names no server: say its public key with server_key")
        if self.server and pair is None:
            raise ConfigurationError("server_key is set, but not who this client is: name its own key with key_file")
        if self.server:
            check_key(self.server)
        self._pair = pair

    def secure(self, socket: "zmq.Socket[bytes]") -> None:
        if self.server and self._pair is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, self.server.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._pair.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._pair.secret.encode())
