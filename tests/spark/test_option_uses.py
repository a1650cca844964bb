"""An option that has no effect on what is done is refused."""

import pytest

from messagehub.spark.errors import BadOption
from messagehub.spark.options import Options, Use

VALUES = {
    "generation": "7",
    "maxPartitionBytes": "5",
    "expectedSchema": "h",
    "failOnDataLoss": "true",
    "startingOffsets": "latest",
    "maxRowsPerTrigger": "5",
    "maxBytesPerTrigger": "5",
    "keepGenerations": "2",
    "keepBytes": "5",
    "keepSeconds": "5",
    "transaction": "t",
}
TAKEN: dict[Use, set[str]] = {
    "read": {"generation", "maxPartitionBytes", "expectedSchema", "failOnDataLoss"},
    "readStream": {
        "expectedSchema",
        "failOnDataLoss",
        "startingOffsets",
        "maxRowsPerTrigger",
        "maxBytesPerTrigger",
    },
    "write": {"keepGenerations", "keepBytes", "keepSeconds", "transaction"},
    "writeStream": {"keepGenerations", "keepBytes", "keepSeconds"},
}


@pytest.mark.parametrize("use", TAKEN)
@pytest.mark.parametrize("name", VALUES)
def test_option_is_taken_where_it_has_an_effect_and_nowhere_else(use: Use, name: str) -> None:
    given = {"channel": "sales", "domain": "d", name: VALUES[name]}
    if name in TAKEN[use]:
        Options.parse(given, use)
    else:
        with pytest.raises(BadOption, match=f"option {name} is for .*; this is a {use}"):
            Options.parse(given, use)
    Options.parse(given)


def test_one_of_two_limits_of_a_micro_batch_is_given() -> None:
    with pytest.raises(BadOption, match="give one of"):
        Options.parse({"channel": "sales", "maxRowsPerTrigger": "5", "maxBytesPerTrigger": "5"})
