"""The program as such: names, options, exit codes for wrong usage, and how little `--help` loads."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from messagehub import MessageHub
from messagehub.cli import app
from messagehub.version import __version__
from tests.cli.program import ROOT, Program

COMMANDS = ["serve", "status", "channels", "discover", "register", "watch", "schemas", "trace", "doctor"]


def leaves(command: Any, path: str = "") -> dict[str, Any]:
    if not hasattr(command, "commands"):
        return {path.strip(): command}
    return {name: leaf for sub, one in command.commands.items() for name, leaf in leaves(one, f"{path} {sub}").items()}


ALL = leaves(typer.main.get_command(app))


def test_version_is_printed(alone: Program) -> None:
    assert alone.run("--version").stdout == f"messagehub {__version__}\n"


def test_help_names_every_command_and_the_exit_codes(alone: Program) -> None:
    text = alone.run("--help").stdout
    assert text.startswith("Usage: messagehub ")
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert "3 no broker answers" in text


@pytest.mark.parametrize("name", sorted(set(ALL) - {"serve"}))
def test_every_command_has_the_common_options(name: str) -> None:
    options = {option for parameter in ALL[name].params for option in parameter.opts}
    expected = {"--endpoint", "--dir", "--timeout", "--json"}
    if name.startswith(("backup", "restore", "blocks", "keys", "purge", "tokens", "service ", "site ")):
        expected -= {"--endpoint", "--timeout"}  # of this host's shared memory or of the directory: no broker is asked
    if name == "service uninstall":
        expected -= {"--dir"}  # a unit is found by its name
    if name == "stop":
        expected -= {"--endpoint"}  # only a hub of this host can be stopped
    if name in ("tail", "subscribe", "hz", "record", "replay", "top"):
        expected -= {"--timeout"}  # they go on until they are stopped
    assert expected <= options


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_command_explains_itself_and_its_options(name: str) -> None:
    assert ALL[name].help
    assert all(parameter.help for parameter in ALL[name].params if parameter.name != "help")


def test_help_does_not_load_heavy_packages() -> None:
    heavy = ("rich", "pyarrow", "numpy", "fastapi", "pyspark", "jsonschema", "fastavro", "sqlite3")
    code = f"""
import sys
sys.argv = ["messagehub", "--help"]
from messagehub.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
loaded = [name for name in {heavy} if name in sys.modules]
sys.exit(f"loaded: {{loaded}}" if loaded else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")},  # loads sqlite3
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["discover"],
        ["status", "--timeout", "nan"],
        ["status", "--timeout", "-1"],
        ["register", "x"],
        ["register", "x", "--schema", "/does/not/exist"],
        ["schemas", "get"],
        ["schemas", "get", "s", "--id", "1"],
        ["schemas", "get", "--id", "1", "--version", "2"],
        ["trace", "--limit", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_says_why(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "Error: " in done.stderr
    assert not done.stdout


def test_the_program_ends_with_2_on_wrong_usage(alone: Program) -> None:
    assert "No such command 'fly'" in alone.run("fly", code=2).stderr


def test_bad_setting_ends_with_1(alone: Program) -> None:
    done = alone.call("status", "--endpoint", "http://here", code=1)
    assert "must start with ipc:// or tcp://" in done.stderr


def test_without_a_broker_every_command_ends_with_3_and_says_what_to_do(alone: Program) -> None:
    commands = [
        ["channels"],
        ["channels", "destroy", "x", "--yes"],
        ["discover", "x", "--wait", "--timeout", "0.2"],
        ["register", "x", "--schema-hash", "abc"],
        ["watch"],
        ["schemas", "get", "s"],
        ["trace"],
    ]
    with ThreadPoolExecutor(4) as pool:
        for done in pool.map(lambda command: alone.run(*command, "--json", code=3), commands):
            assert '"code": "BROKER_UNAVAILABLE"' in done.stdout
            assert "messagehub serve" in done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["channels", "lst"], "channels list"),
        (["schemas", "regster"], "schemas register"),
        (["topics", "kep"], "topics keep"),
    ],
)
def test_a_subcommand_that_is_nearly_right_is_pointed_out(hub: Program, words: list[str], meant: str) -> None:
    done = CliRunner().invoke(app, words, env=hub.environment)
    assert f"did you mean `messagehub {meant}`?" in done.stderr
    assert "did you mean" not in hub.call("channels", "sensor").stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("messagehub cha", ["channels"]),
        ("messagehub channels d", ["describe", "destroy", "delete-group"]),
        ("messagehub channels describe --tim", ["--timeout"]),
        ("messagehub hz --ev", ["--every"]),
    ],
)
def test_shells_complete_commands_and_options(typed: str, offered: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MESSAGEHUB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert CliRunner().invoke(app, [], prog_name="messagehub").stdout.split() == offered


def test_shells_complete_names_of_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESSAGEHUB_DIR", str(tmp_path / "hub"))
    monkeypatch.setenv("_MESSAGEHUB_COMPLETE", "complete_bash")
    with MessageHub() as hub, hub.producer("sensor-a"), hub.producer("sensor-b"), hub.producer("other"):
        for command in ("hz", "tail", "discover", "channels describe", "tables drop", "watch"):
            typed = f"messagehub {command} sens"
            monkeypatch.setenv("COMP_WORDS", typed)
            monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
            done = CliRunner().invoke(app, [], prog_name="messagehub")
            assert (done.stdout.split(), done.stderr) == (["sensor-a", "sensor-b"], ""), command
