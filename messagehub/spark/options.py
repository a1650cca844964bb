"""The options of `format("messagehub")`, checked once.

Spark hands them over as text, in lower case, together with its own (`_OF_SPARK`). Of a catalog table's options it hands
over none, when the table is read or written.
"""

import datetime
import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from messagehub.errors import HubError
from messagehub.settings import Settings
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.tables.manifests import Retention
from messagehub.shm.tables.tables import TableStore
from messagehub.spark.errors import BadOption
from registry import names
from registry.records import PayloadKind
from registry.topics.patterns import Patterns

_OF_SPARK: Final = ("path", "paths", "checkpointLocation", "queryName")
_OF_CATALOG: Final = "option."
_OF_TABLES: Final = ("provider", "owner", "location")
"""CREATE TABLE … OPTIONS (k 'v') hands over both `k` and `option.k`, and these."""
_WHICH_CHANNEL: Final = (
    'say which channel, .option("channel", NAME), or topic, .option("topic", PATTERN). Spark does not keep the options'
    " of a catalog table: use"
    " CREATE TEMPORARY VIEW … USING messagehub OPTIONS (channel 'NAME'), or SELECT … FROM table WITH (channel = 'NAME')"
)
_DEFAULT_PARTITION_BYTES: Final = 128 << 20
EARLIEST: Final = -2
LATEST: Final = -1
Use = Literal["read", "readStream", "write", "writeStream"]
_TRANSACTION: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class Options:
    """Plain data: it is pickled to every process that works on the DataFrame. It names a channel or topics."""

    channel: str = ""
    topic: str | None = None
    endpoint: str | None = None
    domain: str | None = None
    dir: str | None = None
    generation: int | None = None
    expected_schema: str | None = None
    max_partition_bytes: int = _DEFAULT_PARTITION_BYTES
    fail_on_data_loss: bool = True
    starting_offsets: str | dict[str, int] = "earliest"
    starting_at: float | None = None
    ending_offsets: str | dict[str, int] = "latest"
    payload_kind: PayloadKind = "bytes"
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    keep_generations: int = 1
    keep_bytes: int | None = None
    keep_seconds: float | None = None
    transaction: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str], use: Use | None = None) -> "Options":
        """Refuse what is unknown, and where the use is known what has no effect on it."""
        said = {name.lower(): value for name, value in given.items()}
        if any(name.startswith(_OF_CATALOG) for name in said):
            said = {name.removeprefix(_OF_CATALOG): value for name, value in said.items() if name not in _OF_TABLES}
        for name in said:
            _known(name)
            if use is not None and use not in _USES.get(name, (use,)):
                raise BadOption(f"option {_ACCEPTED[name]} is for {' and '.join(_USES[name])}; this is a {use}")
        for one, other in _NOT_BOTH:
            if one.lower() in said and other.lower() in said:
                raise BadOption(f"give one of {one} and {other}")
        values = {_READERS[name][0]: _value(name, text) for name, text in said.items() if name in _READERS}
        channel = said.get("channel") or said.get("path") or _only_one(said.get("paths"))
        _check_one_kind(said, channel)
        if "topic" in said:
            return cls(**values)
        if not channel:
            raise BadOption(_WHICH_CHANNEL)
        for name in ("startingoffsets", "startingtimestamp"):
            if use == "read" and name in said:
                raise BadOption(f"option {_ACCEPTED[name]} is for readStream; this is a read of a channel")
        return cls(**values | {"channel": _checked_channel(channel, use)})

    @property
    def is_of_topics(self) -> bool:
        return self.topic is not None

    @property
    def is_of_many_channels(self) -> bool:
        return _is_pattern(self.channel)

    def channels(self) -> list[str]:
        """Return the channels of this host that the option names now; one that is named in full need not be there."""
        if not self.is_of_many_channels:
            return [self.channel]
        matches = Patterns(self.channel).matches
        return [name for name in self.directory().channels() if matches(name)]

    @property
    def patterns(self) -> Patterns:
        assert self.topic is not None
        return Patterns(self.topic.split(","))

    def settings(self) -> Settings:
        return Settings.for_client(dir=self.dir, endpoint=self.endpoint, domain=self.domain)

    def directory(self) -> Directory:
        return directory_of(self.settings())

    def tables(self) -> TableStore:
        return TableStore(self.directory().tables_path(self.channel))

    def retention(self) -> Retention:
        return Retention(self.keep_generations, self.keep_bytes, self.keep_seconds)


