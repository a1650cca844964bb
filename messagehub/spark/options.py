"""The options of `format("messagehub")`, checked once.

Spark hands them over as text, in lower case, together with its own (`_OF_SPARK`). Of a catalog table's options it hands
over none, when the table is read or written.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from messagehub.errors import HubError
from messagehub.settings import Settings
from messagehub.shm.directory import Directory
from messagehub.shm.location import directory_of
from messagehub.shm.manifests import Retention
from messagehub.shm.tables import TableStore
from messagehub.spark.errors import BadOption
from registry import names

_OF_SPARK: Final = ("path", "paths", "checkpointLocation", "queryName")
_OF_CATALOG: Final = "option."
_OF_TABLES: Final = ("provider", "owner", "location")
"""CREATE TABLE … OPTIONS (k 'v') hands over both `k` and `option.k`, and these."""
_WHICH_CHANNEL: Final = (
    'say which channel: .option("channel", NAME). Spark does not keep the options of a catalog table: use'
    " CREATE TEMPORARY VIEW … USING messagehub OPTIONS (channel 'NAME'), or SELECT … FROM table WITH (channel = 'NAME')"
)
_DEFAULT_PARTITION_BYTES: Final = 128 << 20
Use = Literal["read", "readStream", "write", "writeStream"]
_TRANSACTION: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class Options:
    """Plain data: it is pickled to every process that works on the DataFrame."""

    channel: str
    endpoint: str | None = None
    domain: str | None = None
    dir: str | None = None
    generation: int | None = None
    expected_schema: str | None = None
    max_partition_bytes: int = _DEFAULT_PARTITION_BYTES
    fail_on_data_loss: bool = True
    starting_offsets: str = "earliest"
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
        if "maxrowspertrigger" in said and "maxbytespertrigger" in said:
            raise BadOption("give one of maxRowsPerTrigger and maxBytesPerTrigger")
        channel = said.get("channel") or said.get("path") or _only_one(said.get("paths"))
        if not channel:
            raise BadOption(_WHICH_CHANNEL)
        values = {_READERS[name][0]: _value(name, text) for name, text in said.items() if name in _READERS}
        try:
            return cls(**values | {"channel": names.check_channel(channel)})
        except HubError as error:
            raise BadOption(f"option channel: {error.message}") from None

    def settings(self) -> Settings:
        return Settings.load(dir=self.dir, endpoint=self.endpoint, domain=self.domain)

    def directory(self) -> Directory:
        return directory_of(self.settings())

    def tables(self) -> TableStore:
        return TableStore(self.directory().tables_path(self.channel))

    def retention(self) -> Retention:
        return Retention(self.keep_generations, self.keep_bytes, self.keep_seconds)


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


def _starting(text: str) -> str:
    return {"earliest": "earliest", "latest": "latest"}[text.strip().lower()]


_NAMED: Final[dict[str, tuple[str, Any, str]]] = {
    "channel": ("channel", str, "a channel's name"),
    "endpoint": ("endpoint", str, "ipc://… or tcp://…"),
    "domain": ("domain", str, "a domain's name"),
    "dir": ("dir", str, "the hub's directory"),
    "generation": ("generation", _generation, "a generation's number, or latest"),
    "expectedSchema": ("expected_schema", str, "a schema hash, or the JSON of a schema"),
    "maxPartitionBytes": ("max_partition_bytes", _whole, "a number of bytes above 0"),
    "failOnDataLoss": ("fail_on_data_loss", _switch, "true or false"),
    "startingOffsets": ("starting_offsets", _starting, "earliest or latest"),
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
    "startingoffsets": ("readStream",),
    "maxrowspertrigger": ("readStream",),
    "maxbytespertrigger": ("readStream",),
    "keepgenerations": ("write", "writeStream"),
    "keepbytes": ("write", "writeStream"),
    "keepseconds": ("write", "writeStream"),
    "transaction": ("write",),
}
"""Those that have an effect on some uses only."""
_READERS: Final = {name.lower(): rule for name, rule in _NAMED.items()}
_ACCEPTED: Final = {name.lower(): name for name in (*_NAMED, *_OF_SPARK)}


def _known(name: str) -> None:
    if name in _ACCEPTED:
        return
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
