"""What a hub of a site answers about its hosts: who they are, and how to read what is in the memory of another one."""

import time
from collections.abc import Callable

from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.answers import Answer
from messagehub.broker.request_queue import Request
from messagehub.broker.site.link import Gateway, SiteLink
from messagehub.security.gateway_tokens import TOKEN_SECONDS, GatewayClaim, signed_token
from registry import commands, names, replies
from registry.registry import Registry

OWNER = "owner"


class HostAnswers:
    def __init__(self, link: SiteLink, access_control: AccessControl | None, role: Callable[[], str]) -> None:
        self._link = link
        self._access_control = access_control
        self._role = role

    def list(self, request: Request, registry: Registry, now: float) -> Answer:  # noqa: ARG002  one signature
        reply = replies.HostList(
            site=self._link.site,
            host=self._link.host,
            role="leader" if self._role() == "leader" else "follower",
            hosts=self._link.hosts(),
            age_seconds=round(self._link.age_seconds(), 3),
            revision=registry.revision,
        )
        return reply, []

    def gateway(self, request: Request, registry: Registry, now: float) -> Answer:  # noqa: ARG002  one signature
        """Answer with a token for one channel. The peer's right was checked before, as of any command."""
        path, command = request[:2]
        assert isinstance(command, commands.RequestGateway)
        user = OWNER if self._access_control is None else self._access_control.sender(path)
        return way_to(self._link.gateway(command.host), command, user=f"{self._link.host}:{user}"), []


def way_to(gateway: Gateway, command: commands.RequestGateway, *, user: str) -> replies.GatewayFound:
    """Return what it takes to call a gateway, with a token for one channel."""
    claim = GatewayClaim(
        host=command.host,
        channel=names.check_channel(names.logical(command.channel)),
        user=user,
        expires_at=time.time() + TOKEN_SECONDS,
        changes=command.changes,
    )
    return replies.GatewayFound(
        host=command.host,
        location=gateway.location,
        token=signed_token(gateway.secret, claim),
        valid_seconds=TOKEN_SECONDS,
        certificate=gateway.certificate,
    )
