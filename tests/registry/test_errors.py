"""Refusals are values: they survive pickling with all they say."""

import pickle

from registry.errors import ChannelNotFound, HubError


def test_refusal_survives_pickling_whatever_its_details_are_called() -> None:
    refusal = ChannelNotFound("nobody has it", channel="c")
    refusal.details |= {"message": "m", "self": 1}
    copy = pickle.loads(pickle.dumps(refusal))
    assert type(copy) is ChannelNotFound
    assert (str(copy), copy.message, copy.details) == ("nobody has it", "nobody has it", refusal.details)


def test_code_of_a_newer_broker_survives_pickling() -> None:
    error = HubError("m")
    error.code, error.retryable = "BRAND_NEW", True  # type: ignore[misc]  # of this instance only
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.retryable) == ("BRAND_NEW", True)
