"""`messagehub backup`: copy what the hub keeps, while it runs."""

from pathlib import Path
from typing import Annotated

import typer

from messagehub.cli.options import Dir, Json
from messagehub.cli.output import echo, echo_json
from messagehub.cli.progress import progress
from messagehub.settings import Settings


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; it must not exist yet.")],
    *,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Copy the registry's database to a file: schemas, channels, retained topics, positions.

    The hub may run meanwhile. The copy is a consistent snapshot, and is checked when it is complete.
    To go back to it: stop the hub, and put the copy in the place of registry.db in its directory.
    """
    from messagehub.store.sqlite_backup import back_up

    database = Settings.for_client(dir=dir).database_path
    with progress(f"copying {database}", database.stat().st_size if database.exists() else None) as advance:
        left = [0]

        def tell(remaining: int, total: int) -> None:
            done = total - remaining
            advance(done - left[0])
            left[0] = done

        made = back_up(database, file, tell)
    if as_json:
        echo_json(made)
    else:
        echo(f"{made.path}: {made.size_bytes} bytes, {made.schemas} schema versions, {made.channels} channels,"
             f" {made.topics} retained topics, revision {made.revision}")  # fmt: skip
