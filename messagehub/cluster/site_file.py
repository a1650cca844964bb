"""`site.json` in a hub's directory: which site the hub is a member of, and the id that its name in the site belongs to.

A hub that was a member of a site must not start as another one in the same directory: its registry would be another.
"""

import os

import msgspec

from messagehub.errors import ConfigurationError
from messagehub.security.private_files import private_directory, write_private
from messagehub.settings import Settings
from registry.decoding import decodable


@decodable
class SiteFile(msgspec.Struct, kw_only=True, frozen=True):
    site: str
    owner: str
    """The id of this directory."""
    site_id: str = ""
    """The id of the site; empty while nothing was written to it."""


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


def enter_directory(settings: Settings) -> SiteFile:
    """Return what the directory says of the site, made if it says nothing; refuse one of something else."""
    present = read_site_file(settings)
    if present is not None:
        if present.site != settings.site and not present.site_id:
            present = msgspec.structs.replace(present, site=settings.site)  # a start that failed had named another one
            write_site_file(settings, present)
        if present.site != settings.site:
            raise ConfigurationError(
                f"the hub of {settings.dir} is a member of site {present.site!r}, not of {settings.site!r}: name that"
                " site, or another directory"
            )
        return present
    if settings.database_path.exists():
        raise ConfigurationError(
            f"{settings.dir} holds the registry of a hub on its own, which a member of a site would not use: move it"
            f" with `messagehub site import`, or name another directory"
        )
    private_directory(settings.dir)
    content = SiteFile(site=settings.site, owner=os.urandom(8).hex())
    write_site_file(settings, content)
    return content
