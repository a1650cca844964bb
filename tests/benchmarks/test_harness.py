"""The harness says what it measured and nothing more; a smoke test, since figures cannot be asserted."""

import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import zmq

from benchmarks import packages
from benchmarks.against import compare_checkouts, judged
from benchmarks.brokers import client_socket, echo_broker
from benchmarks.clients import p50_us, raw_request
from benchmarks.documentation import BEGIN, END, PAGE, write_docs
from benchmarks.groups import GROUPS
from benchmarks.harness import (
    Bench,
    CannotMeasure,
    Comparison,
    NotMeasured,
    PeerMissing,
    Row,
    all_comparisons,
)
from benchmarks.hub_processes import hub_row
from benchmarks.picture import draw
from benchmarks.placement import CORES, Placement
from benchmarks.processes import ROOT, accepts, running, spawn
from benchmarks.report import group_table, read_json, results, verdict, write_json
from benchmarks.verdicts import Spread, Verdict, at_least, at_most, beside, spread
from tests.ports import own_ports


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
        (at_most(1.15, "a"), [1.0, 1.1, 1.1, 1.1, 1.3], Verdict.UNDECIDED),
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

    def defective(_: Bench) -> None:
        raise KeyError("a defect")

    (row,) = rows_of(bench, defective)
    assert (row.verdict, row.reason) == ("FAILED", "KeyError: 'a defect'")


def test_program_that_cannot_be_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PeerMissing, match=r"no-such-server is not installed \(apt-get install no-such-package\)"):
        packages.program("no-such-server", "no-such-package")


def test_results_are_written_as_json_and_as_a_picture_of_their_group(bench: Bench, tmp_path: Path) -> None:
    contenders = {"ours": lambda: 2.0, "floor": lambda: 1.0}
    claims = [at_most(1.15, "ours", "floor")]
    run = Comparison("discovery", "a comparison", lambda b: b.compare(contenders, unit="µs", claims=claims))
    found = results(bench.run(run), quick=True, started_at=datetime.now(UTC))
    write_json(found, tmp_path / "results.json")
    written = read_json(tmp_path / "results.json")
    (row,) = written.rows
    assert (row.verdict, row.group, row.placement) == ("MISSED", "discovery", Placement.FREE)
    assert row.figures == {"ours": [2.0] * 5, "floor": [1.0] * 5}
    assert [path.name for path in draw(written, tmp_path)] == ["discovery.png"]
    assert (tmp_path / "discovery.png").read_bytes().startswith(b"\x89PNG")


def test_table_has_a_line_for_each_row_with_both_figures_and_fits_the_screen(bench: Bench) -> None:
    contenders = {"ours, with a name that is longer than it should be " * 2: lambda: 2.0, "floor": lambda: 1.0}
    name = next(iter(contenders))
    rows = rows_of(bench, lambda b: b.compare(contenders, unit="µs", claims=[at_most(1.15, name, "floor")]))
    lines = [line.plain for line in group_table("rings", rows, 100)]
    assert len(lines) == 4
    assert all(text in lines[-1] for text in ("2 µs", "1 µs", "2.00x", "≤ 1.15x", "MISSED", "…"))
    assert max(map(len, lines)) <= 100


def test_every_comparison_belongs_to_a_group_and_no_group_outgrows_a_screen() -> None:
    comparisons = all_comparisons()
    assert {each.group for each in comparisons} == set(GROUPS)
    for group in GROUPS:
        headings = sum(len(each.placements) for each in comparisons if each.group == group)
        assert headings <= 16, group


def test_figures_are_written_into_the_page_between_its_markers(bench: Bench, tmp_path: Path) -> None:
    contenders = {"ours": lambda: 2.0, "floor": lambda: 1.0, "peer": NotMeasured("it is not installed")}
    claims = [at_most(1.15, "ours", "floor"), at_most(1.0, "ours", "peer")]
    rows = bench.run(Comparison("streams", "a comparison", lambda b: b.compare(contenders, unit="µs", claims=claims)))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_docs(results(rows, quick=True, started_at=datetime.now(UTC)), page, tmp_path / "performance")
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| ours | 2 µs | floor | 1 µs | 2.00x | 2.00 to 2.00x | ≤ 1.15x | MISSED |" in text
    assert "not measured: it is not installed" in text
    assert "performance/messaging.png" in text
    assert (tmp_path / "performance" / "messaging.png").exists()
    page.write_text("no markers")
    with pytest.raises(ValueError, match="no place for the figures"):
        write_docs(results(rows, quick=True, started_at=datetime.now(UTC)), page, tmp_path / "performance")


def test_page_of_the_documentation_has_a_place_for_the_figures() -> None:
    assert BEGIN in PAGE.read_text()
    assert END in PAGE.read_text().partition(BEGIN)[2]


