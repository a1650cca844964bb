"""What `make demo-site` shows, on three hosts in namespaces of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from examples.namespaces import why_not
from examples.site_report import Clients, Seen, rows, table
from tests.debian import program_or_skip

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(500, func_only=True)
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("with_spark", [False, True], ids=["without Spark", "with Spark"])
def test_the_demo_of_a_site_ends_with_everything_as_promised(with_spark: bool, tmp_path: Path) -> None:
    program_or_skip("etcd", "etcd-server")
    options = ["--seconds", "3", *([] if with_spark else ["--no-spark"])]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "site_demo.py"), *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "everything is as docs/howto/several-hosts.md promises" in done.stdout
    assert with_spark == ("'bert'" in done.stdout.partition("parts on")[2].partition("\n")[0])


@pytest.mark.slow
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_interrupted_leaves_no_process(how: signal.Signals, tmp_path: Path) -> None:
    program_or_skip("etcd", "etcd-server")
    demo = subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "site_demo.py"), "--no-spark"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert demo.stdout is not None
        assert any("messagehub services" in line for line in demo.stdout), "it ended before its clients began"
        assert any(str(tmp_path) in command for command in _commands())
        demo.send_signal(how)
        demo.communicate(timeout=120)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode != 0
    assert [command for command in _commands() if str(tmp_path) in command] == []


def _commands() -> list[str]:
    """Return the command line of every process of this machine."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            found.append(each.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def everything_kept() -> Clients:
    orders = [("anna", 0), ("anna", 1)]
    asked = [("bert", 0), ("cleo", 0)]
    return {
        "measure": [_seen("anna", written=3)],
        "read": [_seen("bert", read=3, missing=0, counted=0, by="flight")],
        "hear": [_seen("bert", heard=2, missing=1, counted=1)],
        "write": [_seen("cleo", acknowledged=1, refused=0, lost=0)],
        "fetch": [_seen("cleo", rows=1, all_there=True, parts_on=["anna", "bert"])],
        "serve": [_seen("anna", *asked)],
        "ask": [
            _seen("bert", asked[0], asked=1, refused=0),
            _seen("cleo", asked[1], refused_at=[5.0], asked=2, refused=1),
        ],
        "order": [_seen("anna", *orders, acknowledged=2)],
        "book": [_seen("cleo", *orders)],
        "hand_out": [_seen("anna", wrote=4)],
        "work": [_seen("bert", (0,), (1,)), _seen("bert", (1,), (2,)), _seen("cleo", (3,))],
    }


def _seen(host: str, *done: tuple[Any, ...], refused_at: list[float] | None = None, **last: Any) -> Seen:
    return Seen(host, last, list(done), refused_at or [])


def test_the_report_of_the_demo_says_that_every_promise_was_kept() -> None:
    kept = rows(everything_kept(), (4.0, 6.0))
    assert all(each.is_kept for each in kept), table(kept)


@pytest.mark.parametrize(
    ("client", "breaks"),
    [
        ("reader", lambda seen: seen["read"][0].last.update(read=2)),
        ("subscriber", lambda seen: seen["hear"][0].last.update(counted=0)),
        ("writer of schemas", lambda seen: seen["write"][0].last.update(lost=1)),
        ("reader of the table", lambda seen: seen["fetch"][0].last.update(all_there=False)),
        ("service", lambda seen: seen["serve"][0].done.append(("bert", 0))),
        ("caller", lambda seen: seen["ask"][0].last.update(asked=2)),
        ("caller", lambda seen: seen["ask"][0].last.update(asked=2, refused=1)),
        ("caller", lambda seen: seen["ask"][1].refused_at.append(6.5)),
        ("publisher of orders", lambda seen: seen["book"][0].done.pop()),
        ("reader of orders", lambda seen: seen["book"][0].done.append(("anna", 2))),
        ("the group", lambda seen: seen["work"][2].done.clear()),
        ("the group", lambda seen: seen["work"][1].done.extend([(2,)] * 20)),
    ],
)
def test_the_report_of_the_demo_names_the_client_whose_promise_was_broken(
    client: str, breaks: Callable[[Clients], object]
) -> None:
    seen = everything_kept()
    breaks(seen)
    broken = {each.client for each in rows(seen, (4.0, 6.0)) if not each.is_kept}
    assert broken == {client}
