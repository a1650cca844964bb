"""`messagehub site`: move the registry of a hub on its own into a site or out again, and what ends with a site."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from messagehub.cli.failures import HubCommand
from messagehub.cli.options import Dir, Json
from messagehub.cli.output import echo, echo_json
from messagehub.display.values import counted
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings

if TYPE_CHECKING:
    from messagehub.store import Saved

app = typer.Typer(
    name="site",
    help="Move the registry of a hub on its own into a site of several hubs or out again; leave a site, forget hosts.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
SiteName = Annotated[str | None, typer.Option("--site", metavar="NAME", help="The site.")]
Etcd = Annotated[
    str | None, typer.Option("--etcd", metavar="URL[,URL...]", help="The members of etcd that hold its registry.")
]
EtcdUser = Annotated[str | None, typer.Option("--etcd-user", metavar="NAME", help="The user of etcd.")]
EtcdPasswordFile = Annotated[
    str | None, typer.Option("--etcd-password-file", metavar="FILE", help="The password of etcd's user.")
]
EtcdCa = Annotated[
    str | None, typer.Option("--etcd-ca", metavar="FILE", help="Certificates that those of etcd are signed by.")
]
EtcdCert = Annotated[str | None, typer.Option("--etcd-cert", metavar="FILE", help="A certificate to show to etcd.")]
EtcdKey = Annotated[str | None, typer.Option("--etcd-key", metavar="FILE", help="Its private key.")]


@app.command(name="import", cls=HubCommand)
def import_registry(
    *,
    site: SiteName = None,
    etcd: Etcd = None,
    etcd_user: EtcdUser = None,
    etcd_password_file: EtcdPasswordFile = None,
    etcd_ca: EtcdCa = None,
    etcd_cert: EtcdCert = None,
    etcd_key: EtcdKey = None,
    without_topics: Annotated[
        bool, typer.Option("--without-topics", help="Leave retained topics out: their messages are not moved.")
    ] = False,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Copy the registry of a stopped hub into a new site: ids, versions and revisions stay.

    The directory stays as it is. Members of the site use directories of their own.
    """
    settings = _settings(
        *(dir, site, etcd, etcd_user, etcd_password_file, etcd_ca, etcd_cert, etcd_key),
    )
    from messagehub.cluster.transfer import import_into_site

    saved = import_into_site(settings, without_topics=without_topics)
    left = sorted(found.topic.name for found in saved.topics)
    _tell(saved, f"into site {settings.site}", left, as_json=as_json)


@app.command(name="export", cls=HubCommand)
def export_registry(
    *,
    site: SiteName = None,
    etcd: Etcd = None,
    etcd_user: EtcdUser = None,
    etcd_password_file: EtcdPasswordFile = None,
    etcd_ca: EtcdCa = None,
    etcd_cert: EtcdCert = None,
    etcd_key: EtcdKey = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Copy the registry of a site into a new directory, for a hub on its own. The site stays as it is.

    What its hubs write meanwhile, after the copy was begun, is not in it.
    """
    settings = _settings(
        *(dir, site, etcd, etcd_user, etcd_password_file, etcd_ca, etcd_cert, etcd_key),
    )
    from messagehub.cluster.transfer import export_from_site

    saved = export_from_site(settings)
    left = sorted(found.topic.name for found in saved.topics)
    _tell(saved, f"into {settings.database_path}", left, as_json=as_json)


@app.command(name="leave", cls=HubCommand)
def leave(*, dir: Dir = None, as_json: Json = False) -> None:
    """Let the directory of a stopped hub be that of another site, or of a hub on its own.

    Nothing changes in the site: its registry stays, and it lists the host as lost until somebody forgets it there.
    """
    from messagehub.cluster.leaving import leave_site

    settings = Settings.load(dir=dir, site="", etcd="")
    site = leave_site(settings)
    if as_json:
        echo_json({"left": site})
        return
    echo(f"{settings.dir} belongs to site {site} no more: take site and etcd out of its messagehub.toml too")


@app.command(name="forget", cls=HubCommand)
def forget(
    host: Annotated[str, typer.Argument(metavar="HOST", help="The name of the host.")],
    *,
    site: SiteName = None,
    etcd: Etcd = None,
    etcd_user: EtcdUser = None,
    etcd_password_file: EtcdPasswordFile = None,
    etcd_ca: EtcdCa = None,
    etcd_cert: EtcdCert = None,
    etcd_key: EtcdKey = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Remove a host from the list of a site's hosts that will not come back.

    It is refused while its hub lives, and while the registry has tables, retained topics or members of the host: what
    these are is said, and how to remove them. A forgotten host that comes back is a member again.
    """
    settings = _settings(
        *(dir, site, etcd, etcd_user, etcd_password_file, etcd_ca, etcd_cert, etcd_key),
    )
    from messagehub.cluster.leaving import forget_host

    forget_host(settings, host)
    if as_json:
        echo_json({"site": settings.site, "forgotten": host})
        return
    echo(f"site {settings.site} has no host {host} any more")


def _settings(
    dir: Any,
    site: str | None,
    etcd: str | None,
    user: str | None,
    password_file: str | None,
    ca: str | None,
    cert: str | None,
    key: str | None,
) -> Settings:
    settings = Settings.load(
        dir=dir,
        site=site,
        etcd=etcd,
        etcd_user=user,
        etcd_password_file=password_file,
        etcd_ca=ca,
        etcd_cert=cert,
        etcd_key=key,
    )
    if not settings.site:
        raise ConfigurationError("no site is named: say --site NAME and --etcd URL")
    return settings


def _tell(saved: "Saved", where: str, topics_left: list[str], *, as_json: bool) -> None:
    said = {
        "revision": saved.revision,
        "schemas": len(saved.schemas),
        "channels": len(saved.channels),
        "last_schema_id": saved.last_schema_id,
        "topics_left": topics_left,
    }
    if as_json:
        echo_json(said)
        return
    count = f"{counted(len(saved.schemas), 'schema version')}, {counted(len(saved.channels), 'channel')}"
    echo(f"copied {where}: {count}, revision {saved.revision}")
    if topics_left:
        names = ", ".join(topics_left[:10])
        echo(f"not copied: {counted(len(topics_left), 'retained topic')} with their messages ({names})")
