"""What a snapshot of etcd does to one site of several in the same etcd: its records are as they were before."""

import base64

from messagehub.store.etcd.leadership import prefix_of
from messagehub.store.etcd.messages import end_of
from tests.etcd_server import EtcdMember

Keys = dict[str, str]


def copied(member: EtcdMember, site: str) -> Keys:
    """Return the keys and values of a site that no lease ends, in base64."""
    found = member.ask("/v3/kv/range", _all_of(site))
    return {each["key"]: each["value"] for each in found.get("kvs", ()) if not int(each.get("lease", 0))}


def restored(member: EtcdMember, site: str, before: Keys) -> None:
    """Have the site as it was. Its hubs do not run."""
    member.ask("/v3/kv/deleterange", _all_of(site))
    for key, value in before.items():
        member.ask("/v3/kv/put", {"key": key, "value": value})


def _all_of(site: str) -> dict[str, str]:
    prefix = prefix_of(site)
    return {"key": _encoded(prefix), "range_end": _encoded(end_of(prefix))}


def _encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()
