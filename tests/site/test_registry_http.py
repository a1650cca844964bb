"""The registry's HTTP API at a hub that follows: the tests of a hub on its own, run against it."""

from collections.abc import Iterator

import pytest

from tests.admin import test_registry_api, test_registry_details, test_registry_parameters
from tests.admin.conftest import Web
from tests.etcd_server import etcd
from tests.integration.harness import eventually
from tests.site.hosts import await_known, site

_LEFT_OUT = {"test_a_broker_that_does_not_answer_has_its_code"}
"""Uses a second hub, of its own, which it pauses."""

for _module in (test_registry_api, test_registry_details, test_registry_parameters):
    globals().update(
        {name: test for name, test in vars(_module).items() if name.startswith("test_") and name not in _LEFT_OUT}
    )


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """A hub with HTTP that follows another one, instead of the hub on its own that these tests are written for."""
    directory = tmp_path_factory.mktemp("follower")
    with etcd() as (member,), site(directory, member.url, "leader") as hosts:
        arguments = ("--site", hosts.name, "--etcd", member.url, "--site-endpoint", "tcp://127.0.0.1:0")
        running = Web(directory / "follower", *arguments, environment={"MESSAGEHUB_HOST": "follower"})
        await_known(hosts["leader"], "follower")
        eventually(lambda: any(each["is_leader"] for each in running.ask("GET", "/api/v1/hosts").json()["hosts"]))
        yield running
        assert running.ask("GET", "/api/v1/hosts").json()["role"] == "follower"
        assert "messagehub_forwarded_commands_total" in running.ask("GET", "/metrics").text
        running.close()
