"""`messagehub status`: which broker answers, how it is and what it has done."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from messagehub.cli.failures import NO_BROKER, report
from messagehub.cli.http_health import DRAINING, HttpHealth, ask
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_fields, echo_json, echo_table
from messagehub.cli.probe import hello
from messagehub.cli.session import connected, schema_mode, settings_for
from messagehub.display.values import counted, duration
from messagehub.errors import BrokerUnavailable, ConfigurationError, Forbidden
from messagehub.settings import Settings
from messagehub.shm.core import IMPLEMENTATION
from messagehub.version import __version__

if TYPE_CHECKING:
    from messagehub.client.broker_file import BrokerStatus
    from registry.replies import HelloAck, StatsReport

_USUAL = {"published", "held", "kept", "kept_reads", "not_found"}
"""Counters of what happens on every hub; the others say that something was odd."""
_COUNTED = ("channels", "producers", "consumers", "leases", "schemas")


def status(
    *,
    requests: Annotated[bool, typer.Option("--requests", help="Also the requests by type, with their times.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Show the broker: where it is, how it is, what it has done. With --json the requests by type are always there."""
    settings = settings_for(endpoint, dir, timeout)
    try:
        said = hello(settings)
        with connected(endpoint, dir, timeout) as hub:
            health = hub.health(timeout=settings.request_timeout_seconds)
            mode = schema_mode(hub)
            try:
                stats = hub.stats()
                is_forbidden = False
            except Forbidden:  # of a key with rights to some names only
                stats, is_forbidden = None, True
        if stats is None and not is_forbidden:
            raise BrokerUnavailable("the broker went away while it was asked", endpoint=settings.endpoint)
    except BrokerUnavailable as error:
        if not as_json:
            raise
        echo_json(_without_broker(settings, error))
        report(error, as_json=False)
        raise typer.Exit(NO_BROKER) from error
    shown = _with_broker(settings, said, stats, health) | {"schema_mode": mode}
    if as_json:
        echo_json(shown)
    else:
        _print(shown, with_requests=requests)


def _without_broker(settings: Settings, error: BrokerUnavailable) -> dict[str, Any]:
    return {
        "health": "unavailable",
        "reason": error.message,
        "endpoint": settings.endpoint,
        "events_endpoint": settings.events_endpoint,
        "http": settings.http,
        "dir": str(settings.dir),
        "pid": None,
        "version": __version__,
        "client_version": __version__,
        "rings": IMPLEMENTATION,
    }


def _with_broker(
    settings: Settings, said: "HelloAck", stats: "StatsReport | None", health: dict[str, Any]
) -> dict[str, Any]:
    """`version` is the broker's. Directory and HTTP address are known only for the broker of our directory, and the
    broker's numbers only to who may observe everything."""
    own = _of_directory(settings, said.broker_id)
    problems: list[str] = health.get("problems", [])
    http = _http_health(own, problems, settings.request_timeout_seconds)
    if own is not None and http is not None and http.why_silent is not None:
        problems = [*problems, f"HTTP does not answer at {own.http}: {http.why_silent}"]
    return {
        "health": _health(health, problems),
        "problems": problems,
        "endpoint": said.endpoints["control"],
        "events_endpoint": said.endpoints.get("events"),
        "http": own.http if own else None,
        "dir": own.dir if own else None,
        "pid": stats.pid if stats else None,
        "version": said.server.rpartition("/")[2],
        "client_version": __version__,
        "rings": IMPLEMENTATION,
        "broker_id": said.broker_id,
        "site": said.site or None,
        "uptime_seconds": stats.uptime_seconds if stats else None,
        "revision": health.get("revision"),
        "read_only": health.get("read_only"),
        "draining": http.is_draining if http else None,
        "answer_seconds": health.get("seconds"),
        "counts": {name: getattr(stats, name) for name in _COUNTED} if stats else None,
        "requests": _requests(stats.requests) if stats else None,
        "counters": stats.counters if stats else None,
        "store": stats.store if stats else None,
        "held_back": _held_back(settings),
    }


