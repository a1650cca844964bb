"""The harness says what it measured and nothing more; a smoke test, since figures cannot be asserted."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
import zmq

from benchmarks import packages
from benchmarks.brokers import client_socket, echo_broker
from benchmarks.clients import p50_us, raw_request
from benchmarks.harness import (
    Bench,
    CannotMeasure,
    Comparison,
    NotMeasured,
    PeerMissing,
    Row,
    all_comparisons,
)
from benchmarks.picture import draw
from benchmarks.processes import ROOT, accepts, free_port, running
from benchmarks.report import verdict, write_json
from benchmarks.verdicts import Verdict, at_least, at_most, beside, spread


def rows_of(bench: Bench, run: object) -> list[Row]:
    return bench.run(Comparison("test", "a comparison", run))  # type: ignore[arg-type]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, quick=True, repetitions=5, on_step=lambda _: None)


def test_spread_of_five_values_is_their_range_and_of_more_leaves_outliers_out() -> None:
    assert (spread([1, 2, 3, 4, 5]).low, spread([1, 2, 3, 4, 5]).high) == (1, 5)
    found = spread([0.001, *[1.0] * 9, 1000.0])
    assert (found.low, found.median, found.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("claim", "values", "expected"),
    [
        (at_most(1.15, "a"), [1.0, 1.05, 1.1, 1.1, 1.12], Verdict.MET),
        (at_most(1.15, "a"), [1.2, 1.3, 1.3, 1.4, 1.5], Verdict.MISSED),
        (at_most(1.15, "a"), [1.0, 1.1, 1.1, 1.1, 1.3], Verdict.NOISY),
        (at_least(0.85, "a"), [0.9, 0.95, 1.0, 1.0, 1.1], Verdict.MET),
        (at_least(0.85, "a"), [0.5, 0.6, 0.6, 0.7, 0.8], Verdict.MISSED),
        (beside("a"), [1.0], Verdict.BESIDE),
    ],
)
def test_verdict_is_given_only_when_the_spread_is_on_one_side(
    claim: object, values: list[float], expected: Verdict
) -> None:
    assert claim.verdict(spread(values)) is expected  # type: ignore[attr-defined]


def test_repetitions_are_interleaved_and_the_order_rotates(bench: Bench) -> None:
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return 1.0

    contenders = {name: (lambda name=name: measure(name)) for name in "abc"}
    rows = rows_of(bench, lambda b: b.compare(contenders, unit="s", claims=[at_most(1.0, "a", "b")]))
    assert "".join(order) == "abcbcacababcbca"
    assert rows[0].verdict == Verdict.MET


def test_ratio_is_taken_repetition_by_repetition(bench: Bench) -> None:
    drift = iter(range(1, 100))
    pace = 1.0

    def floor() -> float:
        nonlocal pace
        pace = float(next(drift))
        return pace

    contenders = {"floor": floor, "ours": lambda: pace * 1.1}
    claims = [at_most(1.15, "ours", "floor")]
    (row,) = rows_of(bench, lambda b: b.compare(contenders, unit="s", claims=claims, repetitions=1))
    assert row.found is not None
    assert row.found.median == pytest.approx(1.1)


def test_missing_peer_is_a_row_that_says_why_and_the_others_are_measured(bench: Bench) -> None:
    contenders = {
        "ours": lambda: 1.0,
        "floor": lambda: 1.0,
        "peer": NotMeasured("redis-server is not installed"),
    }
    claims = [at_most(1.15, "ours", "floor"), at_most(1.15, "ours", "peer")]
    met, missing = rows_of(bench, lambda b: b.compare(contenders, unit="s", claims=claims))
    assert met.verdict == Verdict.MET
    assert (missing.verdict, missing.reason) == ("not measured", "redis-server is not installed")


def test_measurement_that_went_wrong_is_a_failed_row_and_not_an_end(bench: Bench) -> None:
    def wrong(_: Bench) -> None:
        raise CannotMeasure("3 wrong replies")

    (row,) = rows_of(bench, wrong)
    assert (row.verdict, row.reason) == ("FAILED", "3 wrong replies")


def test_program_that_cannot_be_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PeerMissing, match=r"no-such-server is not installed \(apt-get install no-such-package\)"):
        packages.program("no-such-server", "no-such-package")


def test_results_are_written_as_json_and_as_a_picture(bench: Bench, tmp_path: Path) -> None:
    from datetime import UTC, datetime

    contenders = {"ours": lambda: 2.0, "floor": lambda: 1.0}
    rows = rows_of(bench, lambda b: b.compare(contenders, unit="µs", claims=[at_most(1.15, "ours", "floor")]))
    write_json(rows, tmp_path / "results.json", quick=True, started_at=datetime.now(UTC))
    draw(rows, tmp_path / "results.png")
    written = msgspec.json.decode((tmp_path / "results.json").read_bytes())
    assert written["rows"][0]["verdict"] == "MISSED" == verdict(rows[0])
    assert written["rows"][0]["figures"] == {"ours": [2.0] * 5, "floor": [1.0] * 5}
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


def test_echo_floor_answers_and_survives_a_misframed_peer() -> None:
    with echo_broker() as echo, raw_request(echo.endpoint, b"ping", b"ping") as trips:
        with client_socket(echo.endpoint, zmq.DEALER) as dealer:
            dealer.send_multipart([b"x"] * 12)
        assert p50_us(trips, 0.02)() > 0


def test_server_ends_with_its_block_and_with_the_process_that_started_it() -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    with running(command, is_ready=accepts(port)) as process:
        assert process.poll() is None
    assert process.poll() is not None

    script = (
        "import sys, time\nfrom benchmarks.processes import *\n"
        f"with running({command!r}, is_ready=accepts({port})) as server:\n"
        "    print(server.pid, flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    assert starter.stdout is not None
    server = int(starter.stdout.readline())
    starter.kill()
    starter.communicate()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{server}").exists() and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert not accepts(port)()


def test_every_comparison_is_listed_once_with_a_name_of_its_own() -> None:
    names = [f"{each.topic}/{each.slug}" for each in all_comparisons()]
    assert len(names) == len(set(names)) >= 9
