"""After a storm: what was promised is there, what was seen was right, and nothing is left behind."""

import itertools
import os
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

from messagehub import MessageHub
from messagehub.client.broker_file import is_held
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.tables.tables import TableStore
from tests.faults.chaos.history import History
from tests.faults.chaos.roles import NUMBERS, PLAIN, RETAINED, checked
from tests.integration.harness import eventually

READ_SECONDS = 30.0
NOTICED_SECONDS = 5.0  # of a loaded machine: how long after a worker's end its caller may learn of it
STALL_SECONDS = 60.0  # of a loaded machine with two cores
BOUNDS = {"spark": 150.0}  # its JVM starts beside everybody else's work


class Stalled(AssertionError):
    """A role did not move; its name."""


def everybody_goes_on(history: History, roles: list[str]) -> None:
    """In the calm after the storm each role moves within its bound."""
    since = time.time()

    def has_moved(role: str) -> bool:
        kinds = {"progress", "wrote", "did", "event"}
        return any(line["at"] > since and line["what"] in kinds for line in history.lines(role, since=since))

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


def losses_were_counted(history: History) -> int:
    """Of a plain topic a subscriber misses no more than its subscription said when the next message came."""
    missed = 0
    for lines in history.of_each("hear_plain", "missed"):
        for line in lines:
            assert line["missed"] <= line["lost"], (
                f"subscriber {line['pid']} missed {line['missed']} messages of {PLAIN}, and `lost` said {line['lost']}"
            )
        missed += lines[-1]["missed"]
    return missed


def retained_messages_are_whole(history: History, hub: MessageHub) -> dict[str, int]:
    """What was acknowledged is stored once, at its offset, and is what every replaying subscriber got there.

    By a broker that has just started from what is on disk.
    """
    stored: dict[int, tuple[int, int]] = {}
    offsets: dict[tuple[int, int], int] = {}
    end = hub.topic(RETAINED).describe().topic.next_offset
    with hub.subscribe(RETAINED, since=0, buffer=1000) as subscription:
        for offset in range(1, end):
            message = subscription.receive(READ_SECONDS)
            assert message.offset == offset, f"offset {message.offset} of {RETAINED} is stored after {offset - 1}"
            stored[offset] = what = checked(message.payload)
            assert offsets.setdefault(what, offset) == offset, (
                f"message {what} of {RETAINED} is stored twice, at {offsets[what]} and at {offset}"
            )
    acknowledged = list(history.lines("publish_retained", "stored"))
    assert acknowledged, f"nothing was published to {RETAINED}"
    for line in acknowledged:
        what, offset = (line["pid"], line["number"]), line["offset"]
        assert stored.get(offset) == what, (
            f"message {what} of {RETAINED} was acknowledged at offset {offset}, where {stored.get(offset)} is stored"
        )
    for heard in history.of_each("replay", "heard"):
        for line in heard:
            what, offset = (line["writer"], line["number"]), line["offset"]
            assert stored.get(offset) == what, (
                f"subscriber {line['pid']} got {what} at offset {offset}, where {stored.get(offset)} is stored"
            )
        for before, after in itertools.pairwise(line["offset"] for line in heard):
            assert after == before + 1, f"subscriber {heard[0]['pid']} got offset {after} of {RETAINED} after {before}"
    replayed = sum(1 for _ in history.lines("replay", "heard"))
    return {"retained": len(acknowledged), "replayed": replayed}


def requests_were_handled_once(history: History) -> dict[str, int]:
    """And one that got no response was with a worker that was killed."""
    handled: set[tuple[int, int]] = set()
    for line in history.lines("serve", "handled"):
        what = (line["caller"], line["number"])
        assert what not in handled, f"request {what} was handled twice"
        handled.add(what)
    replied = {(line["pid"], number) for line in history.lines("call", "replied") for number in line["numbers"]}
    assert replied, "no request was answered"
    assert replied <= handled, f"nobody handled, but somebody answered {sorted(replied - handled)[:3]}"
    ended = [line["at"] for line in history.lines("storm", "ended") if line["target"] == "serve"]
    unanswered = list(history.lines("call", "unanswered"))
    for line in unanswered:
        first, last = line["asked_at"] - NOTICED_SECONDS, line["at"] + NOTICED_SECONDS
        assert any(first <= at <= last for at in ended), (
            f"request {line['number']} of caller {line['pid']} got no response although its worker lived:"
            f" {line['error']}"
        )
    return {"replies": len(replied), "unanswered": len(unanswered)}


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
