"""`site.json` in a hub's directory: which site the hub is a member of, and the id that its name in the site belongs to.

Rule 1: a hub that was a member of a site must not start as another one in the same directory: its registry would be
another.
Rule 2: the file is written once the hub is a member, and binds the directory (`site_id`) once something is registered
in the site. Before that nothing is lost with another name, and a typing mistake must not be kept.
"""

import os

import msgspec

from messagehub.errors import ConfigurationError
from messagehub.security.private_files import write_private
from messagehub.settings import Settings
from registry.decoding import decodable


@decodable
class SiteFile(msgspec.Struct, kw_only=True, frozen=True):
    site: str
    owner: str
    """The id of this directory."""
    site_id: str = ""
    """The id of the site; empty while nothing was registered in it."""


def read_site_file(settings: Settings) -> SiteFile | None:
    path = settings.site_path
    try:
        return msgspec.json.decode(path.read_bytes(), type=SiteFile)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}. Restore it, or use a new directory") from None


def write_site_file(settings: Settings, content: SiteFile) -> None:
    write_private(settings.site_path, msgspec.json.encode(content), replace=True)


def leave_unbound(settings: Settings) -> None:
    """Have a directory whose hub was a member of no site but an empty one be that of a hub on its own.

    The caller holds the lock of the directory.
    """
    refuse_bound(settings)
    settings.site_path.unlink(missing_ok=True)


def refuse_bound(settings: Settings) -> None:
    """Refuse a directory that is bound to a site, for a hub on its own."""
    present = read_site_file(settings)
    if present is not None and present.site_id:
        raise ConfigurationError(
            f"the hub of {settings.dir} is a member of a site, {present.site!r}, whose registry is in etcd: start it"
            f" with --site and --etcd, or name another directory. `messagehub site leave` lets it leave the site"
        )


def site_file_for(settings: Settings) -> SiteFile:
    """Return what the directory is to say of the site, written by nobody yet; refuse one of something else."""
    present = read_site_file(settings)
    if present is not None:
        if present.site != settings.site and present.site_id:
            raise ConfigurationError(
                f"the hub of {settings.dir} is a member of site {present.site!r}, not of {settings.site!r}: name that"
                " site, or another directory. `messagehub site leave` lets it leave that site"
            )
        return msgspec.structs.replace(present, site=settings.site)
    if settings.database_path.exists():
        raise ConfigurationError(
            f"{settings.dir} holds the registry of a hub on its own, which a member of a site would not use. If site"
            f" {settings.site!r} has no registry yet, copy it there with `messagehub site import`, and name another"
            " directory here. If the site has one, the two cannot become one: name another directory, or move"
            f" {settings.database_path.name}* out of this one if the site goes without what is in it"
        )
    return SiteFile(site=settings.site, owner=os.urandom(8).hex())
