"""The hosts of a site under /api/v1/hosts."""

from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.routes import Operations
from registry import commands, replies

operations = Operations()


@operations.add("GET", "/api/v1/hosts", "observe")
async def hosts(backend: BrokerClient) -> replies.HostList:
    """The hosts of the site that the hub is a member of; none if it is a member of no site."""
    return await backend.ask(commands.ListHosts(), replies.HostList)
