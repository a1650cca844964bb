"""The dashboard for Grafana asks only for what a running hub shows; a real Prometheus answers its queries."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.admin.test_prometheus import MonitoredWeb, Prometheus
from tests.debian import program_or_skip
from tests.integration.harness import ROOT, eventually

BOARD = json.loads((ROOT / "examples" / "grafana_dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]]
ADDED = {"job", "le"}
"""Labels that Prometheus adds, or that every histogram has."""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[MonitoredWeb]:
    """A hub with a channel that is written and read, and requests of each kind."""
    running = MonitoredWeb(tmp_path / "busy")
    with running.hub() as hub, hub.producer("lab.camera") as producer, hub.consumer("lab.camera") as consumer:
        producer.write(b"one")
        assert consumer.read(timeout=30) == b"one"
        producer.write(b"two")
        running.ask("GET", "/api/v1/channels")
        yield running
    running.close()


def labels_by_metric(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, inside in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', inside))
    return found


def labels_of(web: MonitoredWeb) -> dict[str, set[str]]:
    return labels_by_metric(web.ask("GET", "/metrics").text)


def test_every_metric_and_label_is_one_that_a_hub_shows(busy: MonitoredWeb) -> None:
    # The broker has less than a second to tell of the channel.
    shown = eventually(lambda: labels if "messagehub_channel_lag_items" in (labels := labels_of(busy)) else None)
    assert len(TARGETS) > 25
    for title, query, legend in TARGETS:
        names = re.findall(r"\b(?:messagehub|process)_\w+", query)
        assert names, title
        asked = set(re.findall(r"(\w+)=~?\"", query)) | set(re.findall(r"\{\{(\w+)\}\}", legend))
        asked |= {label for by in re.findall(r"by \(([^)]+)\)", query) for label in by.split(", ")}
        for name in names:
            assert name in shown, title
            assert asked <= shown[name] | ADDED, title
    assert shown["messagehub_channel_lag_items"] == {"channel"}


def test_the_state_of_a_channels_ring_is_told(busy: MonitoredWeb) -> None:
    of = '{channel="lab.camera"}'

    def told(name: str) -> float:
        """The broker has less than a second to tell of the channel."""
        return eventually(lambda: busy.samples(f"messagehub_channel_{name}"))[of]

    assert told("lag_items") == 1
    assert told("readers") == 1
    assert told("slots") > 1
    assert told("memory_bytes") > 4096
    assert told("skipped_items") == 0


def test_panels_have_titles_and_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert panel["title"]
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


@pytest.mark.timeout(600)  # the package may have to be installed
def test_a_real_prometheus_answers_every_query(busy: MonitoredWeb, tmp_path: Path) -> None:
    prometheus = Prometheus(program_or_skip("prometheus", "prometheus"), tmp_path, busy)
    try:
        eventually(lambda: prometheus.query('rate(messagehub_request_seconds_count{job="messagehub"}[1m])'), timeout=60)
        for title, query, _ in TARGETS:
            asked = query.replace("$job", "messagehub").replace("$channel", ".*").replace("$__rate_interval", "1m")
            found = eventually(lambda asked=asked: prometheus.query(asked), timeout=60)
            assert found, title
    finally:
        prometheus.close()
