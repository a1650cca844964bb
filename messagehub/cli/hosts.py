"""`messagehub hosts`: the hosts of a site, and how far each of them is."""

from typing import TYPE_CHECKING

from messagehub.broker.site.site_problem import OLD_SECONDS
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_json, echo_table
from messagehub.cli.session import connected
from messagehub.display.values import shown
from messagehub.errors import HubError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from messagehub.hub import MessageHub
    from registry.records import SiteHost

ABSENT = ("left", "lost")
UNKNOWN = "unknown"
"""The health of all hosts once etcd has not answered for OLD_SECONDS."""


def hosts(
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """List the hosts of the site that the hub is a member of: who leads, who is lost and why, how far each copy is."""
    from registry import commands, replies

    with connected(endpoint, dir, timeout) as hub:
        found = hub.ask(commands.ListHosts())
    assert isinstance(found, replies.HostList)
    if as_json:
        echo_json(found)
        return
    if found.site is None:
        echo("this hub is a member of no site")
        return
    is_known = found.age_seconds < OLD_SECONDS
    rows = [
        (
            *(one.host, one.health if is_known else UNKNOWN, role(one) if is_known else None),
            *(one.revision, one.lag if is_known else None),
            *(one.endpoint or None, one.gateway or None, one.version or None),
        )
        for one in found.hosts
    ]
    echo(f"site {found.site}, seen from {found.host}: its copy was complete {found.age_seconds:.1f} s ago")
    echo_table(("HOST", "HEALTH", "ROLE", "REVISION", "LAG", "ENDPOINT", "GATEWAY", "VERSION"), rows)
    if not is_known:
        echo(
            f"{UNKNOWN}: etcd has not answered this hub for {found.age_seconds:.0f} s, so who lives and who leads is"
            " not known since then; `messagehub status` says why. --json has what was known last"
        )
        return
    for one in found.hosts:
        if one.reason:
            echo(f"{shown(one.host)} is {one.health}: {one.reason}")
    if any(one.health == "lost" for one in found.hosts):
        forget = f"messagehub site forget HOST --site {found.site} --etcd URL"
        echo(f"`{forget}` removes a host from the list that will not come back")


def absent_among(hub: "MessageHub", hosts: "Iterable[str | None]") -> dict[str, str]:
    """Return which of these hosts have left their site or are lost, each with that word; none where nobody can say."""
    from messagehub.shm.identity import host
    from registry import commands, replies

    if not hub.is_connected or not {name for name in hosts if name} - {host()}:
        return {}
    try:
        found = hub.ask(commands.ListHosts())
    except HubError:
        return {}
    assert isinstance(found, replies.HostList)
    return {one.host: one.health for one in found.hosts if one.health in ABSENT and one.host in hosts}


def labelled(host: str | None, absent: dict[str, str]) -> str | None:
    return f"{host} ({absent[host]})" if host in absent else host


def role(host: "SiteHost") -> str | None:
    if host.is_leader:
        return "leader"
    return "follower" if host.health not in ABSENT else None
