"""Rates and lag of the channels that have rings on the hub's host, under /api/v1/flow."""

from bisect import bisect_right
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from messagehub.admin.api.parameters import Flag, Limit, Name, NotGiven
from messagehub.admin.authentication import caller
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.endpoints import HandlerResult
from messagehub.admin.errors import HttpError
from messagehub.admin.routes import Operations
from messagehub.channels.flow import ChannelFlow, FlowSample, FlowTotals, RingFlow, totals_of
from registry import commands, replies

MOST_DETAILED, USUAL = 200, 1000
operations = Operations()


class ChannelFlowAnswer(ChannelFlow, kw_only=True):
    """`ring_list` comes with `detail`."""

    ring_list: list[RingFlow] | UnsetType = UNSET


class FlowAnswer(msgspec.Struct, kw_only=True):
    """`totals` are of all channels of the prefix that the caller may see."""

    at: float
    interval_seconds: float
    hidden: int
    totals: FlowTotals
    channels: list[ChannelFlowAnswer]


class OneFlowAnswer(ChannelFlow, kw_only=True):
    at: float
    interval_seconds: float
    ring_list: list[RingFlow]


class _Encoded:
    """The answers of the last sample, encoded, by what was asked: many consoles ask the same."""

    def __init__(self) -> None:
        self._sample: FlowSample | None = None
        self._answers: dict[Any, tuple[bytes, str | None]] = {}

    def of(self, sample: FlowSample) -> dict[Any, tuple[bytes, str | None]]:
        if sample is not self._sample:
            self._sample, self._answers = sample, {}
        return self._answers


_encoded = _Encoded()
_MOST_ENCODED = 100


@operations.add("GET", "/api/v1/flow", "observe", codes=(42202,))
async def flow(
    backend: BrokerClient,
    prefix: str = "",
    after: str = "",
    limit: Limit | NotGiven = None,
    detail: Flag = False,
) -> HandlerResult[FlowAnswer]:
    """Rates and lag of channels, by name. Bytes are estimates: items times their mean size."""
    backend.callers.check(commands.ListChannels(prefix=prefix))
    most = MOST_DETAILED if detail else USUAL
    if limit is not None and limit > (most if detail else limit):
        raise HttpError(422, 42202, f"limit is at most {MOST_DETAILED} with detail, not {limit}")
    sample = await backend.flow.sample()
    rights = caller.get().rights
    sees_all = rights.allows_prefix("observe", prefix)
    asked = (prefix, after, limit or most, detail, None if sees_all else str(rights))
    cached = _encoded.of(sample)
    if asked not in cached:
        names = [name for name in sample.channels if name.startswith(prefix)]
        if not sees_all:
            names = [name for name in names if rights.allows("observe", name)]
        if len(cached) >= _MOST_ENCODED:
            cached.clear()
        cached[asked] = _page(sample, names, after, limit or most, detail=detail)
    body, following = cached[asked]
    return HandlerResult(cast(FlowAnswer, msgspec.Raw(body)), following=following)


@operations.add("GET", "/api/v1/channels/{channel}/flow", "observe", codes=(404, 42208))
async def channel_flow(backend: BrokerClient, channel: Name) -> OneFlowAnswer:
    """Rates and lag of one channel, ring by ring and reader by reader."""
    found = await backend.ask(commands.Discover(channel=channel), replies.Discovered)
    sample = await backend.flow.sample(found.channel)
    summary = sample.channels.get(found.channel) or ChannelFlow(channel=found.channel)
    return OneFlowAnswer(
        at=sample.at,
        interval_seconds=sample.interval_seconds,
        ring_list=sample.rings.get(found.channel, []),
        **msgspec.structs.asdict(summary),
    )


def _page(sample: FlowSample, names: list[str], after: str, limit: int, *, detail: bool) -> tuple[bytes, str | None]:
    """Return an answer, encoded, and the name that the next page begins after."""
    shown = names[bisect_right(names, after) :]
    following = shown[limit - 1] if len(shown) > limit else None
    answer = FlowAnswer(
        at=sample.at,
        interval_seconds=sample.interval_seconds,
        hidden=sample.hidden,
        totals=totals_of(sample.channels[name] for name in names),
        channels=[
            ChannelFlowAnswer(
                ring_list=sample.rings[name] if detail else UNSET, **msgspec.structs.asdict(sample.channels[name])
            )
            for name in shown[:limit]
        ],
    )
    return msgspec.json.encode(answer), following
