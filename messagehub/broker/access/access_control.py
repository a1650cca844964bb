"""Who asks, whether they may, and how much: what stands between the sockets of a shared hub and its registry.

A hub that only its own user can reach has no access control, and pays nothing for this.

Rule 1: a peer is known by what authentication gave it, which libzmq attaches to every frame: its key, not the key's
name, since a name may get another key while a connection with the old one is open.
Rule 2: rights are looked up for each request, so one that is taken away ends with the next request, on open
connections too; what libzmq carries without us (events, topics) is cut, so that everybody has to come in again.
Rule 3: a lease belongs to the peer that registered under it, and ends when the peer is not listed any more.
Rule 4: a process that a peer names is watched only where the kernel says that it is the peer's. Of a peer with a key
nothing says where it runs: its registrations live by their lease alone.
"""

import hashlib
import logging
import os
import threading
from time import monotonic

import msgspec
import zmq

from messagehub import protocol
from messagehub.broker.access.authentication import (
    CONTROL,
    EVENTS,
    TOPICS_IN,
    TOPICS_OUT,
    TOPICS_RETAINED,
    TOPICS_SITE,
    TOPICS_SITE_RETAINED,
    TryAgainLater,
    user_of,
)
from messagehub.broker.access.peer_audit import PeerAudit
from messagehub.broker.access.peer_registrations import IsRegistered, PeerRegistrations, Registering, lease_of
from messagehub.broker.access.peer_tables import PeerTables
from messagehub.errors import ConfigurationError, Forbidden, HubError, RateLimited, Unauthorized
from messagehub.runtime.logs import LimitedLog
from messagehub.security.credentials import AccessFile, AccessList
from messagehub.security.rate_limits import TokenBuckets
from messagehub.settings import Settings
from registry import access, commands, names, replies
from registry.access import ADMIN, Rights
from registry.errors import Refusal
from registry.registry import Registry

log = logging.getLogger("messagehub.broker")

LOOK_SECONDS = 0.05
SILENCED_SECONDS = 1.0
_NOBLOCK = int(zmq.NOBLOCK)
_KEY, _USER = "key:", "user:"
_CHANGES = commands.UnregisterWorker | commands.UnregisterSubscriber | commands.RemovePool
_DATA = commands.PublishMessages | commands.FetchMessages | commands.AcknowledgeMessages
"""Those of services, which are not written to a store."""
HOST = "host:"
"""Begins the name of a peer of another hub of the site: `host:NAME user:UID`. Only that hub's key gives it."""
LOOPBACK = "loopback"
"""Anybody on this host, over plain TCP: as without access control."""


class ReturnPath(list[bytes]):
    """The way back to a peer, its name, and whether it has asked too often."""

    __slots__ = ("is_too_fast", "user")
    user: str
    is_too_fast: bool