def _checked_channel(channel: str, use: Use | None) -> str:
    try:
        if not _is_pattern(channel):
            return names.check_channel(channel)
        Patterns(channel)
    except HubError as error:
        raise BadOption(f"option channel: {error.message}") from None
    if use not in (None, "readStream"):
        advice = ": read the table of each channel, and union them" if use == "read" else ""
        raise BadOption(f"option channel is {channel!r}: patterns are for readStream; this is a {use}{advice}")
    return channel


def _is_pattern(channel: str) -> bool:
    return "*" in channel or ">" in channel


def _check_one_kind(said: Mapping[str, str], channel: str | None) -> None:
    """Refuse options of channels for topics, and the other way round."""
    if "topic" in said and channel:
        raise BadOption("give one of topic and a path: a topic is named by option topic alone")
    wrong, kinds = (
        (_OF_CHANNELS, "channels, not for topics") if "topic" in said else (_OF_TOPICS, "topics, not for channels")
    )
    for name in said:
        if name in wrong:
            raise BadOption(f"option {_ACCEPTED[name]} is for {kinds}")


def _only_one(paths: str | None) -> str | None:
    """Return the channel of `load([channel])`."""
    if paths is None:
        return None
    try:
        found = json.loads(paths)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise BadOption(f'option paths is {paths!r}, which is for load([channel]): use .option("channel", NAME)')
    if len(found) != 1:
        raise BadOption(f"a DataFrame reads one channel, not {len(found)}: load each, and union them")
    return str(found[0])


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _switch(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _generation(text: str) -> int | None:
    return None if text.strip().lower() == "latest" else _whole(text)


def _name(text: str) -> str:
    if not _TRANSACTION.fullmatch(text):
        raise ValueError
    return text


def _starting(text: str) -> str | dict[str, int]:
    if text.lstrip().startswith("{"):
        return _offsets(text, least=EARLIEST)
    return {"earliest": "earliest", "latest": "latest"}[text.strip().lower()]


def _ending(text: str) -> str | dict[str, int]:
    if text.lstrip().startswith("{"):
        return _offsets(text, least=LATEST)
    return {"latest": "latest"}[text.strip().lower()]


def _offsets(text: str, *, least: int) -> dict[str, int]:
    """As Spark's Kafka source has them: -2 is the earliest, -1 the latest."""
    found = json.loads(text)
    if not all(type(offset) is int and offset >= least for offset in found.values()):
        raise ValueError
    return {str(topic): offset for topic, offset in found.items()}


def _instant(text: str) -> float:
    """Milliseconds since the epoch, as in Spark's Kafka source, or a date and time with its zone."""
    if text.strip().isdecimal() and len(text.strip()) <= 15:
        return int(text) / 1000
    found = datetime.datetime.fromisoformat(text.strip())
    if found.tzinfo is None:
        raise ValueError
    return found.timestamp()


def _topic(text: str) -> str:
    try:
        Patterns(text.split(","))
    except HubError as error:
        raise BadOption(f"option topic: {error.message}") from None
    return text


def _kind(text: str) -> PayloadKind:
    found: dict[str, PayloadKind] = {"bytes": "bytes", "json": "json"}
    return found[text.strip().lower()]


_NAMED: Final[dict[str, tuple[str, Any, str]]] = {
    "channel": ("channel", str, "a channel's name; of readStream, also a pattern such as sensors.>"),
    "topic": ("topic", _topic, "a topic's name, or a pattern such as orders.>; several with commas between them"),
    "endpoint": ("endpoint", str, "ipc://… or tcp://…"),
    "domain": ("domain", str, "a domain's name"),
    "dir": ("dir", str, "the hub's directory"),
    "generation": ("generation", _generation, "a generation's number, or latest"),
    "expectedSchema": ("expected_schema", str, "a schema hash, or the JSON of a schema"),
    "maxPartitionBytes": ("max_partition_bytes", _whole, "a number of bytes above 0"),
    "failOnDataLoss": ("fail_on_data_loss", _switch, "true or false"),
    "startingOffsets": (
        "starting_offsets",
        _starting,
        'earliest, latest, or JSON such as {"orders": 17}: of topics their offsets, of channels sequences of blocks',
    ),
    "startingTimestamp": (
        "starting_at",
        _instant,
        "milliseconds since the epoch, or a time with its zone such as 2026-05-01T12:00:00Z",
    ),
    "endingOffsets": ("ending_offsets", _ending, 'latest, or JSON such as {"orders": 17}'),
    "payloadKind": ("payload_kind", _kind, "bytes or json"),
    "maxRowsPerTrigger": ("max_rows_per_trigger", _whole, "a number of rows above 0"),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", _whole, "a number of bytes above 0"),
    "keepGenerations": ("keep_generations", _whole, "a number of generations above 0"),
    "keepBytes": ("keep_bytes", _whole, "a number of bytes above 0"),
    "keepSeconds": ("keep_seconds", _seconds, "a number of seconds above 0"),
    "transaction": ("transaction", _name, "a name of letters, digits, '_' and '-'"),
}
_USES: Final[dict[str, tuple[Use, ...]]] = {
    "generation": ("read",),
    "maxpartitionbytes": ("read",),
    "expectedschema": ("read", "readStream"),
    "failondataloss": ("read", "readStream"),
    "startingoffsets": ("read", "readStream"),
    "startingtimestamp": ("read", "readStream"),
    "endingoffsets": ("read",),
    "payloadkind": ("write", "writeStream"),
    "maxrowspertrigger": ("readStream",),
    "maxbytespertrigger": ("readStream",),
    "keepgenerations": ("write", "writeStream"),
    "keepbytes": ("write", "writeStream"),
    "keepseconds": ("write", "writeStream"),
    "transaction": ("write",),
}
"""Those that have an effect on some uses only."""
_OF_TOPICS: Final = ("topic", "endingoffsets", "payloadkind")
_OF_CHANNELS: Final = (
    "channel",
    "generation",
    "expectedschema",
    "maxpartitionbytes",
    "maxbytespertrigger",
    "keepgenerations",
    "keepbytes",
    "keepseconds",
    "transaction",
)
_NOT_BOTH: Final = (
    ("maxRowsPerTrigger", "maxBytesPerTrigger"),
    ("channel", "topic"),
    ("startingOffsets", "startingTimestamp"),
)
_TOPIC_INSTEAD: Final = "option topic names a topic, several with commas between them, or a pattern such as orders.>"
_OF_KAFKA: Final = {
    "subscribe": _TOPIC_INSTEAD,
    "subscribepattern": _TOPIC_INSTEAD,
    "assign": f"{_TOPIC_INSTEAD}, and topics here have no partitions",
    "maxoffsetspertrigger": "it is called maxRowsPerTrigger here",
    "kafka.bootstrap.servers": "options dir and endpoint say which hub",
}
"""What users of Spark's Kafka source try first."""
_READERS: Final = {name.lower(): rule for name, rule in _NAMED.items()}
_ACCEPTED: Final = {name.lower(): name for name in (*_NAMED, *_OF_SPARK)}


def _known(name: str) -> None:
    if name in _ACCEPTED:
        return
    if name in _OF_KAFKA:
        raise BadOption(f"there is no option {name!r}: {_OF_KAFKA[name]}")
    near = difflib.get_close_matches(name, _ACCEPTED, n=1, cutoff=0.0)
    raise BadOption(
        f"there is no option {name!r}; did you mean {_ACCEPTED[near[0]]!r}? Options are: {', '.join(_NAMED)}"
    )


def _value(name: str, text: str) -> Any:
    _, read, expected = _READERS[name]
    try:
        return read(text)
    except (ValueError, KeyError):
        raise BadOption(f"option {_ACCEPTED[name]} is {text!r}; it must be {expected}") from None