def _health(health: dict[str, Any], problems: list[str]) -> str:
    """Return one word: what keeps the hub from its work first."""
    if health["status"] != "unavailable" and health.get("read_only"):
        return "read-only"
    return "degraded" if problems and health["status"] == "healthy" else str(health["status"])


def _http_health(own: "BrokerStatus | None", problems: list[str], timeout: float) -> HttpHealth | None:
    """Return None if there is no HTTP, or if the broker says already that it does not answer."""
    if own is None or own.http is None or any(own.http in problem for problem in problems):
        return None
    return ask(own.http, timeout=timeout)


def _held_back(settings: Settings) -> list[dict[str, Any]]:
    """Producers of this host that wait for readers, or whose slots readers hold."""
    from messagehub.channels.held_back import held_back
    from messagehub.shm.channel_directory.location import directory_of
    from messagehub.shm.errors import DataBlockError

    try:
        found = held_back(directory_of(settings))
    except (DataBlockError, ConfigurationError):
        return []  # `messagehub doctor` says what is wrong there
    return [
        {"channel": one.channel, "pid": one.pid, "shm_name": one.shm_name, "skipped": one.skipped, "by": one.held_back}
        for one in found
    ]


def _of_directory(settings: Settings, broker_id: str) -> "BrokerStatus | None":
    from messagehub.client.broker_file import running_broker

    running = running_broker(settings)
    return running if running is not None and running.broker_id == broker_id else None


def _requests(by_type: dict[str, dict[str, Any]]) -> dict[str, Any]:
    kept = ("count", "errors", "p50_seconds", "p99_seconds")
    return {
        "count": sum(one["count"] for one in by_type.values()),
        "errors": sum(one["errors"] for one in by_type.values()),
        "by_type": {name: {key: one[key] for key in kept} for name, one in by_type.items()},
    }


def _print(shown: dict[str, Any], *, with_requests: bool) -> None:
    echo_fields(
        {
            "health": shown["health"] + (": its disk is full or failing" if shown["read_only"] else ""),
            **({"problems": "; ".join(shown["problems"])} if shown["problems"] else {}),
            **({"draining": DRAINING} if shown["draining"] else {}),
            **({"schemas": f"mode {shown['schema_mode']}"} if shown["schema_mode"] not in (None, "READWRITE") else {}),
            **({"site": f"{shown['site']} (messagehub hosts shows its members)"} if shown["site"] else {}),
            "endpoint": shown["endpoint"],
            "events": shown["events_endpoint"],
            "http": shown["http"],
            "directory": shown["dir"],
            **({"process": f"pid {shown['pid']}, up {duration(shown['uptime_seconds'])}"} if shown["pid"] else {}),
            "version": shown["version"]
            + ("" if shown["version"] == __version__ else f" (this program is {__version__})"),
            "revision": shown["revision"],
            **_numbers(shown),
        }
    )
    for one in shown["held_back"]:
        echo(f"the producer of channel {one['channel']} (pid {one['pid']}) is held back: {one['by']}")
    if shown["requests"] is None or not with_requests:
        return
    echo("")
    echo_table(
        ("REQUEST", "COUNT", "REFUSED", "P50 UP TO", "P99 UP TO"),
        [
            (name, one["count"], one["errors"], duration(one["p50_seconds"]), duration(one["p99_seconds"]))
            for name, one in sorted(shown["requests"]["by_type"].items())
        ],
    )


def _numbers(shown: dict[str, Any]) -> dict[str, Any]:
    requests = shown["requests"]
    if requests is None:
        return {"numbers": "are shown to keys with the right observe on everything"}
    oddities = {name: count for name, count in shown["counters"].items() if count and name not in _USUAL}
    return {
        "holds": ", ".join(counted(count, name.removesuffix("s")) for name, count in shown["counts"].items()),
        "requests": f"{requests['count']:,}, {requests['errors']:,} refused",
        "events sent": shown["counters"].get("published", 0),
        **({"counted": oddities} if oddities else {}),
    }
