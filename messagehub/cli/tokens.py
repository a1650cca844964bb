"""`messagehub tokens`: who may do what over HTTP. A running hub follows at once."""

import typer

from messagehub.cli.failures import HubCommand
from messagehub.cli.keys import Name, Roles, private_directory_of_hub
from messagehub.cli.options import Dir, Json
from messagehub.cli.output import complain, echo, echo_json, echo_table
from messagehub.cli.subcommands import ListingGroup
from messagehub.display.values import instant
from messagehub.settings import Settings

app = typer.Typer(
    name="tokens",
    help="Tokens for HTTP. Plain `tokens` lists them.",
    cls=ListingGroup,
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command("list", cls=HubCommand)
def list_tokens(dir: Dir = None, as_json: Json = False) -> None:
    """List the names of the tokens. The tokens themselves are not stored."""
    from messagehub.security.credentials import AccessFile

    listed = AccessFile(Settings.for_client(dir=dir).access_path).read().tokens
    if as_json:
        rows = [{"name": name, "roles": one.rights, "created_at": one.created_at} for name, one in listed.items()]
        echo_json({"tokens": rows})
        return
    shown = [(name, " ".join(one.rights), instant(one.created_at)) for name, one in listed.items()]
    echo_table(("NAME", "ROLES", "MADE"), shown)


@app.command("new", cls=HubCommand)
def new_token(name: Name, role: Roles = None, dir: Dir = None, as_json: Json = False) -> None:
    """Make a token and print it, only this once: the hub stores its hash."""
    from messagehub.security.credentials import AccessFile, allow_token

    if not role:
        raise typer.BadParameter("say what it may do with --role")
    settings = Settings.for_client(dir=dir)
    private_directory_of_hub(settings)
    token = allow_token(AccessFile(settings.access_path), name, role)
    if as_json:
        echo_json({"name": name, "token": token, "roles": role})
    else:
        echo(token)
        complain("this is the only time it is shown")


@app.command("revoke", cls=HubCommand)
def revoke_token(name: Name, dir: Dir = None, as_json: Json = False) -> None:
    """Revoke a token."""
    from messagehub.security.credentials import AccessFile, revoke

    revoke(AccessFile(Settings.for_client(dir=dir).access_path), "token", name)
    if as_json:
        echo_json({"name": name})
    else:
        echo(f"the token {name} is not taken any more")
