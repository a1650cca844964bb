"""The table of a channel on another host, as `TableStore` and `Snapshot` are for one of this host.

Rule 1: what generations there are is asked when the registry tells of a change, and by `look_again`, never while
somebody reads the next one. What was asked for later is newer.
Rule 2: parts come from the hosts that have them, several at a time. Those of this host are mapped.
"""

import os
import threading
from typing import Any

from messagehub.flight.client import Gateways
from messagehub.flight.messages import FlightTicket
from messagehub.shm.errors import NothingThere, PayloadDamaged, TableMissing
from messagehub.shm.identity import host as this_host
from messagehub.shm.tables.manifests import Manifest, Part
from messagehub.shm.tables.snapshot import whole_part

AT_ONCE = 8
"""How many parts are fetched at a time."""


class RemoteTables:
    def __init__(self, channel: str, path: str, gateways: Gateways) -> None:
        """`path` is where this host has tables of the channel."""
        self.host: str | None = None
        """Where the newest table is, if not on this host."""
        self._channel = channel
        self._path = path
        self._gateways = gateways
        self._manifests: dict[int, Manifest] = {}
        self._looking = threading.Lock()

    def look(self, host: str | None) -> None:
        """Ask what generations a host has; None: the newest table is not elsewhere. It may wait for the network."""
        with self._looking:
            if host is not None:
                self._manifests = {each.generation: each for each in self._gateways.manifests(self._channel, host)}
            self.host = host

    def look_again(self) -> None:
        with self._looking:
            host = self.host
            if host is not None:
                self._manifests = {each.generation: each for each in self._gateways.manifests(self._channel, host)}

    def generations(self) -> list[int]:
        return sorted(self._manifests)

    def open(self, generation: int) -> "RemoteSnapshot":
        manifest = self._manifests.get(generation)
        if manifest is None or self.host is None:
            raise TableMissing(f"{self.host}:{self._channel}", generation)
        return RemoteSnapshot(self._channel, self._path, manifest, self.host, self._gateways)


class RemoteSnapshot:
    """A generation as its host describes it. Nothing is held there: one that is retired meanwhile is a TableMissing."""

    def __init__(self, channel: str, path: str, manifest: Manifest, host: str, gateways: Gateways) -> None:
        self.manifest = manifest
        self._channel = channel
        self._path = path
        self._host = host
        self._gateways = gateways

    @property
    def generation(self) -> int:
        return self.manifest.generation

    @property
    def host(self) -> str:
        """Where the manifest is."""
        return self._host

    def table(self, *, verify: bool = False) -> Any:
        manifest, name = self.manifest, f"{self._channel} (generation {self.manifest.generation})"
        if {part.host or self._host for part in manifest.parts} == {self._host}:
            ticket = FlightTicket(channel=self._channel, kind="table", generation=manifest.generation, verify=verify)
            return self._gateways.table(ticket, self._host, name, rows=manifest.rows, size_bytes=manifest.size_bytes)
        fetched = parts_of(self._gateways, self._channel, self._path, manifest, home=self._host, verify=verify)
        return joined(fetched, name, manifest.generation)

    def schema(self) -> Any:
        ticket = FlightTicket(channel=self._channel, kind="table", generation=self.manifest.generation)
        return self._gateways.schema(ticket, self._host, self._channel)

    def __enter__(self) -> "RemoteSnapshot":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


def parts_of(gateways: Gateways, channel: str, path: str, manifest: Manifest, *, home: str, verify: bool) -> list[Any]:
    """Return all parts of a generation in order, each from where it is; `home` is the host of the manifest."""

    from concurrent.futures import ThreadPoolExecutor

    def fetch(part: Part) -> Any:
        at = part.host or home
        if at == this_host():
            return whole_part(os.path.join(path, part.name), part.rows, verify=verify)
        ticket = FlightTicket(channel=channel, kind="table", part=part.name, verify=verify)
        return gateways.table(ticket, at, part.name, rows=part.rows, size_bytes=part.size_bytes)

    try:
        with ThreadPoolExecutor(AT_ONCE, "messagehub-parts") as threads:
            return list(threads.map(fetch, manifest.parts))
    except NothingThere as error:
        raise TableMissing(str(error.message), manifest.generation) from None


def joined(parts: list[Any], name: str, generation: int) -> Any:
    import pyarrow as pa

    if not parts:
        raise TableMissing(name, generation)
    try:
        return pa.concat_tables(parts)
    except pa.ArrowException as error:
        raise PayloadDamaged(name, error) from None
