"""The one grammar of names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidName
from registry.names import check_channel, check_role, check_shm, logical, to_role

GOOD = ["a", "sensor_data", "a.b.c", "A1-b_2.C", "x" * 64, ".".join(["x" * 64] * 3), "hubble", "system.x", "a.hub"]
BAD = ["", ".", "a.", ".a", "a..b", "1a", "_a", "-a", "a b", "a/b", "é", "a\n", "a\0", "x" * 65, "a.1", "\uff41", "a|b"]


@pytest.mark.parametrize("name", GOOD)
def test_good_names_are_taken_as_they_are(name: str) -> None:
    assert check_channel(name) == check_role("producer", name) == name


@pytest.mark.parametrize("name", [*BAD, ".".join(["x" * 64] * 4)])
def test_bad_names_are_refused_with_the_rule(name: str) -> None:
    for check in (check_channel, lambda role: check_role("consumer", role)):
        with pytest.raises(InvalidName) as caught:
            check(name)
        assert "a-z0-9_-" in caught.value.details["rule"].lower()


@pytest.mark.parametrize("name", ["hub", "sys", "hub.x", "sys.a.b"])
def test_our_own_first_components_are_reserved_for_channels_only(name: str) -> None:
    with pytest.raises(InvalidName, match="reserved"):
        check_channel(name)
    assert check_role("producer", name) == name


def test_long_bad_name_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidName) as caught:
        check_channel("x" * 1000)
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ("x | pid:1-0", "x"),
        ("a.b | pid:4194304-12", "a.b"),
        ("x", "x"),
        ("x | pid:1", "x | pid:1"),
        ("x | pid:1-0 ", "x | pid:1-0 "),
        ("x | pid:1-0\n", "x | pid:1-0\n"),
        ("x | pid:\u0661-0", "x | pid:\u0661-0"),
        ("x | pid:1-0 | pid:2-0", "x | pid:1-0"),
    ],
)
def test_display_marker_is_dropped_only_when_whole(shown: str, name: str) -> None:
    assert logical(shown) == name


@pytest.mark.parametrize("name", ["/a", "/pylabhub_a.b@p1", "/dir/block", "/a b"])
def test_shm_names_below_the_directory_are_taken(name: str) -> None:
    assert check_shm(name) == name


@pytest.mark.parametrize("name", ["", "/", "a", "a/b", "//a", "/a/", "/a//b", "/..", "/a/../b", "/./a", "/a\0", "../a"])
def test_shm_names_that_could_climb_out_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_shm(name)


texts = st.text("aZ09_-. |:pid\n\0/\xe9\uff41\U0001f600", max_size=250)


@given(texts)
def test_any_text_gives_a_role_name(text: str) -> None:
    assert check_role("producer", to_role(text)) == to_role(text)
