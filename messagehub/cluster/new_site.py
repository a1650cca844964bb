"""Whether a site is there already, and which other sites are in the same etcd.

Rule: where etcd has other sites, a name that it does not have may be a typing mistake, so a new site has to be asked
for. Where it has none, the first host makes its site without being asked.
"""

from typing import NamedTuple

from messagehub.errors import ConfigurationError
from messagehub.store.etcd import messages
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.errors import EtcdRefused
from messagehub.store.etcd.head import head_key
from messagehub.store.etcd.leadership import SITES, prefix_of

MOST_SITES = 20
NEW_SITE = (
    "site %s is new: nobody was in it before, and its registry is empty; %s. If the name is a typing mistake, stop this"
    " hub and start it with the right one: %s is bound to a site only once something is registered there"
)


class OtherSites(NamedTuple):
    """The sites of an etcd but for one, by name: the first `MOST_SITES`."""

    names: list[str]
    has_more: bool = False
    is_known: bool = True
    """False: etcd's user may not look beyond its own site."""

    def text(self) -> str:
        if not self.is_known:
            return "which other sites are in this etcd is not known, since its user may not read them"
        if not self.names:
            return "no other site is in this etcd"
        more = " and more" if self.has_more else ""
        return f"this etcd has {', '.join(map(repr, self.names))}{more}"


def other_sites(client: EtcdClient, site: str) -> OtherSites:
    """Return the other sites. Each takes one request, which reads one key and no value."""
    found: list[str] = []
    start, end = SITES, messages.end_of(SITES)
    while True:
        asked = messages.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)
        try:
            keys = client.ask(messages.RANGE, asked).kvs
        except EtcdRefused:
            return OtherSites([], is_known=False)
        if not keys:
            return OtherSites(found)
        name, _, _ = keys[0].key[len(SITES) :].decode(errors="replace").partition("/")
        if name != site:
            if len(found) == MOST_SITES:
                return OtherSites(found, has_more=True)
            found.append(name)
        start = messages.end_of(SITES + keys[0].key[len(SITES) :].partition(b"/")[0] + b"/")


def check_new(client: EtcdClient, site: str, *, is_asked_for: bool) -> OtherSites | None:
    """Return the other sites if this one is new, None if it is there; refuse a new one that may be a mistake."""
    hosts = prefix_of(site) + b"hosts/"
    for asked in (
        messages.RangeRequest(key=head_key(site)),
        messages.RangeRequest(key=hosts, range_end=messages.end_of(hosts), limit=1),
    ):
        if client.ask(messages.RANGE, asked).kvs:
            return None
    others = other_sites(client, site)
    if others.names and not is_asked_for:
        raise ConfigurationError(
            f"there is no site {site!r}: {others.text()}. Name the site that is meant or, to make a new one, start its"
            " first host with --new-site"
        )
    return others