def test_row_repeated_alone_measures_its_two_contenders_only(bench: Bench) -> None:
    measured: list[str] = []
    noise = iter([0.5, 2.0, 1.0] * 100)

    def measure(name: str) -> float:
        measured.append(name)
        return next(noise) if name == "a" else 1.0

    contenders = {name: (lambda name=name: measure(name)) for name in "abc"}
    claims = [at_most(1.0, "a", "b"), at_most(1.0, "c", "b")]

    def run(b: Bench) -> None:
        b.compare(contenders, unit="s", claims=claims)
        measured.append("what else the comparison does")

    chosen = Comparison("test", "a comparison", run)
    undecided, met = bench.run(chosen)
    assert (undecided.verdict, met.verdict) == (Verdict.UNDECIDED, Verdict.MET)
    assert verdict(undecided).startswith("not repeated")
    measured.clear()
    again = bench.run_alone(chosen, undecided)
    assert set(measured) == {"a", "b"}
    assert len(again.figures["a"]) > len(undecided.figures["a"])
    assert (again.key, again.was_repeated) == (undecided.key, True)
    assert "repeated" not in verdict(again)
    assert len(bench.rows) == 2


def test_row_found_along_the_way_is_repeated_with_all_that_leads_to_it(bench: Bench) -> None:
    slowest: dict[str, list[float]] = {}
    noise = iter([0.5, 2.0, 1.0] * 100)

    def measure(name: str) -> float:
        slowest.setdefault(f"{name}, slowest", []).append(next(noise) if name == "a" else 1.0)
        return 1.0

    def run(b: Bench) -> None:
        slowest.clear()
        contenders = {name: (lambda name=name: measure(name)) for name in "ab"}
        b.compare(contenders, unit="s", claims=[at_most(1.0, "a", "b")])
        b.judge(slowest, unit="s", claims=[at_most(1.0, *slowest)])

    chosen = Comparison("test", "a comparison", run)
    _, undecided = bench.run(chosen)
    assert (undecided.verdict, undecided.is_derived) == (Verdict.UNDECIDED, True)
    again = bench.run_alone(chosen, undecided)
    assert (again.key, again.was_repeated, again.found is not None) == (undecided.key, True, True)
    assert again is not undecided


def test_placement_holds_for_every_thread_and_for_both_sides_and_ends(bench: Bench) -> None:
    if len(CORES) < 2:
        pytest.skip("this machine has one core")
    found: dict[str, list[set[int]]] = {}
    release = threading.Event()
    thread = threading.Thread(target=release.wait, daemon=True)
    thread.start()

    def affinity(process: subprocess.Popen[bytes]) -> set[int]:
        assert process.stdout is not None
        with process:
            return set(map(int, process.stdout.read().split()))

    def look(b: Bench) -> None:
        command = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
        found[b.placement] = [
            os.sched_getaffinity(0),
            os.sched_getaffinity(thread.native_id or 0),
            affinity(spawn(command, stdout=subprocess.PIPE, is_client=True)),
            affinity(spawn(command, stdout=subprocess.PIPE)),
        ]

    try:
        bench.run(Comparison("test", "a comparison", look, placements=tuple(Placement)))
    finally:
        release.set()
    first, last = {CORES[0]}, {CORES[-1]}
    assert found[Placement.SAME_CORE] == [first] * 4
    assert found[Placement.TWO_CORES] == [first, first, first, last]
    assert found[Placement.FREE] == [set(CORES)] * 4
    assert os.sched_getaffinity(0) == set(CORES)


def test_row_of_the_hub_is_measured_in_a_process_of_its_own_that_leaves_nothing(tmp_path: Path) -> None:
    with hub_row(tmp_path, "stream-1k") as row:
        assert row.measure(0.01) > 0
        assert Path(f"/proc/{row.process.pid}").exists()
    assert row.process.returncode == 0
    assert not any(tmp_path.iterdir())


def test_other_tree_than_the_one_asked_for_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasure, match="was measured instead of"), hub_row(tmp_path, "write", tree=tmp_path):
        pass


def test_tree_against_itself_is_no_failure_and_no_checkout_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare_checkouts(ROOT, tmp_path, quick=True, only="1 kib that nobody")
    assert "write of 1 KiB that nobody reads · same core" in capsys.readouterr().out
    (found,) = msgspec.json.decode((tmp_path / "against.json").read_bytes())
    assert len(found["here"]) == len(found["there"]) >= 15
    assert compare_checkouts(tmp_path, tmp_path, quick=True) == 2
    assert "no checkout" in capsys.readouterr().err
    assert compare_checkouts(ROOT, tmp_path, quick=True, only="no such row") == 2
    assert "nothing matches" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Spread(1.0, 0.95, 1.05), "no difference"),
        (Spread(1.02, 1.01, 1.025), "no difference"),
        (Spread(1.2, 1.1, 1.3), "worse"),
        (Spread(0.8, 0.7, 0.9), "better"),
        (Spread(1.0, 0.7, 1.4), "undecided"),
    ],
)
def test_difference_is_told_only_when_the_whole_spread_shows_it(found: Spread, expected: str) -> None:
    assert judged(found) == expected


def test_echo_floor_answers_and_survives_a_misframed_peer() -> None:
    with echo_broker() as echo, raw_request(echo.endpoint, b"ping", b"ping") as trips:
        with client_socket(echo.endpoint, zmq.DEALER) as dealer:
            dealer.send_multipart([b"x"] * 12)
        assert p50_us(trips, 0.02)() > 0


def test_server_ends_with_its_block_and_with_the_process_that_started_it() -> None:
    (port,) = own_ports(1)
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
