"""What was written to a channel last: /api/v1/channels/{channel}/tail."""

import time
from functools import partial
from typing import Annotated, cast

import msgspec
from pydantic import BeforeValidator, Field

from messagehub.admin.api.parameters import Name, whole_number
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.item_rows import MAX_CELLS, RowsAnswer, shown_rows
from messagehub.admin.routes import Operations
from messagehub.admin.shared_answers import SharedAnswers
from messagehub.channels.newest_items import newest_items
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.location import directory_of
from registry import commands, replies

FRESH_SECONDS = 0.5
MAX_ITEMS, MAX_ROWS = 100, 1000
operations = Operations()
_answers: SharedAnswers[bytes] = SharedAnswers(seconds=FRESH_SECONDS)
ItemCount = Annotated[int, Field(ge=1, le=MAX_ITEMS), BeforeValidator(whole_number(1, MAX_ITEMS))]
RowCount = Annotated[int, Field(ge=1, le=MAX_ROWS), BeforeValidator(whole_number(1, MAX_ROWS))]


class TailItem(RowsAnswer, kw_only=True):
    """An item, or the newest table, whose producer is null and whose sequence is its generation."""

    producer_id: str | None
    shm_name: str
    sequence: int
    written_at: float
    kind: str
    size_bytes: int


class TailAnswer(msgspec.Struct):
    channel: str
    at: float
    items: list[TailItem]


@operations.add("GET", "/api/v1/channels/{channel}/tail", "consume", codes=(404, 42202, 42208))
async def tail(backend: BrokerClient, channel: Name, items: ItemCount = 10, rows: RowCount = 20) -> TailAnswer:
    """The newest items of a channel on the hub's host, oldest first, as columns and rows. Nobody waits for this."""
    backend.callers.check(commands.RegisterConsumer(channel=channel, consumer_id="tail"))
    found = await backend.ask(commands.Discover(channel=channel), replies.Discovered)
    directory = directory_of(backend.hub.settings)
    read = partial(_read, directory, found.channel, items, rows)
    body = await _answers.get((found.channel, items, rows), lambda: backend.run_for_monitor(read))
    return cast(TailAnswer, msgspec.Raw(body))


def _read(directory: Directory, channel: str, items: int, rows: int) -> bytes:
    found = newest_items(directory, channel, items)
    shown = []
    for item in found:
        answer = shown_rows(item.value, rows, MAX_CELLS // len(found))
        shown.append(
            TailItem(
                producer_id=item.producer_id,
                shm_name=item.shm_name,
                sequence=item.sequence,
                written_at=item.written_at,
                kind=item.format.removesuffix("_stream"),
                size_bytes=item.size_bytes,
                row_count=answer.row_count,
                columns=answer.columns,
                rows=answer.rows,
                truncated=answer.truncated,
            )
        )
    return msgspec.json.encode(TailAnswer(channel, time.time(), shown))
