"""`messagehub backup` and `restore`: copy what the hub keeps, while it runs, and go back to a copy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from messagehub.cli.options import Dir, Json
from messagehub.cli.output import echo, echo_json
from messagehub.cli.progress import progress
from messagehub.display.values import counted, size
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings

if TYPE_CHECKING:
    from messagehub.store.sqlite_backup import Backup


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; it must not exist yet.")],
    *,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Copy the registry's database to a file: schemas, channels, retained topics, positions.

    The hub may run meanwhile. The copy is a consistent snapshot, and is checked when it is complete.
    `messagehub restore FILE` goes back to it.
    """
    from messagehub.store.sqlite_backup import back_up

    settings = Settings.for_client(dir=dir)
    _refuse_site(settings)
    database = settings.database_path
    with _progress(database) as tell:
        made = back_up(database, file, tell)
    if as_json:
        echo_json(made)
    else:
        echo(_line(made))


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A copy that `messagehub backup` has made.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Go back to a copy of the registry's database. The hub must be stopped; start it again afterwards.

    The copy is checked first. The database that it replaces stays in the hub's directory, as registry.db.before-TIME.
    What was written after the copy was made is only there.
    """
    from messagehub.broker.instance_lock import InstanceLock
    from messagehub.store.sqlite_backup import restore as restore_database
    from messagehub.store.sqlite_migrations import unused_name

    settings = Settings.load(dir=dir)
    _refuse_site(settings)
    database = settings.database_path
    before = unused_name(database, "before")
    lock = InstanceLock(settings)
    try:
        is_replacing = database.exists()
        if is_replacing and not yes:
            typer.confirm(f"Replace {database} by {file}? It stays as {before.name}.", abort=True, err=True)
        with _progress(file) as tell:
            made = restore_database(file, database, before, tell)
    finally:
        lock.release()
    if as_json:
        echo_json({"restored": made, "before": str(before) if is_replacing else None})
    else:
        echo(_line(made) + (f"\nwhat was there before is in {before}" if is_replacing else ""))


def _refuse_site(settings: Settings) -> None:
    if settings.site_path.exists():
        raise ConfigurationError(
            f"the hub of {settings.dir} is a member of a site, whose registry is in etcd: back that up with `etcdctl"
            " snapshot save`, or copy the registry with `messagehub site export`"
        )


@contextmanager
def _progress(database: Path) -> Iterator[Callable[[int, int], None]]:
    with progress(f"copying {database}", database.stat().st_size if database.exists() else None) as advance:
        left = [0]

        def tell(remaining: int, total: int) -> None:
            done = total - remaining
            advance(done - left[0])
            left[0] = done

        yield tell


def _line(made: "Backup") -> str:
    return (
        f"{made.path}: {size(made.size_bytes)}, {counted(made.schemas, 'schema version')},"
        f" {counted(made.channels, 'channel')}, {counted(made.topics, 'retained topic')}, revision {made.revision}"
    )
