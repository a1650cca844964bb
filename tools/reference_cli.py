"""docs/reference/cli.md: every command, argument and option, as `--help` shows them."""

from collections.abc import Iterator
from typing import Any

import typer

from messagehub.cli import app

_HEAD = """# Command line

Written from the program by `make generate`. Every command shows the same with `--help` (or `-h`).

Exit codes: 0 done, 1 the hub said no or something is wrong, 2 wrong usage, 3 no broker answers.
`messagehub --install-completion` sets up the completion of your shell.
A noun without a subcommand lists: `messagehub channels sensor` is `messagehub channels list sensor`.
"""


def page() -> str:
    root = typer.main.get_command(app)
    lines = [_HEAD]
    for context in _commands(root.make_context("messagehub", [], resilient_parsing=True)):
        lines += _section(context)
    return "\n".join(lines)


def _commands(context: Any) -> Iterator[Any]:
    """Yield a context for the command and for all below it, in the order of their help."""
    yield context
    for name in getattr(context.command, "commands", {}):
        command = context.command.commands[name]
        if not command.hidden:
            below = type(context)(command, info_name=name, parent=context)
            yield from _commands(below)


def _section(context: Any) -> list[str]:
    command = context.command
    if hasattr(command, "commands"):
        listed = ", ".join(f"[`{name}`]({_anchor(f'{context.command_path} {name}')})" for name in command.commands)
        below = ["", f"Commands: {listed}."]
    else:
        below = []
    usage = command.get_usage(context).removeprefix("Usage: ").split()
    lines = [f"## {context.command_path}", "", _plain(command.help), *below, "", f"`{' '.join(usage)}`", ""]
    rows = [record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))]
    told = [(declared, said) for declared, said in rows if "--help" not in declared]
    if told:
        lines += ["| argument or option | meaning |", "|---|---|"]
        lines += [f"| `{_cell(declared)}` | {_cell(said)} |" for declared, said in told]
        lines.append("")
    return lines


def _anchor(heading: str) -> str:
    return "#" + heading.replace(" ", "-")


def _plain(text: str | None) -> str:
    return " ".join((text or "").split())


def _cell(text: str) -> str:
    return _plain(text).replace("|", r"\|")
