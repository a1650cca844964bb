"""What can be wrong with etcd, in words that say what to do.

StoreError                 messagehub/errors.py
├── EtcdUnavailable        no member answered in time, or the cluster has no quorum
├── EtcdFull               the cluster takes no writes, because its database is as large as it may be (NOSPACE)
├── EtcdRefused            user, password, certificate or permissions are wrong
├── NewerRecords           a newer MessageHub has written records that this one does not know
└── NotLeader              another hub leads the site now, or none does: this one must not write
"""

from typing import Any

from messagehub.errors import StoreError


class EtcdUnavailable(StoreError):
    has_answered = False


class EtcdFull(StoreError):
    pass


class EtcdRefused(StoreError):
    pass


class NewerRecords(StoreError):
    pass


class NotLeader(StoreError):
    has_answered = False
    """An earlier request may have been carried out, and nothing is to be gained from loading here: a hub that does not
    lead follows another one."""


_ADVICE: list[tuple[str, type[StoreError], str]] = [
    (
        "database space exceeded",
        EtcdFull,
        "etcd's database is full (NOSPACE): compact and defragment it, or raise --quota-backend-bytes, then"
        " `etcdctl alarm disarm`",
    ),
    ("authentication failed", EtcdRefused, "etcd refuses the user or the password"),
    ("user name is empty", EtcdRefused, "etcd asks for a user and a password, and none is given"),
    ("user name not found", EtcdRefused, "etcd does not know the user"),
    (
        "authentication is not enabled",
        EtcdRefused,
        "a user is given, but this etcd asks for none: enable authentication there, or give no user",
    ),
    (
        "permission denied",
        EtcdRefused,
        "etcd's user may not read and write the keys of the site: `etcdctl role grant-permission ROLE readwrite"
        " --prefix=true /messagehub/SITE/`",
    ),
    (
        "request is too large",
        StoreError,
        "etcd refuses a record that is larger than it takes (1.5 MiB unless --max-request-bytes says more)",
    ),
    ("requested lease not found", NotLeader, "the lease of this hub's leadership has run out"),
    ("too many operations", StoreError, "etcd takes fewer operations in a transaction than by default (128)"),
]


def of_reply(said: str, *, where: str) -> StoreError | None:
    """Return the error for a text of etcd's; None for one that another member may not say."""
    for part, kind, advice in _ADVICE:
        if part in said:
            return kind(f"{advice} ({where}: {said})")
    return None


def unavailable(seen: dict[str, str], **details: Any) -> EtcdUnavailable:
    """Return the error for a request that no member answered; `seen` is what each of them did, by address."""
    tried = "; ".join(f"{url}: {what}" for url, what in seen.items())
    check = "check --etcd, whether it is http or https, and that etcd runs there"
    return EtcdUnavailable(f"no member of etcd answers, or they have no quorum: {check} ({tried})", **details)
