"""The `messagehub` command.

Exit codes: 0 done, 1 the hub said no or something is wrong, 2 wrong usage, 3 no broker answers.
"""

import sys

import typer

from messagehub.cli.output import complain
from messagehub.cli.serve import serve
from messagehub.errors import BrokerUnavailable, HubError

app = typer.Typer(
    name="messagehub",
    help="Where data lives, what schema it has and who is alive.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(serve)


@app.callback()
def _root() -> None:
    """Keeps `messagehub` a group of commands, however few there are."""


def main() -> None:
    try:
        app()
    except BrokerUnavailable as error:
        complain(f"messagehub: {error.message}")
        sys.exit(3)
    except HubError as error:
        complain(f"messagehub: {error.message}")
        sys.exit(1)
