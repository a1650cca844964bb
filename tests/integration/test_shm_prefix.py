"""`shm_prefix` names the rings too, with a broker and without."""

import os
from pathlib import Path

import pytest

from messagehub import MessageHub
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings
from tests.integration.harness import checked_broker


@pytest.mark.parametrize("source", ["broker", "files"])
def test_rings_have_the_prefix_that_the_setting_says(source: str, tmp_path: Path) -> None:
    domain = os.environ["MESSAGEHUB_DOMAIN"]
    with checked_broker(shm_prefix="lab_") as endpoint:
        at = {"endpoint": endpoint} if source == "broker" else {}
        with MessageHub(dir=tmp_path, shm_prefix="lab_", **at) as hub, hub.producer("sensor") as producer:
            ring = Path(f"/dev/shm/lab_sensor@{domain}")
            assert producer.source == source
            assert producer.shm_name == f"/{ring.name}"
            assert ring.exists()
            found = hub.discover("sensor")
            assert found is not None
            assert found.shm_name == producer.shm_name
            producer.write(b"x")
            with hub.consumer("sensor", start="oldest") as consumer:
                assert bytes(consumer.read(timeout=10.0)) == b"x"
            assert hub.register_producer("nominal", schema_hash="h").shm_name == "/lab_nominal"
    ring.unlink()


@pytest.mark.parametrize("prefix", ["", "../", "a/b", "@x", "1", "x" * 33, "a b"])
def test_prefix_that_is_no_part_of_a_file_name_is_refused(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="shm_prefix"):
        Settings.load(dir=tmp_path, shm_prefix=prefix)
