"""What the loop of a member says to the threads that connect it with its site, and what they say to it.

Plain values both ways: the loop never waits for etcd or for another hub, and knows neither of them.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Protocol

from messagehub.broker.access.access_control import ReturnPath
from messagehub.broker.polling import Polling
from messagehub.broker.topics.other_hubs import HubTopics
from registry.events import AnyEvent
from registry.records import SiteHost, Table
from registry.registry import Registry

Kind = Literal["command", "report", "heartbeats", "topic"]
"""What another hub asks of the leader, or (`topic`) of the home host of a retained topic."""
Status = Literal["done", "not_leader", "not_home"]
"""`not_home`: the topic is not there yet, or not any more."""


class HubPath(ReturnPath):
    """The way back to another hub of the site: its connection, its host, and the number that it gave to its request."""

    __slots__ = ("host", "number")
    host: str
    number: int


class Loaded(NamedTuple):
    """A copy of the registry that was loaded anew. What follows comes after it."""

    registry: Registry
    is_for_leader: bool = False
    """Whether it was loaded while this hub led, and nothing follows it."""


class Followed(NamedTuple):
    """One transaction of the leader. `events` is None if they have to be loaded."""

    before: int
    revision: int
    events: list[AnyEvent] | None


class Won(NamedTuple):
    """This hub leads, as soon as its copy has reached `revision`, at which the leadership began."""

    leadership: int
    revision: int
    epoch_floor: int
    begin: Callable[[], None]
    """Have the store write under this leadership."""


class Lost(NamedTuple):
    why: str


class LeaderSeen(NamedTuple):
    """Another leadership than before; None: no other hub leads."""

    leadership: int | None


class Answered(NamedTuple):
    """An answer of the leader. The copy has to reach `revision` before anybody may hear of it."""

    number: int
    status: Status
    revision: int
    payload: bytes


class Asked(NamedTuple):
    """A request that another hub forwards, for the leader of `leadership`."""

    path: HubPath
    kind: Kind
    leadership: int
    body: bytes


class HomeAnswered(NamedTuple):
    """An answer of the home host of a retained topic."""

    host: str
    number: int
    status: Status
    payload: bytes


class HostsSeen(NamedTuple):
    """The hosts that are members, those of them whose lease lives, and what the hubs of the others say."""

    known: frozenset[str]
    alive: frozenset[str]
    topics: frozenset[HubTopics]
    """Where their topics are heard."""
    access: str = ""
    """Changes whenever the rights of a peer of theirs do."""
    kept_limits: frozenset[tuple[str, int]] = frozenset()
    """How many bytes the retained topics of each host may keep."""


class Gateway(NamedTuple):
    """The Arrow Flight gateway of a host."""

    location: str
    secret: str
    """What the tokens for it are signed with."""
    certificate: str
    """The chain that it shows, in PEM form; empty without encryption."""


News = Loaded | Followed | Won | Lost | LeaderSeen | Answered | HomeAnswered | Asked | HostsSeen


class SiteLink(Protocol):
    site: str
    host: str

    @property
    def site_id(self) -> str:
        """The id of the site, which another one of the same name does not have; not final while nothing was written."""

    def poll_by(self, polling: Polling) -> None:
        """Have the loop wake up when `take` has something to give."""

    def polls(self, fd: int) -> bool:
        """Return whether the loop was woken for `take`."""

    def take(self, *, takes_requests: bool) -> list[News]:
        """Return what has happened, in order, a bounded number at a time; requests of other hubs only if wanted."""

    def send(self, number: int, kind: Kind, body: bytes, *, user: str, leadership: int) -> None:
        """Send a request to the hub of this leadership. An `Answered` follows, or nothing."""

    def ask_host(self, host: str, number: int, body: bytes, *, user: str) -> None:
        """Send a request about a retained topic to its home host. A `HomeAnswered` follows, or nothing."""

    def leave_host(self, host: str) -> None:
        """Drop the connection to a home host, with all that waits to be sent there."""

    def answer(self, path: HubPath, status: Status, revision: int, payload: bytes) -> bool:
        """Answer a request of another hub."""

    def flush(self) -> None:
        """Send the requests and answers of this turn of the loop."""

    def end_leading(self) -> None:
        """Have the store write nothing more."""

    def load_anew(self) -> None:
        """Have `Loaded` come, and then what follows it."""

    def resign(self, why: str) -> None:
        """Stop leading; another hub, or this one, is elected."""

    def tell(self, revision: int, *, access: str) -> None:
        """Let other hubs know how far this one is, and that the rights of its peers have changed."""

    def hosts(self) -> list[SiteHost]:
        """Return the hosts of the site as they were seen last."""

    def set_topics(self, endpoint: str, retained: str) -> None:
        """Let other hubs know where to hear what is published to topics here, and what is stored of them."""

    def set_kept_limit(self, limit_bytes: int) -> None:
        """Let the leader know how many bytes the retained topics of this host may keep."""

    def tables_seen(self, tables: Mapping[str, Table]) -> None:
        """Take all tables of the registry, by channel: parts of them may be on this host."""

    def table_changed(self, channel: str, table: Table | None) -> None:
        """Take the newest table of a channel, or that there is none any more."""

    def gateway(self, host: str) -> Gateway:
        """Return the gateway of a host; raise GatewayUnavailable where there is none, or the host is lost."""

    def age_seconds(self) -> float:
        """Return for how long nothing has confirmed that the copy is all there is."""

    def problem(self) -> str:
        """Return what is wrong with etcd, or with what is in it; an empty text if nothing is."""

    def outdated(self) -> str:
        """Return why this hub is too old for its site, so that its copy stays as it is; an empty text if it is not."""
