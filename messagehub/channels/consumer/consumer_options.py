"""What a consumer asked for."""

from typing import Any, Literal, NamedTuple

from messagehub.channels.consumer.missing_hosts import OnUnreachable
from messagehub.channels.consumer.start import Start
from messagehub.shm.rings.reader import Copy

OnLag = Literal["gap", "raise", "skip"]


class ConsumerOptions(NamedTuple):
    channel: str
    start: Start
    expected_schema_hash: str | None
    expected_schema: Any  # an Arrow schema or a dtype, where one was given
    group: str | None
    on_lag: OnLag
    follow: bool
    lossless: bool
    verify: bool
    copy: Copy = "auto"
    spin_us: int = 0
    consumer_id: str = ""
    on_unreachable: OnUnreachable = "skip"
