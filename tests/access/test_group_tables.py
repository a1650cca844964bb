"""Tables of a shared hub: who may publish and drop them, through the broker and past it."""

import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from messagehub import MessageHub
from messagehub.errors import Forbidden
from tests.access.test_group_blocks import ALICE, GID, TABLE, group_hub, person
from tests.integration.harness import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="other users take root")


def test_a_table_takes_the_right_to_produce_also_past_the_broker(tmp_path: Path) -> None:
    def publish(link: Connection) -> None:
        with MessageHub(dir=directory) as hub:
            hub.publish_table("a.x", TABLE)
            for change in (lambda: hub.publish_table("b.x", TABLE), lambda: hub.drop_table("b.x")):
                try:
                    change()
                except Forbidden as error:
                    link.send(error.message)
        with MessageHub(dir=directory, endpoint=f"ipc://{tmp_path}/none.sock") as hub:
            hub.publish_table("b.x", TABLE)
            link.send("published")

    with (
        group_hub(tmp_path, group_roles="consume produce:a.*") as (directory, _),
        MessageHub(dir=directory) as hub,
        person(ALICE, publish, GID) as alice,
    ):
        assert "TABLE_CHECK takes the right produce" in alice.says()
        assert "TABLE_DROP takes the right produce" in alice.says()
        found = hub.discover("a.x")
        assert found is not None
        assert (found.schema, found.table is not None) == ("verified", True)
        assert alice.says() == "published"
        shown = eventually(lambda: told if (told := hub.describe("b.x")) and told.channel.conflict else None)
        assert shown.channel.table is None
        assert "produce" in shown.channel.conflict
