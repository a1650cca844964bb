"""`messagehub keys`: who may come in over TCP, and with which rights. A running hub follows at once."""

from pathlib import Path
from typing import Annotated

import typer

from messagehub.cli.failures import HubCommand
from messagehub.cli.options import Dir, Json
from messagehub.cli.output import echo, echo_json, echo_table
from messagehub.cli.subcommands import ListingGroup
from messagehub.display.values import moment
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings

app = typer.Typer(
    name="keys",
    help="Keys of peers on TCP. Plain `keys` lists them.",
    cls=ListingGroup,
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: a letter, then letters, digits, - and _.")]
Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE[:PATTERN]",
        help="observe, consume, produce, schema-admin or admin; produce:sensors.* for some names only. Repeatable.",
    ),
]


@app.command("list", cls=HubCommand)
def list_keys(dir: Dir = None, as_json: Json = False) -> None:
    """Show the hub's public key, and the keys that are let in."""
    from messagehub.security.credentials import AccessFile, server_public_key

    settings = Settings.for_client(dir=dir)
    listed = AccessFile(settings.access_path).read().keys
    server = server_public_key(settings.keys_path)
    if as_json:
        keys = [
            {"name": name, "public": key.proof, "roles": key.rights, "created_at": key.created_at}
            for name, key in listed.items()
        ]
        echo_json({"server_key": server, "keys": keys})
        return
    echo(f"server_key {server or '-'}")
    rows = [(name, key.proof, " ".join(key.rights), moment(key.created_at)) for name, key in listed.items()]
    echo_table(("NAME", "PUBLIC KEY", "ROLES", "LISTED"), rows, whole=("PUBLIC KEY",))


@app.command("new", cls=HubCommand)
def new_key(
    name: Name,
    role: Roles = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the key file goes. Default: keys/NAME.key in the directory."),
    ] = None,
    server_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The hub's public key. Default: that of the directory.")
    ] = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Make a key file for a client; with --role it is let in at once.

    The file holds a secret: hand it over privately. The client names it with MESSAGEHUB_KEY or key_file.
    """
    from messagehub.security.credentials import AccessFile, KeyPair, allow_key, check_key, server_keys
    from messagehub.security.private_files import private_directory
    from registry import names
    from registry.access import Rights

    names.check_role("key", name)
    Rights.parse(role or [])
    settings = Settings.for_client(dir=dir)
    if server_key is not None:
        check_key(server_key)
    if out is None or role:
        private_directory_of_hub(settings)
    pair = KeyPair.new(
        server_key or server_keys(settings.keys_path).public if server_key or settings.dir.is_dir() else ""
    )
    if out is None:
        private_directory(settings.keys_path)
        if name == "server":
            raise ConfigurationError("server is the name of the hub's own key: choose another")
    path = out or settings.keys_path / f"{name}.key"
    pair.write(path)
    if role:
        allow_key(AccessFile(settings.access_path), name, pair.public, role)
    if as_json:
        echo_json({"name": name, "public": pair.public, "file": str(path), "roles": role or []})
    else:
        echo(f"{path} holds the new key; its public half is {pair.public}")
        if not role:
            echo(f"let it in with: messagehub keys allow {name} '{pair.public}' --role ROLE")


@app.command("allow", cls=HubCommand)
def allow(
    name: Name,
    role: Roles = None,
    public: Annotated[
        str | None,
        typer.Argument(
            metavar="PUBLIC_KEY",
            help="Default: that of keys/NAME.key, or the listed one. Write -- before a key that begins with -.",
        ),
    ] = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """List a public key with its rights, or give a listed one other rights."""
    from messagehub.security.credentials import AccessFile, KeyPair, allow_key
    from registry import names

    names.check_role("key", name)
    if not role:
        raise typer.BadParameter("say what it may do with --role")
    settings = Settings.for_client(dir=dir)
    private_directory_of_hub(settings)
    access = AccessFile(settings.access_path)
    listed = access.read().keys.get(name)
    if public is None:
        public = listed.proof if listed else KeyPair.read(settings.keys_path / f"{name}.key").public
    allow_key(access, name, public, role)
    if as_json:
        echo_json({"name": name, "public": public, "roles": role})
    else:
        echo(f"{name} may: {' '.join(role)}")


@app.command("revoke", cls=HubCommand)
def revoke_key(name: Name, dir: Dir = None, as_json: Json = False) -> None:
    """Revoke a key. Requests on its open connections are refused from now on."""
    from messagehub.security.credentials import AccessFile, remove_revoked_key, revoke

    settings = Settings.for_client(dir=dir)
    path = settings.keys_path / f"{name}.key"
    is_removed = remove_revoked_key(path, revoke(AccessFile(settings.access_path), "key", name))
    if as_json:
        echo_json({"name": name, "removed": str(path) if is_removed else None})
    else:
        echo(f"{name} is not let in any more" + (f"; {path} was removed" if is_removed else ""))


def private_directory_of_hub(settings: Settings) -> None:
    from messagehub.security.credentials import private_directory_of

    private_directory_of(settings.access_path)
