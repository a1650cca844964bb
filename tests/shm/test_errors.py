import pickle

import pytest

from messagehub.errors import HubError
from messagehub.shm import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.NothingThere("/dev/shm/x"),
        errors.RingFull("/dev/shm/x", 8, 1.5, "process 3 holds 8 slots", overwrites=False),
        errors.BlockOnOtherHost("/x", "there", "here"),
        errors.ReaderFilesGone("/x"),
        errors.PayloadLargerThanSlot(10, 5),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_a_hub_error_and_travels_between_processes_whole(error: errors.DataBlockError) -> None:
    """Spark carries it from a task to the driver."""
    carried = pickle.loads(pickle.dumps(error))
    assert isinstance(carried, HubError)
    assert type(carried) is type(error)
    assert (str(carried), carried.code, carried.message) == (str(error), error.code, error.message)
    assert vars(carried) == vars(error)
