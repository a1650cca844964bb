"""Spark Connect: the client's process has no JVM, the source works as ever."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from messagehub import MessageHub
from tests.spark.acquisition import SCHEMA, batch
from tests.spark.messages import DONE, prepare
from tests.spark.sessions import ROOT, environment


@pytest.mark.slow
@pytest.mark.timeout(400, func_only=True)
@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="Spark Connect needs grpcio")
def test_batches_and_streams_of_channels_and_topics_work_over_spark_connect(
    channel_options: dict[str, str], hub: MessageHub, tmp_path: Path
) -> None:
    directory, domain = channel_options["dir"], channel_options["domain"]
    prepare(hub)
    with hub.producer("raw", schema=SCHEMA) as producer:
        producer.write(batch(0))
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.connect_job", str(tmp_path), directory, domain],
            cwd=ROOT,
            env=os.environ | environment(),
            capture_output=True,
            text=True,
            timeout=380,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "published": 100,
        "back": 100,
        "streamed": 10,
        "messages": DONE,
    }
