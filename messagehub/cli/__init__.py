"""The `messagehub` command.

Exit codes: 0 done, 1 the hub said no or something is wrong, 2 wrong usage, 3 no broker answers.
Heavy imports (the hub, the broker, rich) happen inside the commands that need them: `--help` is for impatient people.
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from messagehub.cli import (
    backup,
    bench,
    blocks,
    channels,
    discover,
    doctor,
    hosts,
    hz,
    keys,
    publish,
    purge,
    record,
    register,
    request,
    schemas,
    serve,
    services,
    site,
    status,
    stop,
    subscribe,
    systemd_service,
    tables,
    tail,
    tokens,
    top,
    topics,
    trace,
    validate,
    watch,
)
from messagehub.cli.failures import HubCommand
from messagehub.cli.output import echo, have_standard_streams
from messagehub.version import __version__

app = typer.Typer(
    name="messagehub",
    help="Where data lives, what schema it has and who is alive.",
    epilog="Exit codes: 0 done, 1 refused or wrong, 2 usage, 3 no broker answers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    serve.serve,
    stop.stop,
    status.status,
    hosts.hosts,
    top.top,
    doctor.doctor,
    bench.bench,
    backup.backup,
    backup.restore,
    purge.purge,
    discover.discover,
    register.register,
    watch.watch,
    trace.trace,
    tail.tail,
    hz.hz,
    record.record,
    record.replay,
    validate.validate,
    publish.publish,
    subscribe.subscribe,
    request.request,
):
    app.command(cls=HubCommand)(command)
app.add_typer(channels.app)
app.add_typer(schemas.app)
app.add_typer(blocks.app)
app.add_typer(tables.app)
app.add_typer(topics.app)
app.add_typer(services.app)
app.add_typer(systemd_service.app)
app.add_typer(keys.app)
app.add_typer(tokens.app)
app.add_typer(site.app)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        echo(f"messagehub {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Where data lives, what schema it has and who is alive."""


@cache
def root_command() -> Callable[..., Any]:
    """Build all commands of `app`, once: it takes 20 ms."""
    return get_command(app)


def main() -> None:
    have_standard_streams()
    root_command()(prog_name="messagehub")
