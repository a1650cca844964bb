"""What the clients of `make demo-site` did, beside what a site promises (docs/howto/several-hosts.md)."""

from collections import Counter
from typing import Any, NamedTuple

CUT_OFF = "cleo"
"""The host whose link is cut."""
MOST_AGAIN = 20
"""Jobs of a group that may be done again: what each member did within its last call to the ring's host."""


class Seen(NamedTuple):
    """What one client said. `done` has each thing that it did, in their order."""

    host: str
    last: dict[str, Any]
    done: list[tuple[Any, ...]]
    refused_at: list[float]


class Row(NamedTuple):
    client: str
    host: str
    did: str
    promised: str
    is_kept: bool


Clients = dict[str, list[Seen]]
"""By the role that they have in examples/site_clients.py."""


def rows(seen: Clients, excused: tuple[float, float]) -> list[Row]:
    """Return a line for each promise. While the link of a host was cut, `excused`, its requests may be refused."""
    return [*_rings(seen), *_topics(seen), *_registry(seen), *_services(seen, excused), *_orders(seen), *_jobs(seen)]


def table(of: list[Row]) -> str:
    lines = [("CLIENT", "HOST", "WHAT IT DID", "WHAT IS PROMISED", "KEPT")]
    lines += [(*each[:4], ("yes" if each.is_kept else "NO") if each.promised else "") for each in of]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in cells)


def _rings(seen: Clients) -> list[Row]:
    (producer,) = seen["measure"]
    written = producer.last["written"]
    return [
        Row(
            "reader",
            each.host,
            f"read {each.last['read']:,} of {written:,} items of {producer.host}, by {each.last['by']}",
            "every item once and in order",
            each.last["read"] == written and each.last["missing"] == each.last["counted"] == 0,
        )
        for each in seen["read"]
    ]


def _topics(seen: Clients) -> list[Row]:
    return [
        Row(
            "subscriber",
            each.host,
            f"heard {each.last['heard']:,} messages, missed {each.last['missing']:,}",
            "what is lost on the way is counted",
            each.last["heard"] > 0 and each.last["missing"] == each.last["counted"],
        )
        for each in seen["hear"]
    ]


def _registry(seen: Clients) -> list[Row]:
    made = [
        Row(
            "writer of schemas",
            each.host,
            f"{each.last['acknowledged']:,} acknowledged, {each.last['refused']} refused, lost {each.last['lost']}",
            "nothing that was acknowledged is lost",
            each.last["lost"] == 0 and each.last["acknowledged"] > 0,
        )
        for each in seen["write"]
    ]
    made += [
        Row(
            "reader of the table",
            each.host,
            f"read {each.last['rows']:,} rows, from {' and '.join(each.last['parts_on'])}",
            "every row once",
            each.last["all_there"],
        )
        for each in seen.get("fetch", [])
    ]
    return made


def _services(seen: Clients, excused: tuple[float, float]) -> list[Row]:
    (service,) = seen["serve"]
    handled = Counter(service.done)
    made = [
        Row(
            "service",
            service.host,
            f"handled {handled.total():,} requests",
            "none twice",
            handled.total() == len(handled),
        )
    ]
    for each in seen["ask"]:
        answered, asked, refused = set(each.done), each.last["asked"], each.last["refused"]
        is_cut_off = each.host == CUT_OFF
        made.append(
            Row(
                "caller",
                each.host,
                f"{len(answered):,} of {asked:,} answered, {refused} refused",
                "every request is answered" + (" but while the link is cut" if is_cut_off else ""),
                len(answered) + refused == asked
                and answered <= set(handled)
                and (is_cut_off or not refused)
                and all(excused[0] <= at <= excused[1] for at in each.refused_at),
            )
        )
    return made


def _orders(seen: Clients) -> list[Row]:
    (books,) = seen["book"]
    booked = Counter(books.done)
    ordered = {order for each in seen["order"] for order in each.done}
    made = [
        Row(
            "publisher of orders",
            each.host,
            f"{len(each.done):,} acknowledged, {len(set(each.done) & set(booked)):,} of them booked",
            "every order is booked",
            len(each.done) == each.last["acknowledged"] and set(each.done) <= set(booked),
        )
        for each in seen["order"]
    ]
    did = f"booked {len(booked):,} orders, {booked.total() - len(booked)} of them again"
    is_kept = booked.total() == len(booked) and set(booked) <= ordered
    return [*made, Row("reader of orders", books.host, did, "each once, and no others", is_kept)]


def _jobs(seen: Clients) -> list[Row]:
    """Check a group: what members had in hand when shares changed, or a link was cut, may come again; nothing else."""
    (producer,) = seen["hand_out"]
    killed, *others = seen["work"]
    jobs = {(number,) for number in range(producer.last["wrote"])}
    times = Counter(job for each in seen["work"] for job in each.done)
    again = times.total() - len(times)
    made = [Row("member (killed)", killed.host, f"did {len(killed.done):,} jobs of {producer.host}", "", True)]
    made += [Row("member", each.host, f"did {len(each.done):,} jobs of {producer.host}", "", True) for each in others]
    return [
        *made,
        Row("the group", "all", f"did {len(times):,} of {len(jobs):,} jobs", "every job", set(times) == jobs),
        Row(
            "the group",
            "all",
            f"did {again} jobs again",
            f"only what was in hand at a fault (up to {MOST_AGAIN})",
            again <= MOST_AGAIN,
        ),
    ]
