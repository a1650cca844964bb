"""Channels under /api/v1/channels: what they are, who is attached and where their data is."""

from typing import Annotated, Any

import msgspec
from fastapi import Depends

from messagehub.admin.api.listing import listed
from messagehub.admin.api.parameters import Limit, Name, NotGiven
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.endpoints import HandlerResult
from messagehub.admin.errors import HttpError
from messagehub.admin.routes import JsonBody, Operations
from registry import commands, replies
from registry.channels.groups import assignment
from registry.records import Block, Consumer, Producer

operations = Operations()
_CHANNEL = "/api/v1/channels/{channel}"


class ChannelBody(msgspec.Struct, forbid_unknown_fields=True):
    """What CHANNEL_CREATE takes."""

    schema_hash: str | None = None
    schema_version: str | None = None
    schema: dict[str, Any] | str | bool | None = None
    schema_type: str | None = None
    access: str | None = None
    priority: str = "normal"
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class GroupAnswer(msgspec.Struct):
    group: str
    epoch: int
    blocks: list[str]
    members: dict[str, replies.Assignment]


@operations.add("GET", "/api/v1/channels", "observe", codes=(42202,))
async def channels(
    backend: BrokerClient, prefix: str = "", after: str = "", limit: Limit | NotGiven = None
) -> HandlerResult[list[replies.ChannelSummary]]:
    async def ask(after: str, limit: int) -> tuple[list[replies.ChannelSummary], str | None]:
        command = commands.ListChannels(prefix=prefix, after=after, limit=limit)
        page = await backend.ask(command, replies.ChannelList)
        return page.channels, page.next

    return await listed(ask, lambda one: one.channel, after, limit)


@operations.add("GET", _CHANNEL, "observe", codes=(404, 42208))
async def channel(backend: BrokerClient, channel: Name) -> replies.ChannelDescription:
    return await backend.ask(commands.DescribeChannel(channel=channel), replies.ChannelDescription)


@operations.add("POST", _CHANNEL, "admin", writes=True, codes=(409, 422, 42201, 42205, 42208, 42209))
async def create_channel(
    backend: BrokerClient, channel: Name, body: Annotated[ChannelBody, Depends(JsonBody(ChannelBody))]
) -> replies.ChannelCreated:
    fields = msgspec.structs.asdict(body) | {"type": "CHANNEL_CREATE", "channel": channel}
    try:
        command = msgspec.convert(fields, commands.CreateChannel)
    except msgspec.ValidationError as error:
        raise HttpError(422, 422, f"the body does not fit: {error}") from None
    return await backend.ask(command, replies.ChannelCreated)


@operations.add("GET", f"{_CHANNEL}/discovery", "observe", codes=(404, 42208))
async def discover(backend: BrokerClient, channel: Name, expected_schema_hash: str = "") -> replies.Discovered:
    command = commands.Discover(channel=channel, expected_schema_hash=expected_schema_hash[:256] or None)
    return await backend.ask(command, replies.Discovered)


@operations.add("GET", f"{_CHANNEL}/producers", "observe", codes=(404, 42208))
async def producers(backend: BrokerClient, channel: Name) -> list[Producer]:
    return (await backend.ask(commands.Discover(channel=channel), replies.Discovered)).producers


@operations.add("GET", f"{_CHANNEL}/consumers", "observe", codes=(404, 42208))
async def consumers(backend: BrokerClient, channel: Name) -> list[Consumer]:
    return (await backend.ask(commands.ListConsumers(channel=channel), replies.ConsumerList)).consumers


@operations.add("DELETE", f"{_CHANNEL}/producers/{{member}}", "admin", writes=True, codes=(404, 42208))
async def evict_producer(backend: BrokerClient, channel: Name, member: Name) -> replies.MemberEvicted:
    """End the registration of a producer. It is told, and ends its stream."""
    command = commands.EvictMember(channel=channel, member_id=member, role="producer")
    return await backend.ask(command, replies.MemberEvicted)


@operations.add("DELETE", f"{_CHANNEL}/consumers/{{member}}", "admin", writes=True, codes=(404, 42208))
async def evict_consumer(backend: BrokerClient, channel: Name, member: Name) -> replies.MemberEvicted:
    """End the registration of a consumer. It is told, and no producer waits for it any more."""
    command = commands.EvictMember(channel=channel, member_id=member, role="consumer")
    return await backend.ask(command, replies.MemberEvicted)


@operations.add("GET", f"{_CHANNEL}/groups", "observe", codes=(404, 42208))
async def groups(backend: BrokerClient, channel: Name) -> list[GroupAnswer]:
    """The consumer groups of a channel, and which part each member reads."""
    found = await backend.ask(commands.DescribeChannel(channel=channel), replies.ChannelDescription)
    return [
        GroupAnswer(
            name, group.epoch, group.blocks, {member: assignment(name, group, member) for member in group.members}
        )
        for name, group in sorted(found.channel.groups.items())
    ]


@operations.add("GET", f"{_CHANNEL}/blocks", "observe", codes=(404, 42208))
async def blocks(backend: BrokerClient, channel: Name) -> list[Block]:
    """Where a channel's data is in shared memory."""
    found = await backend.ask(commands.Discover(channel=channel), replies.Discovered)
    blocks = found.blocks
    while found.blocks and len(blocks) < found.blocks_total:
        command = commands.Discover(channel=channel, blocks_offset=len(blocks))
        found = await backend.ask(command, replies.Discovered)
        blocks += found.blocks
    return blocks
