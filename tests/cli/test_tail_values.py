"""`messagehub tail` shows arrays of any shape."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from messagehub.cli import app
from tests.integration.block_processes import place_in

POINT = np.dtype([("x", "<f8"), ("v", "<i4", (2,))])


@pytest.mark.parametrize(
    ("array", "rows"),
    [
        (np.arange(4.0).reshape(2, 2), [{"value": [0.0, 1.0]}, {"value": [2.0, 3.0]}]),
        (np.array(7.5), [{"value": 7.5}]),
        (np.zeros((1, 2), POINT), [{"x": 0.0, "v": [0, 0]}, {"x": 0.0, "v": [0, 0]}]),
    ],
    ids=["rows", "scalar", "records"],
)
def test_an_array_is_shown_whatever_its_shape(tmp_path: Path, array: np.ndarray, rows: list[object]) -> None:
    with place_in(tmp_path / "hub", f"v{os.getpid()}") as place:
        with place.hub().producer("arrays", schema=array.dtype) as producer:
            producer.write(array)
        arguments = ["tail", "arrays", "--start", "oldest", "--no-follow", "--json", "--dir", str(place.dir)]
        shown = CliRunner().invoke(app, [*arguments, "--domain", place.domain])
        assert shown.exit_code == 0, shown.output
        assert [json.loads(line) for line in shown.stdout.splitlines()] == rows
