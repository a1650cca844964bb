"""After a storm: what was promised is there, what was seen was right, and nothing is left behind."""

import itertools
import os
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

from messagehub import MessageHub
from messagehub.datablock.cleaning import clean
from messagehub.datablock.directory import Directory
from messagehub.datablock.tables import TableStore
from messagehub.status import is_held
from tests.faults.chaos.history import History
from tests.faults.chaos.roles import NUMBERS
from tests.integration.harness import eventually

STALL_SECONDS = 60.0  # of a loaded machine with two cores
BOUNDS = {"spark": 150.0}  # its JVM starts beside everybody else's work


class Stalled(AssertionError):
    """A role did not move; its name."""


def everybody_goes_on(history: History, roles: list[str]) -> None:
    """In the calm after the storm each role moves within its bound."""
    since = time.time()

    def has_moved(role: str) -> bool:
        kinds = {"progress", "wrote", "did", "event"}
        return any(line["at"] > since and line["what"] in kinds for line in history.lines(role))

    for role in roles:
        try:
            eventually(has_moved, role, timeout=BOUNDS.get(role, STALL_SECONDS))
        except AssertionError:
            raise Stalled(role) from None


def every_item_was_done(history: History) -> None:
    """At least once, from the moment the group began."""
    done = [(line["writer"], line["number"]) for line in history.lines("member", "did")]
    began = min((line["at"] for line in history.lines("member", "did")), default=0.0)
    wrote = {(line["pid"], line["number"]) for line in history.lines("work", "wrote") if line["at"] > began}
    assert wrote
    missing = sorted(wrote - set(done))
    assert not missing, f"{len(missing)} of {len(wrote)} items were done by nobody, the first is {missing[0]}"


def every_promise_is_kept(history: History, hub: MessageHub) -> dict[str, int]:
    """By a broker that has just started from what is on disk."""
    titles: dict[tuple[str, int], tuple[int, str]] = {}
    ids: dict[int, str] = {}
    for line in itertools.chain(history.lines("schemas", "schema"), history.lines("admin", "schema")):
        key, value = (line["subject"], line["version"]), (line["id"], line["title"])
        assert titles.setdefault(key, value) == value, f"{key} was promised twice: {titles[key]} and {value}"
        assert ids.setdefault(line["id"], line["title"]) == line["title"], f"id {line['id']} was given twice"
    for (subject, version), (schema_id, title) in titles.items():
        found = hub.schema(subject, version=version).schema
        assert found.schema_id == schema_id
        assert title in found.schema
    present = {channel.channel for channel in hub.channels("declared.")}
    promised = {line["channel"] for line in history.lines("channels", "channel")}
    assert promised <= present, f"lost: {sorted(promised - present)[:3]}"
    over_http = sum(1 for _ in history.lines("admin", "schema"))
    return {"schemas": len(titles), "of them over HTTP": over_http, "channels": len(promised)}


def tables_are_newest(history: History, directory: Directory) -> int:
    published = max(line["number"] for line in history.lines("publish", "published"))
    with TableStore(directory.tables_path(NUMBERS)).open() as snapshot:
        assert snapshot.table().column("n")[0].as_py() >= published
    return int(published)


def revisions_only_grew(history: History) -> int:
    seen = 0
    for lines in history.of_each("watch", "event"):
        revisions = [line["revision"] for line in lines]
        seen += len(revisions)
        for before, after in itertools.pairwise(revisions):
            assert after > before, f"a watcher saw revision {after} after {before}"
    return seen


def nothing_is_left(directory: Path, blocks: Directory, web: str) -> None:
    """No process, lock, socket, nobody who listens where HTTP was served last; and after cleaning no ring."""
    mine = f"MESSAGEHUB_DOMAIN={blocks.domain}".encode()

    def processes() -> list[str]:
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if int(pid) != os.getpid() and mine in environment.split(b"\0"):
                found.append(pid)
        return found

    eventually(lambda: not processes(), timeout=STALL_SECONDS)
    assert not list(directory.glob("*.sock"))
    assert not is_held(directory / "broker.lock")
    host, port = urlsplit(web).netloc.split(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, int(port)))  # refused while anybody listens there

    def rings() -> list[str]:
        clean(blocks, now=time.time(), linger_seconds=0.0)
        names = [name for name in os.listdir(blocks.root) if name.endswith(f"@{blocks.domain}")]
        return names + [str(path) for path in Path(blocks.path).rglob("*.ring")]

    eventually(lambda: not rings(), timeout=STALL_SECONDS)
