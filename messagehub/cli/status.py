"""`messagehub status`: which broker answers, how it is and what it has done."""

from typing import TYPE_CHECKING, Any

from typer import Exit

from messagehub.cli.failures import NO_BROKER, report
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import duration, echo, echo_fields, echo_json, echo_table
from messagehub.cli.probe import hello
from messagehub.cli.session import connected, settings_for
from messagehub.errors import BrokerUnavailable
from messagehub.settings import Settings
from messagehub.version import __version__

if TYPE_CHECKING:
    from messagehub.status import BrokerStatus
    from registry.replies import HelloAck, StatsReport

_COUNTED = ("channels", "producers", "consumers", "leases", "schemas")


def status(endpoint: Endpoint = None, dir: Dir = None, timeout: Timeout = None, as_json: Json = False) -> None:
    """Show the broker: where it is, how it is, what it has done."""
    settings = settings_for(endpoint, dir, timeout)
    try:
        said = hello(settings)
        with connected(endpoint, dir, timeout) as hub:
            stats = hub.stats()
            health = hub.health(timeout=settings.request_timeout_seconds)
        if stats is None:
            raise BrokerUnavailable("the broker went away while it was asked", endpoint=settings.endpoint)
    except BrokerUnavailable as error:
        if not as_json:
            raise
        echo_json(_without_broker(settings, error))
        report(error, as_json=False)
        raise Exit(NO_BROKER) from error
    shown = _with_broker(settings, said, stats, health)
    if as_json:
        echo_json(shown)
    else:
        _print(shown)


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
    }


def _with_broker(settings: Settings, said: "HelloAck", stats: "StatsReport", health: dict[str, Any]) -> dict[str, Any]:
    """`version` is the broker's. Directory and HTTP address are known only for the broker of our directory."""
    own = _of_directory(settings, said.broker_id)
    return {
        "health": health["status"],
        "endpoint": said.endpoints["control"],
        "events_endpoint": said.endpoints["events"],
        "http": own.http if own else None,
        "dir": own.dir if own else None,
        "pid": stats.pid,
        "version": stats.version,
        "client_version": __version__,
        "broker_id": stats.broker_id,
        "uptime_seconds": stats.uptime_seconds,
        "revision": stats.revision,
        "read_only": stats.read_only,
        "answer_seconds": health.get("seconds"),
        "counts": {name: getattr(stats, name) for name in _COUNTED},
        "requests": _requests(stats.requests),
        "counters": stats.counters,
        "store": stats.store,
    }


def _of_directory(settings: Settings, broker_id: str) -> "BrokerStatus | None":
    from messagehub.status import running_broker

    running = running_broker(settings)
    return running if running is not None and running.broker_id == broker_id else None


def _requests(by_type: dict[str, dict[str, Any]]) -> dict[str, Any]:
    kept = ("count", "errors", "p50_seconds", "p99_seconds")
    return {
        "count": sum(one["count"] for one in by_type.values()),
        "errors": sum(one["errors"] for one in by_type.values()),
        "by_type": {name: {key: one[key] for key in kept} for name, one in by_type.items()},
    }


def _print(shown: dict[str, Any]) -> None:
    requests = shown["requests"]
    oddities = {name: count for name, count in shown["counters"].items() if count and name != "published"}
    echo_fields(
        {
            "health": shown["health"] + (", but read-only: its disk is full or failing" if shown["read_only"] else ""),
            "endpoint": shown["endpoint"],
            "events": shown["events_endpoint"],
            "http": shown["http"],
            "directory": shown["dir"],
            "process": f"pid {shown['pid']}, up {duration(shown['uptime_seconds'])}",
            "version": shown["version"]
            + ("" if shown["version"] == __version__ else f" (this program is {__version__})"),
            "revision": shown["revision"],
            "holds": ", ".join(f"{count} {name}" for name, count in shown["counts"].items()),
            "requests": f"{requests['count']}, {requests['errors']} refused",
            "events sent": shown["counters"].get("published", 0),
            **({"counted": oddities} if oddities else {}),
        }
    )
    echo("")
    echo_table(
        ("REQUEST", "COUNT", "REFUSED", "P50 UP TO", "P99 UP TO"),
        [
            (name, one["count"], one["errors"], duration(one["p50_seconds"]), duration(one["p99_seconds"]))
            for name, one in sorted(requests["by_type"].items())
        ],
    )
