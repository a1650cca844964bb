"""The name of a host in etcd: taken once, also when etcd's answer is lost on the way."""

import uuid
from typing import Any

import pytest

from messagehub.cluster.hosts import HostEntry, SiteHosts
from messagehub.errors import ConfigurationError
from messagehub.store.etcd import messages
from messagehub.store.etcd.access import EtcdAccess
from messagehub.store.etcd.client import EtcdClient
from tests.etcd_server import EtcdMember


class AskingTwice(EtcdClient):
    """Sends its first transaction twice, as after an answer that was lost."""

    has_repeated = False

    def ask(self, method: Any, request: Any) -> Any:
        answer = super().ask(method, request)
        if method is messages.TXN and not self.has_repeated:
            self.has_repeated = True
            return super().ask(method, request)
        return answer


def entry(owner: str) -> HostEntry:
    return HostEntry(host="alpha", owner=owner, endpoint="tcp://127.0.0.1:1", key="k")


def test_a_name_whose_answer_was_lost_is_not_taken_for_that_of_another_host(member: EtcdMember) -> None:
    site = uuid.uuid4().hex
    client = AskingTwice(EtcdAccess(endpoints=(member.url,)), request_seconds=10.0)
    try:
        hosts = SiteHosts(client, site, entry("one"), ttl_seconds=10)
        hosts.enter()
        assert client.has_repeated
        assert hosts.seen["alpha"].owner == "one"
        with pytest.raises(ConfigurationError, match="has a host 'alpha' already"):
            SiteHosts(client, site, entry("two"), ttl_seconds=10).enter()
        SiteHosts(client, site, entry("one"), ttl_seconds=10).enter()  # the next hub of the same directory
    finally:
        client.close()
