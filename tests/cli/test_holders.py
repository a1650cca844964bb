"""`discover`, `status` and `doctor` show who holds a producer back."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from messagehub import MessageHub
from messagehub.errors import RingFull
from tests import preloaded
from tests.cli.program import Program
from tests.integration.harness import eventually


def test_a_reader_that_holds_every_slot_is_named_everywhere(hub: Program) -> None:
    domain = hub.environment["MESSAGEHUB_DOMAIN"]
    with (
        MessageHub(dir=hub.dir, domain=domain) as client,
        client.producer("held", schema=np.dtype("<i8"), capacity=4) as producer,
        client.consumer("held", start="oldest", copy="never") as consumer,
    ):
        assert hub.call_json("status")["held_back"] == []
        kept = []
        for n in range(4):
            producer.write(np.array([n]))
            kept.append(consumer.read(timeout=30.0))
        producer.write(np.array([4]))
        assert producer.skipped == 1
        (reader,) = hub.call_json("discover", "held")["readers"]
        assert reader == {
            "shm_name": producer.shm_name,
            "pid": os.getpid(),
            "group": None,
            "members": None,
            "slots_held": 4,
            "items_unread": 1,  # the one that was skipped
        }
        shown = hub.call("discover", "held").stdout
        assert f"held back: process {os.getpid()} holds 4 slots" in shown
        assert "skipped: 1 item," in shown
        (held_back,) = hub.call_json("status")["held_back"]
        assert (held_back["channel"], held_back["pid"], held_back["skipped"]) == ("held", os.getpid(), 1)
        assert f"process {os.getpid()} holds 4 slots" in held_back["by"]
        assert "the producer of channel held" in hub.call("status").stdout
        found = hub.call_json("doctor", code=1)["findings"]
        assert any(f"process {os.getpid()} holds 4 slots" in one["message"] for one in found)
        kept.clear()
        assert hub.call_json("status")["held_back"] == []
        assert "held back" not in hub.call("discover", "held").stdout


def test_a_group_that_nobody_is_in_is_named_and_can_be_forgotten(hub: Program) -> None:
    domain = hub.environment["MESSAGEHUB_DOMAIN"]
    with (
        MessageHub(dir=hub.dir, domain=domain) as client,
        client.producer("left", schema=np.dtype("<i8"), capacity=4, when_full="block") as producer,
    ):
        with client.consumer("left", group="night", start="oldest") as consumer:
            for n in range(4):
                producer.write(np.array([n]))
            assert consumer.read(timeout=30.0) is not None
            (reader,) = [one for one in hub.call_json("discover", "left")["readers"] if one["group"]]
            assert (reader["group"], reader["members"]) == ("night", 1)
            said = hub.call_json("channels", "delete-group", "left", "night", "-y", code=1)["error"]
            assert said["code"] == "GROUP_IN_USE"
            assert "a consumer reads in group 'night': close it first" in said["message"]
        producer.write(np.array([4]))  # the one that was read makes room
        with pytest.raises(RingFull) as full:
            producer.write(np.array([5]), timeout=0.1)
        command = "messagehub channels delete-group left night"
        assert "group 'night', which nobody is in, has not read" in full.value.message
        assert f"(to forget it: {command})" in full.value.message

        def forget_later() -> None:
            eventually(lambda: hub.call_json("status")["held_back"])
            assert command in hub.call("status").stdout
            assert command in hub.call("doctor").stdout
            assert "Forget what group" in hub.call("channels", "delete-group", "left", "night", code=1).stderr
            shown = hub.run("channels", "delete-group", "left", "night", "--yes")
            assert shown.stdout == "group night of channel left is forgotten\n"

        with ThreadPoolExecutor(1) as pool:
            forgetting = pool.submit(forget_later)
            producer.write(np.array([5]), timeout=60.0)
            forgetting.result()
        assert [one for one in hub.call_json("discover", "left")["readers"] if one["group"]] == []
        said = hub.call_json("channels", "delete-group", "left", "night", "-y", code=1)["error"]
        assert said["code"] == "GROUP_MISSING"
        with client.consumer("left", group="night", start="oldest") as consumer:
            assert consumer.read(timeout=30.0) is not None


def test_a_channel_without_readers_has_none(hub: Program) -> None:
    domain = hub.environment["MESSAGEHUB_DOMAIN"]
    with MessageHub(dir=hub.dir, domain=domain) as client, client.producer("alone"):
        assert hub.call_json("discover", "alone")["readers"] == []


KEEPER = """
import sys
from messagehub import MessageHub

with MessageHub() as hub, hub.consumer("shared", start="oldest") as consumer:
    kept = [consumer.read(timeout=30.0) for _ in range(2)]
    print("holds", flush=True)
    sys.stdin.read()
    kept.clear()
"""


def test_slots_that_several_readers_hold_are_counted_once(hub: Program) -> None:
    domain = hub.environment["MESSAGEHUB_DOMAIN"]
    with (
        MessageHub(dir=hub.dir, domain=domain) as client,
        client.producer("shared", schema=np.dtype("<i8"), capacity=4) as producer,
        ExitStack() as keepers,
    ):
        for n in range(3):
            producer.write(np.array([n]))
        for _ in range(2):
            keeper = keepers.enter_context(
                preloaded.Popen(
                    [sys.executable, "-c", KEEPER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"MESSAGEHUB_DIR": str(hub.dir), "MESSAGEHUB_DOMAIN": domain},
                )
            )
            assert keeper.stdout is not None
            assert keeper.stdout.readline() == "holds\n"
        (block,) = [one for one in hub.call_json("blocks") if one["channel"] == "shared"]
        assert (block["readers"], block["held"], block["slots"]) == (2, 2, 4)
        assert "readers hold all" not in hub.call("doctor").stdout
        assert "held back" not in hub.call("discover", "shared").stdout
        for n in range(10):
            producer.write(np.array([n]))
        assert producer.skipped == 0


def test_discover_shows_the_lag_of_every_reader_and_the_metadata_of_producers(hub: Program) -> None:
    domain = hub.environment["MESSAGEHUB_DOMAIN"]
    with (
        MessageHub(dir=hub.dir, domain=domain) as client,
        client.producer("lab", schema=np.dtype("<i8"), capacity=4, metadata={"unit": "mV"}) as producer,
        client.consumer("lab", start="oldest") as consumer,
    ):
        for n in range(10):
            producer.write(np.array([n]))
            if n == 2:
                assert consumer.read(timeout=30.0) == 0
        (reader,) = hub.call_json("discover", "lab")["readers"]
        assert reader["items_unread"] == consumer.lag == 9
        shown = hub.call("discover", "lab").stdout
        assert "mV" in shown.partition("PRODUCER")[2]
