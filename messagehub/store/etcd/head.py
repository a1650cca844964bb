"""The head of a site: one key that every transaction changes.

It says how far the records are, and has the events of the last transaction, so that whoever watches this one key hears
of everything that happens in the site, in order.
"""

import msgspec

from messagehub.errors import StoreError
from messagehub.store.etcd.errors import NewerRecords
from messagehub.store.etcd.leadership import prefix_of
from messagehub.store.etcd.rows import unpack
from registry.decoding import decodable
from registry.events import AnyEvent

FORMAT = 2
"""1: before records of services and retained topics, when hubs said other things to each other as well."""
_event_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


@decodable
class Head(msgspec.Struct, kw_only=True):
    """The state of a site's records as a whole."""

    program: str = "messagehub"
    format: int = FORMAT
    site_id: str
    """Made with the site, so that another site of the same name is told from it."""
    revision: int = 0
    before: int = 0
    """The revision before the transaction."""
    last_schema_id: int = 0
    writer: str = ""
    """The store object that wrote it last."""
    events: list[msgspec.Raw] | None = None
    """What the last transaction wrote; None if that would be too large."""

    def decoded_events(self) -> list[AnyEvent] | None:
        return None if self.events is None else [_event_decoder.decode(event) for event in self.events]


def head_key(site: str) -> bytes:
    return prefix_of(site) + b"head"


def decoded_head(value: bytes, key: bytes) -> Head:
    """Return the head; refuse one that is not ours, or of a version that we do not know."""
    name = key.decode()
    try:
        head = msgspec.json.decode(unpack(value), type=Head)
    except msgspec.DecodeError:
        raise StoreError(f"{name} in etcd is not a hub's: choose another name for the site") from None
    if head.program != "messagehub":
        raise StoreError(f"{name} in etcd is of another program: choose another name for the site")
    if head.format > FORMAT:
        said = f"the records of the site in etcd have format {head.format}, made by a newer MessageHub"
        raise NewerRecords(f"{said}; this one knows up to {FORMAT}: update this hub")
    return head