class AccessControl:
    def __init__(self, settings: Settings) -> None:
        self._file = AccessFile(settings.access_path)
        self._version = self._file.version()
        self._look_at = 0.0
        self._looking = threading.Lock()
        self._is_reduced = False
        self._list = self._file.read()
        self._names: dict[str, str] = {}
        self._rights: dict[str, Rights] = {}
        self._own_users = {f"{_USER}{os.geteuid()}", f"{_USER}0", LOOPBACK}
        self._buckets, self._subscribing = TokenBuckets(0.0), TokenBuckets(0.0)
        self._registrations, self._table_places = PeerRegistrations(0), PeerTables(0)
        self.is_registered: IsRegistered | None = None
        """Says who is registered where the leases of the registry do not say it: at a hub that follows another one."""
        self._limit(settings)
        self._silenced_until: dict[str, float] = {}
        self._counting = threading.Lock()
        self._connections = LimitedLog(log, "connections")
        self._log_of_refusals = LimitedLog(log, "refusals")
        self.hung_up_on = 0
        self.denied = self.subscriptions_refused = self.subscriptions_too_many = 0
        self._audit = PeerAudit(settings)
        self._enforce(self._list)

    def _limit(self, settings: Settings) -> None:
        self._settings = settings
        self._group_rights = Rights.parse(settings.group_roles.split()) if settings.group else None
        self._buckets.rate = rate = settings.requests_per_second
        # Made once: a flood is refused as fast as it comes.
        said = f"more than {rate:g} requests a second come from this peer"
        self.too_fast = RateLimited(said, requests_per_second=rate)
        self._registrations.limit = self._table_places.limit = settings.registrations_per_peer
        limit = settings.subscriptions_per_peer
        self._subscribing.rate = max(rate, limit) if rate and limit else 0.0

    def reload(self, settings: Settings) -> None:
        """Take over the limits, the rights of the group and the size of the audit log, whose file is opened anew."""
        self._is_reduced |= settings.group_roles != self._settings.group_roles
        self._limit(settings)
        self._audit.reopen(settings)

    @classmethod
    def of(cls, settings: Settings) -> "AccessControl | None":
        return cls(settings) if settings.is_shared or settings.audit else None

    def close(self) -> None:
        self._audit.close()

    # -- authentication; on its thread ---------------------------------------------------------------------

    def identify(self, domain: str, mechanism: str, address: str, key: str) -> str | None:
        """The name of a peer that may connect to the socket of this domain, or None. Raises TryAgainLater."""
        self._look()
        user = self._names.get(key) if mechanism == "CURVE" else self._local_user(address)
        rights = self._rights_of(user) if user is not None else None
        is_silenced = domain == EVENTS and monotonic() < self._silenced_until.get(user or "", 0.0)
        if rights is None or is_silenced or not _may_connect(rights, domain):
            with self._counting:
                self.denied += 1
            what = {"socket": domain, "address": address, "mechanism": mechanism, "key": key or None}
            self._audit.write(user or address, "denied", user or "unknown", **what)
            why = (
                "it is not listed" if rights is None else "it said too much" if is_silenced else "it has no right to it"
            )
            known_as = user or (f"key {key}" if key else "a peer without a key")
            self._connections.info("refused %s from %s a connection to %s: %s", known_as, address, domain, why)
            if is_silenced and rights is not None:
                raise TryAgainLater
            return None
        if user is not None and not self._is_own(user):
            if domain == CONTROL:  # the first socket that a client opens
                self._connections.info("%s connects from %s", user, address)
            log.debug("%s connects to %s from %s", user, domain, address)
        return f"{_KEY}{key}" if mechanism == "CURVE" else user

    def name_of(self, known_as: str) -> str:
        """Return the name of an authenticated peer; for a key that is not listed any more, a name that nobody has."""
        if not known_as.startswith(_KEY):
            return known_as
        key = known_as.removeprefix(_KEY)
        return self._names.get(key) or f"{_KEY}-{key}"

    def _local_user(self, address: str) -> str | None:
        uid = user_of(address)
        if uid is not None:
            return f"{_USER}{uid}"
        return None if self._settings.is_shared else LOOPBACK

    # -- requests ------------------------------------------------------------------------------------------

    def receive(self, router: "zmq.Socket[bytes]") -> ReturnPath:
        """One message, or the beginning of one that has too many frames, with the name of its sender.

        What is too long for a way back is cut, which `split` refuses; what comes too fast is refused (`too_fast`)
        unread, and only its head is kept.
        """
        frames = ReturnPath((router.recv(_NOBLOCK),))
        frame = router.recv(_NOBLOCK, copy=False)
        while frame.more and len(frames) < protocol.MAX_FRAMES:
            frames.append(bytes(frame.buffer[: protocol.MAX_PATH_FRAME_BYTES + 1]))
            frame = router.recv(_NOBLOCK, copy=False)
        frames.user = user = self.name_of(str(frame.get("User-Id")))
        frames.is_too_fast = self.asks_too_often(user)
        frames.append(bytes(frame.buffer[: protocol.HEAD_BYTES]) if frames.is_too_fast else frame.bytes)
        return frames

    def named(self, frames: list[bytes], split: tuple[list[bytes], bytes]) -> tuple[ReturnPath, bytes]:
        """The same, with the sender's name on the path."""
        assert isinstance(frames, ReturnPath)
        path = ReturnPath(split[0])
        path.user, path.is_too_fast = frames.user, frames.is_too_fast
        return path, split[1]

    def asks_too_often(self, user: str) -> bool:
        """Count one request of a user, and return whether it is one too many."""
        return not self._is_own(user) and not self._buckets.take(user, monotonic())

    def is_too_fast(self, path: list[bytes]) -> bool:
        assert isinstance(path, ReturnPath)
        return path.is_too_fast

    def sender(self, path: list[bytes]) -> str:
        """The name of the peer that a request came from: `key:NAME` or `user:UID`."""
        return _user(path)

    def decode(self, path: list[bytes], body: bytes, registry: Registry) -> commands.AnyCommand:
        """The command, if its sender may ask for it."""
        command = protocol.decode(body)
        self._admit(_user(path), command, registry)
        return command

    def _admit(self, user: str, command: commands.AnyCommand, registry: Registry) -> None:
        rights = self._rights_of(user)
        if rights is None:
            raise Unauthorized("this key is not listed any more: ask whoever runs the hub", peer=user)
        if not rights.is_admin:
            places: list[str] = []
            if isinstance(command, commands.RequestSchema) and access.asks_by_content(command):
                places = _places(command, registry)
            access.check(rights, command, places=places)
        lease = lease_of(command)
        if lease is not None:
            self._check_lease(user, lease, rights)
        if isinstance(command, Registering):
            if command.pid is not None and not self._is_own(user) and not _is_process_of(user, command.pid):
                command.start_time = None  # without it a process is shown, and not watched
            is_registered = self.is_registered or registry.leases.has
            self._registrations.ask(user, command, is_registered, monotonic())
        elif isinstance(command, commands.TableSchema):
            self._table_places.take(user, command.channel, registry.channels, monotonic())

    def check_entry(self, uid: int, command: commands.RegisterProducer | commands.RegisterTable) -> None:
        """Raise a refusal if a user who registered in the directory had no right to register with the broker."""
        user = f"{_USER}{uid}"
        try:
            self._check_entry(user, command)
        except Refusal as error:
            if self._audit.is_new_entry(user, command):
                said = "refused the entry of %s for %s in the directory: %s: %s"
                self._log_of_refusals.info(said, user, command.channel, error.code, error.message)
                self._audit.refused_command(user, command, error.code)
            raise

    def adopted(self, uid: int, command: commands.RegisterProducer) -> None:
        self._audit.changed(f"{_USER}{uid}", command)

    def _check_entry(self, user: str, command: commands.RegisterProducer | commands.RegisterTable) -> None:
        rights = self._rights_of(user) or access.NOTHING
        if not rights.is_admin:
            access.check(rights, command)
        if isinstance(command, commands.RegisterProducer):
            self._check_lease(user, lease_of(command) or "", rights)

    def answered(self, path: list[bytes], command: commands.AnyCommand, reply: replies.Reply) -> None:
        """Keep count of what the peer holds."""
        self._registrations.answered(_user(path), command, reply)

    def leave_out(self, path: list[bytes], command: commands.AnyCommand, reply: replies.Reply) -> None:
        """Take off a list what the peer may not see."""
        access.leave_out(self._rights_of(_user(path)) or access.NOTHING, command, reply)

    def note(self, path: list[bytes], command: commands.AnyCommand, reply: replies.Reply, *, is_change: bool) -> None:
        """Before the answer leaves: what a peer has changed, or was refused to change.

        A question that finds nothing is no refusal, and messages are data, not changes of the hub.
        """
        if isinstance(reply, replies.Error):
            if command.writes or isinstance(command, _CHANGES):
                self._audit.refused_command(_user(path), command, reply.code)
        elif is_change and not isinstance(command, _DATA):
            revision = getattr(reply, "revision", None)
            self._audit.changed(_user(path), command, revision=revision)

    def refused(self, path: list[bytes], request: str, request_id: str | None, error: HubError) -> None:
        self._audit.refused_request(_user(path), request, request_id, error)

    # -- events --------------------------------------------------------------------------------------------

    def may_say_more(self, user: str) -> bool:
        """Whether a peer may say one more thing on the event socket: so much a second as it may hold subscriptions."""
        return self._is_own(user) or self._subscribing.take(user, monotonic())

    def hung_up(self, user: str) -> None:
        """A peer said too much there, and was cut off: it may come back in a moment."""
        self.hung_up_on += 1
        self._silenced_until[user] = monotonic() + SILENCED_SECONDS
        self._log_of_refusals.info("hung up on %s: it says too much on the event socket", user)
        self._audit.refused(user, code=RateLimited.code, socket=EVENTS)

    def may_watch(self, user: str, topic: bytes, *, others: int) -> bool:
        """`channel/NAME/` is about one channel; anything shorter is about all whose topic begins so.

        `others` is how many the peer watches already, over all its connections.
        """
        rights = self._rights_of(user)
        limit = self._settings.subscriptions_per_peer
        if limit and others >= limit:
            self.subscriptions_too_many += 1
            said = "refused %s a subscription to %s: it has %d already"
            self._log_of_refusals.info(said, user, _shown(topic), others)
            self._audit.refused(user, code="TOO_MANY_SUBSCRIPTIONS", topic=_shown(topic))
            return False
        if rights is None or not access.may_see(rights, topic.decode(errors="replace")):
            self.subscriptions_refused += 1
            said = "refused %s a subscription to %s: it has no right to observe that"
            self._log_of_refusals.info(said, user, _shown(topic))
            self._audit.refused(user, code="FORBIDDEN", topic=_shown(topic))
            return False
        return True

    # -- the list ------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Read the list again if it has changed; True when somebody may do less than before."""
        if monotonic() >= self._look_at:
            self._look_at = monotonic() + LOOK_SECONDS
            self._look()
        if not self._is_reduced:
            return False
        self._is_reduced = False  # authentication sets it when the list is in force, so nothing is missed here
        return True

    def _look(self) -> None:
        with self._looking:
            version = self._file.version()
            if version == self._version:
                return
            self._version = version
            try:
                listed = self._file.read()
            except (ConfigurationError, OSError) as error:
                log.error("%s; what was listed before stays in force", error)
                return
            before, self._list = self._list, listed
            self._enforce(listed)
            self._is_reduced |= any(listed.keys.get(name) != key for name, key in before.keys.items())
        log.info("%d keys are listed now", len(listed.keys))

    @property
    def access(self) -> str:
        """Changes whenever the rights of a peer do, also while no broker runs: workers of services then change keys."""
        return self._access

    def _enforce(self, listed: AccessList) -> None:
        self._access = hashlib.sha256(msgspec.json.encode(listed.keys, order="sorted")).hexdigest()[:16]
        if self._settings.curve:
            self._rights = {f"{_KEY}{name}": Rights.parse(key.rights) for name, key in listed.keys.items()}
            self._names = {key.proof: f"{_KEY}{name}" for name, key in listed.keys.items()}

    def _rights_of(self, user: str) -> Rights | None:
        """Return None for a peer that is not listed. Whoever runs the hub, and root, may do everything."""
        found = self._rights.get(user)
        if found is not None or user.startswith(_KEY):
            return found
        if user.startswith(HOST):
            return ADMIN  # the hub of that host has checked whoever asked it
        return ADMIN if self._is_own(user) else self._group_rights

    def _is_own(self, user: str) -> bool:
        return user in self._own_users

    def reachable(self, path: list[bytes], endpoints: dict[str, str], local: dict[str, str]) -> dict[str, str]:
        """Those that the peer may connect to, the way that it came."""
        user = _user(path)
        rights = self._rights_of(user) or access.NOTHING
        given = endpoints if user.startswith(_KEY) else local
        return {domain: endpoint for domain, endpoint in given.items() if _may_connect(rights, domain)}

    # -- leases --------------------------------------------------------------------------------------------

    def unlisted_leases(self) -> list[str]:
        """The leases of peers that are not listed any more."""
        return [lease for lease, user in self._registrations.owners().items() if self._rights_of(user) is None]

    def leases_ended(self, leases: list[str]) -> None:
        self._registrations.ended(leases)

    def _check_lease(self, user: str, lease: str, rights: Rights) -> None:
        owner = self._registrations.owner(lease) or user
        if owner != user and not rights.is_admin and self._rights_of(owner) is not None:
            raise Forbidden("this lease belongs to another peer", lease=lease)

    def counters(self) -> dict[str, int]:
        return {
            "denied_peers": self.denied,
            "refused_subscriptions": self.subscriptions_refused,
            "refused_too_many_subscriptions": self.subscriptions_too_many,
            "hung_up": self.hung_up_on,
            "audit_lost": self._audit.lost,
            "audit_skipped": self._audit.skipped,
        }

    def gauges(self) -> dict[str, int]:
        return {"lease_owners": len(self._registrations)}


