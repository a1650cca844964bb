"""The broker's numbers in Prometheus' text form."""

from registry.replies import StatsReport


def exposition(report: StatsReport, own: dict[str, int]) -> str:
    """`own` are counters of the HTTP process."""
    lines: list[str] = []

    def metric(name: str, kind: str, values: dict[str, float]) -> None:
        lines.append(f"# TYPE messagehub_{name} {kind}")
        lines.extend(f"messagehub_{name}{labels} {value}" for labels, value in values.items())

    for name in ("uptime_seconds", "revision", "channels", "producers", "consumers", "leases", "schemas"):
        metric(name, "gauge", {"": getattr(report, name)})
    metric("read_only", "gauge", {"": int(report.read_only)})
    for name, value in report.gauges.items():
        metric(name, "gauge", {"": value})
    for name, value in (report.counters | own).items():
        metric(f"{name}_total", "counter", {"": value})
    metric("store_transactions_total", "counter", {"": report.store["transactions"]})
    types = report.requests.items()
    metric("request_errors_total", "counter", {f'{{type="{kind}"}}': numbers["errors"] for kind, numbers in types})
    lines.append("# TYPE messagehub_request_seconds histogram")
    for kind, numbers in types:
        seen = 0
        for microseconds, count in numbers["buckets"].items():
            seen += count
            lines.append(f'messagehub_request_seconds_bucket{{type="{kind}",le="{int(microseconds) / 1e6}"}} {seen}')
        lines.append(f'messagehub_request_seconds_bucket{{type="{kind}",le="+Inf"}} {numbers["count"]}')
        lines.append(f'messagehub_request_seconds_sum{{type="{kind}"}} {numbers["total_seconds"]}')
        lines.append(f'messagehub_request_seconds_count{{type="{kind}"}} {numbers["count"]}')
    return "\n".join(lines) + "\n"
