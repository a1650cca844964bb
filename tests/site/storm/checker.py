"""What the histories of a storm over a site must show. Each function takes a history alone, and fails if a promise of
docs/howto/several-hosts.md is broken."""

from collections import defaultdict
from typing import Any

from tests.faults.chaos.history import History

CALL_SECONDS = 15.0
"""A call of the registry takes no longer, unless its process stood still: 4 s of forwarding, and a loaded machine."""

Line = dict[str, Any]


def no_acknowledged_write_is_lost(history: History, hosts: tuple[str, ...]) -> dict[str, int]:
    """Every hub has every schema and channel that was acknowledged, as it was acknowledged, and all have the same."""
    schemas = {(line["subject"], line["version"]): line for line in history.lines("write", "schema")}
    channels = {line["channel"] for line in history.lines("write", "channel")}
    assert schemas, "nothing was acknowledged"
    assert channels, "no channel was acknowledged"
    kept: dict[str, dict[tuple[str, int], tuple[int, str]]] = {}
    for host in hosts:
        of_host = [line for line in history.lines("collect") if line["host"] == host]
        assert any(line["what"] == "collected" for line in of_host), f"nothing was read at {host}"
        kept[host] = {
            (line["subject"], line["version"]): (line["id"], line["title"])
            for line in of_host
            if line["what"] == "kept_schema"
        }
        for key, line in schemas.items():
            found = kept[host].get(key)
            said = f"version {key[1]} of {key[0]} was acknowledged to {line['host']} as {line['id']}, {line['title']!r}"
            assert found == (line["id"], line["title"]), f"{said}; {host} has {found}"
        present = {line["channel"] for line in of_host if line["what"] == "kept_channel"}
        missing = sorted(channels - present)
        assert not missing, f"{host} lacks {len(missing)} of {len(channels)} channels, the first is {missing[0]}"
    for host in hosts[1:]:
        assert kept[host] == kept[hosts[0]], f"{host} and {hosts[0]} have different schemas"
    asked = {line["title"] for line in history.lines("write", "asks")}
    invented = sorted(title for _, title in kept[hosts[0]].values() if title not in asked)
    assert not invented, f"nobody registered {invented[0]}"
    return {"schemas": len(schemas), "channels": len(channels)}


def nothing_is_given_twice(history: History) -> dict[str, int]:
    """A schema id is one schema, a version of a subject too, and a revision is one event, whoever tells."""
    ids: dict[int, str] = {}
    versions: dict[tuple[str, int], int] = {}
    for role, what in (("write", "schema"), ("collect", "kept_schema")):
        for line in history.lines(role, what):
            known = ids.setdefault(line["id"], line["title"])
            assert known == line["title"], f"schema id {line['id']} was given to {known!r} and to {line['title']!r}"
            key = line["subject"], line["version"]
            first = versions.setdefault(key, line["id"])
            assert first == line["id"], f"version {key[1]} of {key[0]} was given to the ids {first} and {line['id']}"
    events: dict[int, Line] = {}
    for line in history.lines("watch", "event"):
        first_told = events.setdefault(line["revision"], line)
        assert (first_told["type"], first_told["crc"]) == (line["type"], line["crc"]), (
            f"revision {line['revision']} is a {first_told['type']} at {first_told['host']},"
            f" and another {line['type']} at {line['host']}"
        )
    return {"events": len(events)}


def reads_never_go_back(history: History) -> int:
    """Of one client: each read shows what it had read and written before. The same for what it is told by events."""
    count = 0
    for lines in _by_process(history, "write"):
        newest: dict[str, int] = defaultdict(int)
        for line in lines:
            if line["what"] == "schema":
                newest[line["subject"]] = max(newest[line["subject"]], line["version"])
            elif line["what"] == "read":
                before = newest[line["subject"]]
                assert line["version"] >= before, (
                    f"a client of {line['host']} read version {line['version']} of {line['subject']} after {before}"
                )
                newest[line["subject"]] = line["version"]
                count += 1
            elif line["what"] == "absent" and line.get("subject") in newest:
                raise AssertionError(
                    f"a client of {line['host']} read that {line['subject']} is not there, after it was"
                )
    for lines in _by_process(history, "watch"):
        before = 0
        for line in lines:
            if line["what"] == "event":
                assert line["revision"] > before, (
                    f"a watcher of {line['host']} was told revision {line['revision']} after {before}"
                )
                before = line["revision"]
    return count


def data_is_right(history: History) -> dict[str, int]:
    """No item came twice, out of order or from elsewhere, and what did not come was counted. Wrong bytes end a role."""
    found = {}
    for role, what in (("consume", "got"), ("talk", "heard")):
        for line in history.lines(role, "wrong"):
            raise AssertionError(
                f"{role} on {line['host']} got {line['number']} of {line['writer']} after {line['before']}"
                f" from process {line['pid']} of {line['of']}"
            )
        newest: dict[tuple[int, str], int] = {}
        for line in history.lines(role, what):
            assert line["missing"] <= line["counted"], (
                f"{role} on {line['host']} missed {line['missing']} items of {line['of']}, and {line['counted']} were"
                " counted"
            )
            newest[line["pid"], line["of"]] = line["missing"]
        assert newest, f"nothing was {what}"
        found[f"missed, of what was {what}"] = sum(newest.values())
    return found


def every_call_ends_in_time(history: History) -> float:
    """Answered or refused. A process that was paused, or whose hub was, is given that time."""
    slowest = 0.0
    for line in history.lines("write"):
        if "began_at" not in line:
            continue
        took = line["at"] - line["began_at"]
        slowest = max(slowest, took)
        assert took <= CALL_SECONDS, f"{line['asked']} on {line['host']} took {took:.1f} s"
    return round(slowest, 1)


def who_has_not_recovered(history: History, hosts: tuple[str, ...], since: float) -> list[str]:
    """Return what does not work `since` the storm ended: empty if all hosts write, and see what all others do."""
    lacking = []
    acknowledged = {line["host"] for line in history.lines("write", "schema", since=since) if line["at"] > since}
    lacking += [f"{host} writes" for host in hosts if host not in acknowledged]
    watched = {line["host"] for line in history.lines("watch", "event", since=since) if line["at"] > since}
    lacking += [f"{host} watches" for host in hosts if host not in watched]
    for role, what, said, writer in (
        ("consume", "got", "wrote", "produce"),
        ("talk", "heard", "published", "talk"),
    ):
        made: dict[str, tuple[int, int]] = {}
        for line in history.lines(writer, said, since=since):
            if line["at"] > since:
                made.setdefault(line["host"], (line["pid"], line["number"]))
        taken = {
            (line["host"], line["of"])
            for line in history.lines(role, what, since=since)
            if line["at"] > since
            and (line["writer_pid"], line["number"]) >= made.get(line["of"], (1 << 40, 0))
            and line["writer_pid"] == made[line["of"]][0]
        }
        lacking += [f"{host} {role}s from {of}" for host in hosts for of in hosts if (host, of) not in taken]
    return lacking


def _by_process(history: History, role: str) -> list[list[Line]]:
    found: dict[int, list[Line]] = defaultdict(list)
    for line in history.lines(role):
        found[line["pid"]].append(line)
    return list(found.values())
