"""Who calls, and what they may do: /api/v1/me, so that whoever shows operations offers only those that are allowed."""

import msgspec

from messagehub.admin.authentication import ANONYMOUS, caller
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.routes import Operations
from messagehub.version import __version__
from registry.access import ROLES, Role

operations = Operations()


class RightAnswer(msgspec.Struct):
    role: Role
    pattern: str


class MeAnswer(msgspec.Struct, kw_only=True):
    """`roles` are what the caller has for some name at least, `roles_everywhere` for all names. A role may include
    others, which are listed too."""

    name: str
    anonymous: bool
    rights: list[RightAnswer]
    roles: list[Role]
    roles_everywhere: list[Role]
    draining: bool
    version: str


@operations.add("GET", "/api/v1/me", None)
async def me(backend: BrokerClient) -> MeAnswer:
    """Who calls, and what they may do."""
    who = caller.get()
    return MeAnswer(
        name=who.name,
        anonymous=who.name == ANONYMOUS,
        rights=[RightAnswer(right.role, right.pattern) for right in who.rights.all],
        roles=[role for role in ROLES if who.rights.has(role)],
        roles_everywhere=[role for role in ROLES if who.rights.allows_everything(role)],
        draining=backend.is_draining,
        version=__version__,
    )
