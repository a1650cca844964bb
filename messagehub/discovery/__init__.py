"""Discovery of channels: what an answer looks like, and the contract of the sources that give it."""

from typing import Any, Literal, Protocol

import msgspec

from registry import commands, replies
from registry.records import Block, Producer, Table
from registry.replies import Discovered, VersionDifferences

Source = Literal["broker", "files", "shm"]


class RegistryAccess(Protocol):
    """A way to the registry's rules: the broker or the directory.

    Both give the same answers and the same refusals to the same commands. BrokerRequired is raised for a command that
    only a broker can decide, BrokerUnavailable when nobody answers.
    """

    def ask(self, command: commands.Command, *, timeout: float) -> replies.Reply: ...


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """Where a channel's data is, and who said so (`source`)."""

    channel: str
    shm_name: str | None
    schema_hash: str | None
    schema_version: str | None
    status: str
    source: Source
    conflict: str | None = None
    schema: str | None = None
    schema_type: str | None = None
    schema_id: int | None = None
    access: str | None = None
    priority: str = "normal"
    generation: int = 0
    table: Table | None = None
    consumer_count: int = 0
    producers: list[Producer] = msgspec.field(default_factory=list)
    blocks: list[Block] = msgspec.field(default_factory=list)
    blocks_total: int = 0
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    revision: int = 0
    compatible: bool | None = None
    """Whether a reader of the expected schema can read it; None where none was named."""
    differences: list[VersionDifferences] = msgspec.field(default_factory=list)

    @property
    def is_active(self) -> bool:
        return self.status == "active"

    @classmethod
    def of(cls, found: Discovered, source: Source) -> "Discovery":
        fields = msgspec.structs.asdict(found)
        del fields["id"]
        return cls(**{name: value for name, value in fields.items() if value is not msgspec.UNSET}, source=source)
