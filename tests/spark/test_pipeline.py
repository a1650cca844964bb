"""`examples/pipeline` with `spark-pipelines run`, as its README says."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagehub import MessageHub
from tests.integration.harness import ROOT, Served
from tests.spark.sessions import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    copy = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "pipeline", copy, ignore=shutil.ignore_patterns("__pycache__"))
    specification = copy / "spark-pipeline.yml"
    text = specification.read_text()
    assert "file:///tmp/messagehub-pipeline" in text
    specification.write_text(text.replace("file:///tmp/messagehub-pipeline", f"file://{tmp_path}/storage"))
    return copy


@pytest.fixture
def hub(domain: str, tmp_path: Path) -> Iterator[MessageHub]:
    server = Served(tmp_path / "hub", domain=domain)
    with MessageHub(dir=server.dir, domain=domain) as opened:
        yield opened
    server.close()


def test_a_run_hands_the_cleaned_readings_to_everybody_and_the_next_goes_on(
    project: Path, hub: MessageHub, domain: str
) -> None:
    variables = os.environ | environment() | {"MESSAGEHUB_DIR": str(hub.settings.dir), "MESSAGEHUB_DOMAIN": domain}
    counts = []
    for _ in range(2):  # another process writes each time, and the ring of the first one lingers
        with subprocess.Popen(
            [sys.executable, "acquire.py", "300"], cwd=project, env=variables, stdout=subprocess.PIPE, text=True
        ) as sensors:
            try:
                assert sensors.stdout is not None
                assert sensors.stdout.readline() == "writing\n"
                program = Path(sys.executable).parent / "spark-pipelines"
                done = subprocess.run(
                    [program, "run", "--conf", "spark.sql.catalogImplementation=hive"],
                    cwd=project,
                    env=variables,
                    capture_output=True,
                    text=True,
                    timeout=250,
                    check=False,
                )
                assert done.returncode == 0, done.stdout + done.stderr
            finally:
                sensors.terminate()
        with hub.consumer("pipeline.cleaned") as consumer:
            table = consumer.latest()
        assert set(table["sensor"].to_pylist()) == {"hall", "roof"}
        counts.append(table.num_rows)
    assert 0 < counts[0] < counts[1]
    found = hub.discover("pipeline.cleaned")
    assert found is not None
    assert (found.source, found.schema, found.schema_version) == ("broker", "verified", "1")
    assert found.table is not None
    assert found.table.application
