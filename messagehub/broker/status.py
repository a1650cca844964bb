"""The broker's answers about itself: HELLO, PING, statistics and traces."""

from typing import Any

from messagehub import protocol
from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.access.access_version import AccessVersion
from messagehub.broker.schema_worker.checker import SchemaChecker
from messagehub.broker.stats import BrokerStats
from messagehub.broker.topics.origins import MessageOrigins
from messagehub.broker.topics.proxy import TopicProxy
from messagehub.broker.tracing import TraceRing
from messagehub.errors import GatewayUnavailable
from messagehub.settings import Settings
from messagehub.version import __version__
from registry import commands, replies
from registry.registry import Registry


class BrokerInfo:
    def __init__(
        self,
        broker_id: str,
        settings: Settings,
        *,
        access_control: AccessControl | None,
        access_version: AccessVersion,
        topics: TopicProxy,
        schema_checker: SchemaChecker[Any],
        stats: BrokerStats,
        trace: TraceRing,
        origins: MessageOrigins,
    ) -> None:
        self.endpoints: dict[str, str] = {}
        self.local_endpoints: dict[str, str] = {}
        """The endpoints for clients of this host; with keys they differ from those for other hosts."""
        self.is_read_only = False
        self.problems: dict[str, str] = {}
        """Problems by the part of the hub that has them."""
        self._broker_id = broker_id
        self._settings = settings
        self._access_control = access_control
        self._access_version = access_version
        self._topics = topics
        self._schema_checker = schema_checker
        self._stats = stats
        self._trace = trace
        self._origins = origins

    def hello(self, command: commands.Hello, path: list[bytes], registry: Registry) -> replies.Reply:
        access_control, settings = self._access_control, self._settings
        version, warning = protocol.negotiate(command.versions)
        reply = replies.HelloAck(
            version=version,
            broker_id=self._broker_id,
            revision=registry.revision,
            heartbeat_seconds=settings.heartbeat_seconds,
            lease_seconds=settings.lease_seconds,
            beacon_seconds=settings.beacon_seconds,
            endpoints=self.endpoints
            if access_control is None
            else access_control.reachable(path, self.endpoints, self.local_endpoints),
            server=f"messagehub/{__version__}",
        )
        if warning:
            reply.warning = warning
        if settings.site:
            reply.site = settings.site
        reply.access = self._access_version.current()
        return reply

    def ping(self, command: commands.Ping, _: list[bytes], registry: Registry) -> replies.Reply:
        if command.echo is not None:
            self._topics.echo(command.echo.encode())
        pong = replies.Pong(broker_id=self._broker_id, revision=registry.revision, read_only=self.is_read_only)
        problems = [*self.problems.values(), *filter(None, [self._schema_checker.problem])]
        if problems:
            pong.problems = problems
        return pong

    def hosts(self, _: commands.ListHosts, __: list[bytes], registry: Registry) -> replies.Reply:
        """Answer for a hub that is a member of no site; a member of one answers itself."""
        return replies.HostList(
            site=None, host=None, role="single", hosts=[], age_seconds=0.0, revision=registry.revision
        )

    def gateway(self, _: commands.RequestGateway, __: list[bytes], ___: Registry) -> replies.Reply:
        """Refuse for a hub that is a member of no site; a member of one answers itself."""
        raise GatewayUnavailable("this hub is a member of no site, so it knows no gateway to another host")

    def stats(self, _: commands.Stats, __: list[bytes], registry: Registry) -> replies.Reply:
        return self._stats.stats(registry, is_read_only=self.is_read_only)

    def trace(self, command: commands.Trace, _: list[bytes], __: Registry) -> replies.Reply:
        exchanges = self._trace.find(command.correlation_id, limit=command.limit)
        self._origins.add_offsets(exchanges)
        return replies.TraceReport(exchanges=exchanges)
