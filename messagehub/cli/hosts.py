"""`messagehub hosts`: the hosts of a site, and how far each of them is."""

from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_json, echo_table
from messagehub.cli.session import connected
from messagehub.display.values import shown

ABSENT = ("left", "lost")


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
    rows = [
        (
            *(one.host, one.health, "leader" if one.is_leader else "follower" if one.health not in ABSENT else None),
            *(one.revision, one.lag),
            *(one.endpoint or None, one.gateway or None, one.version or None),
        )
        for one in found.hosts
    ]
    echo(f"site {found.site}, seen from {found.host}: its copy was complete {found.age_seconds:.1f} s ago")
    echo_table(("HOST", "HEALTH", "ROLE", "REVISION", "LAG", "ENDPOINT", "GATEWAY", "VERSION"), rows)
    for one in found.hosts:
        if one.reason:
            echo(f"{shown(one.host)} is {one.health}: {one.reason}")
    if any(one.health == "lost" for one in found.hosts):
        echo("`messagehub site forget HOST` removes a host from the list that will not come back")