def _user(path: list[bytes]) -> str:
    assert isinstance(path, ReturnPath)  # with access control, every path is one
    return path.user


def _is_process_of(user: str, pid: int) -> bool:
    """Whether a process of this host belongs to a peer that came over ipc."""
    try:
        return user == f"{_USER}{os.stat(f'/proc/{pid}').st_uid}"
    except OSError:
        return False


def _may_connect(rights: Rights, domain: str) -> bool:
    """Plain topics bypass us, so nobody could match a pattern there: they take a right to everything."""
    if domain == TOPICS_IN:
        return rights.allows_everything("produce")
    if domain in (TOPICS_OUT, TOPICS_RETAINED, TOPICS_SITE, TOPICS_SITE_RETAINED):
        return rights.allows_everything("consume") or rights.allows_everything("observe")
    return domain != EVENTS or rights.has("observe")


def _shown(topic: bytes) -> str:
    return topic[: names.MAX_LENGTH].decode(errors="replace")


def _places(command: commands.RequestSchema, registry: Registry) -> list[str]:
    """The subjects that hold the schema that is asked for; none when there is none."""
    schemas = registry.schemas
    try:
        if command.schema_id is not None:
            found = schemas.by_id(command.schema_id, "")
        elif command.guid is not None:
            found = schemas.by_guid(command.guid)
        else:
            found = schemas.by_hash(command.schema_hash or "")
    except HubError:
        return []
    return [place.subject for place in schemas.places(found.schema_id)]
