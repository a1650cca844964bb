import pickle
import subprocess
import sys

import pytest

from messagehub import spark as hub_spark
from messagehub.errors import ConfigurationError
from messagehub.spark.errors import BadOption
from messagehub.spark.options import Options


def test_names_count_in_any_case_and_values_are_read_once() -> None:
    given = {"CHANNEL": "sales", "failondataloss": "False", "generation": "7", "keepSeconds": "1.5"}
    options = Options.parse(given)
    assert (options.channel, options.fail_on_data_loss, options.generation) == ("sales", False, 7)
    assert options.retention().max_age_seconds == 1.5
    assert pickle.loads(pickle.dumps(options)) == options


def test_what_spark_adds_itself_is_no_error_and_a_path_names_the_channel() -> None:
    assert Options.parse({"path": "sales", "checkpointLocation": "/tmp/x"}).channel == "sales"
    added = {"queryname": "clean", "provider": "messagehub", "owner": "me", "location": "file:/x", "path": "file:/x"}
    assert Options.parse({"channel": "sales", "option.channel": "sales", **added}).channel == "sales"
    assert Options.parse({"paths": '["sales"]'}).channel == "sales"


@pytest.mark.parametrize("name", ["provider", "owner", "location", "mergeSchema"])
def test_what_spark_adds_to_a_catalog_table_means_nothing_elsewhere(name: str) -> None:
    with pytest.raises(BadOption, match="there is no option"):
        Options.parse({"channel": "sales", name: "true"})


@pytest.mark.parametrize("paths", ["x", "5", "{}"])
def test_paths_that_are_no_list_are_refused(paths: str) -> None:
    with pytest.raises(BadOption, match="option paths is"):
        Options.parse({"paths": paths})


def test_several_paths_are_refused() -> None:
    with pytest.raises(BadOption, match="one channel, not 2"):
        Options.parse({"paths": '["a", "b"]'})


def test_a_typo_in_the_options_of_a_catalog_table_is_refused() -> None:
    with pytest.raises(BadOption, match="did you mean 'channel'"):
        Options.parse({"option.chanel": "sales"})


@pytest.mark.parametrize(
    ("given", "meant"),
    [("chanel", "channel"), ("failOnDataLos", "failOnDataLoss"), ("generations", "generation"), ("Dmain", "domain")],
)
def test_a_typo_is_refused_with_the_nearest_option(given: str, meant: str) -> None:
    with pytest.raises(BadOption, match=f"did you mean '{meant}'"):
        Options.parse({"channel": "sales", given: "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("generation", "0"),
        ("generation", "newest"),
        ("failOnDataLoss", "maybe"),
        ("maxRowsPerTrigger", "-1"),
        ("keepSeconds", "inf"),
        ("startingOffsets", "now"),
        ("channel", "no spaces"),
        ("transaction", "../up"),
    ],
)
def test_a_bad_value_names_its_option(name: str, value: str) -> None:
    with pytest.raises(BadOption, match=name):
        Options.parse({"channel": "sales", name: value})


def test_a_channel_is_needed() -> None:
    with pytest.raises(BadOption, match="channel"):
        Options.parse({"domain": "x"})


def test_what_is_no_frame_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="'sales' is not a DataFrame"):
        hub_spark.publish("sales", "df")  # type: ignore[arg-type]


def test_without_its_extra_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyspark'] = None; from messagehub.spark import publish"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert 'pip install "messagehub[spark]"' in ended.stderr.splitlines()[-1]
