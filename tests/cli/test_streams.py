"""Commands whose output nobody reads end quietly."""

import subprocess
import sys

import pytest

from tests.cli.program import DEADLINE_SECONDS, Program


def in_shell(program: Program, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which `$MESSAGEHUB` is the program; a pipe's exit code is that of its first part."""
    return subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        env=program.environment | {"MESSAGEHUB": f"{sys.executable} -m messagehub"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("command", ["status", "status --json", "channels", "--version", "--help"])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stdout_is_no_failure(hub: Program, command: str, closed: str) -> None:
    done = in_shell(hub, f"$MESSAGEHUB {command} {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["status", "status --json", "channels", "doctor", "schemas", "topics"])
def test_a_reader_that_leaves_early_is_no_failure(hub: Program, command: str) -> None:
    done = in_shell(hub, f"$MESSAGEHUB {command} | true")
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_stdout_that_cannot_be_written_is_a_failure_in_one_line(hub: Program) -> None:
    done = in_shell(hub, "$MESSAGEHUB status --json > /dev/full")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr
