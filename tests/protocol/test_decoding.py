"""Any bytes at all give a value or a HubError; limits hold; refusals say what was wrong and to whom."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagehub import protocol
from messagehub.errors import (
    HubError,
    InternalError,
    MalformedRequest,
    MessageTooLarge,
    NestedTooDeeply,
    ProtocolError,
    UnknownType,
    UnsupportedProtocol,
)
from messagehub.store.memory import MemoryStore
from registry import commands, replies
from registry.errors import Refusal
from registry.registry import Registry
from tests.levels import examples
from tests.protocol.messages import SAMPLES, near_messages
from tools import schema_files

PING = b'{"type":"PING"}'
NO_JSON_OBJECTS = [
    *(b"", b"\0", b"nope", b"{", b"null", b"[]", b'"PING"', b"1", PING + b"x", PING * 2, b"\xef\xbb\xbf" + PING),
    *('{"type":"PING"}'.encode("utf-16"), b'{"type":"PING","a":NaN}', b'{"type":"PING",}', b"{'type':'PING'}"),
]
REGISTER = {"type": "PRODUCER_REGISTER", "id": "7", "channel": "c", "schema_hash": "h"}


def wire(**fields: Any) -> bytes:
    return json.dumps(REGISTER | fields).encode()


def refused(data: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        protocol.decode(data)
    return caught.value


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message with a few of its bytes changed, doubled or cut."""
    data = json.dumps(draw(near_messages()), ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        inserted = draw(
            st.sampled_from([b"", b"\0", b"\xff", b'"', b"{", b"[", b"]", b",", b"1e999", b"\\ud800", b"\\"])
        )
        data = data[:at] + inserted + data[at + draw(st.integers(0, 2)) :]
    return data


# -- any bytes ---------------------------------------------------------------------------------------------


@settings(max_examples=examples(200))
@given(st.binary(max_size=200) | damaged())
def test_any_bytes_give_a_value_or_a_hub_error(data: bytes) -> None:
    try:
        assert isinstance(protocol.decode(data), commands.Command)
    except ProtocolError as error:
        answer = protocol.encode_reply(protocol.error_reply(error), error.request_id)
        assert isinstance(protocol.decode_reply(answer), replies.Error)
    for decode in (protocol.decode_reply, protocol.decode_event):
        try:
            assert isinstance(decode(data), msgspec.Struct)
        except InternalError:
            continue


@settings(max_examples=examples(150))
@given(near_messages(kinds=("request",)))
def test_whatever_decodes_can_be_answered_published_and_stored(message: dict[str, Any]) -> None:
    try:
        command = protocol.decode(json.dumps(message).encode())
    except ProtocolError:
        return
    if isinstance(command, schema_files.ANSWERED_BY_THE_BROKER):
        return
    registry, store = Registry(), MemoryStore()
    try:
        outcome = registry.apply(command, now=0.0)
    except Refusal as refusal:
        protocol.encode_reply(protocol.error_reply(refusal), command.id)
        return
    protocol.decode_reply(protocol.encode_reply(outcome.reply, command.id))
    for event in outcome.events:
        protocol.decode_event(protocol.encode(event))
        store.write(store.rows(event), revision=event.revision, durable=event.durable)


@given(st.lists(st.sampled_from([b"", b"", b"x", PING, b"\0" * 5]), max_size=12))
def test_any_frames_give_a_path_and_a_request_or_nothing(frames: list[bytes]) -> None:
    found = protocol.split(frames)
    if found is None:
        is_one_request = b"" in frames[1:] and frames.index(b"", 1) == len(frames) - 2
        assert len(frames) > protocol.MAX_FRAMES or not is_one_request
        return
    path, body = found
    assert [*path, body] == frames
    assert path[-1] == b""
    assert b"" not in path[1:-1]


# -- the return path ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, 7))
def test_path_of_any_length_up_to_the_limit_is_echoed_unchanged(count: int) -> None:
    path = [bytes([number + 1]) * 5 for number in range(count)]
    assert protocol.split([*path, b"", PING]) == ([*path, b""], PING)


def test_more_than_eight_frames_are_dropped() -> None:
    assert protocol.split([b"x"] * 6 + [b"", PING]) is not None
    assert protocol.split([b"x"] * 7 + [b"", PING]) is None


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"id"],
        [b"id", PING],
        [b"id", b""],
        [b"id", PING, b""],
        [b"id", b"", PING, b"extra"],
        [b"id", b"", b"", PING],
    ],
)
def test_frames_that_are_not_one_request_behind_a_path_are_dropped(frames: list[bytes]) -> None:
    assert protocol.split(frames) is None


def test_empty_request_behind_a_path_is_answered_as_malformed() -> None:
    assert protocol.split([b"id", b"", b""]) == ([b"id", b""], b"")
    assert refused(b"").code == "INVALID_REQUEST"


# -- limits ------------------------------------------------------------------------------------------------


def test_request_of_one_mebibyte_is_taken_and_one_byte_more_is_too_large() -> None:
    padding = protocol.MAX_REQUEST_BYTES - len(wire(metadata={"a": ""}))
    protocol.decode(wire(metadata={"a": "x" * padding}))
    error = refused(wire(metadata={"a": "x" * (padding + 1)}))
    assert type(error) is MessageTooLarge
    assert error.details == {"size_bytes": 2**20 + 1, "limit_bytes": 2**20}


@pytest.mark.parametrize("field", ["config", "metadata", "schema"])
@pytest.mark.parametrize("leaf", ["", "1"])
def test_nesting_of_128_is_taken_and_one_more_is_refused(field: str, leaf: str) -> None:
    def nested(levels: int) -> bytes:
        inner = levels - 2  # the request and the field itself are two
        return wire(**{field: {"a": 0}}).replace(
            b'{"a": 0}', b'{"a":' + b"[" * inner + leaf.encode() + b"]" * inner + b"}"
        )

    protocol.decode(nested(128))
    error = refused(nested(129))
    assert type(error) is NestedTooDeeply
    assert error.details == {"limit": 128}
    assert error.request_id == "7"


@pytest.mark.parametrize("field", ["config", "not_a_field"])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nesting_beyond_the_stack_is_refused(field: str, opening: bytes) -> None:
    data = wire()[:-1] + b', "' + field.encode() + b'": ' + opening * 100_000
    assert "nested" in refused(data).message or "not JSON" in refused(data).message


@pytest.mark.parametrize("number", [2**63 - 1, 2**64 - 1, -(2**63), 2**64, 10**400])
def test_integers_of_any_usual_size_are_kept_exactly(number: int) -> None:
    command = protocol.decode(wire(config={"n": number}))
    assert isinstance(command, commands.RegisterProducer)
    assert command.config == {"n": number}


def test_integer_of_thousands_of_digits_is_refused() -> None:
    assert refused(wire(config={"n": 0}).replace(b'"n": 0', b'"n": 1' + b"0" * 5000)).request_id == "7"


@pytest.mark.parametrize("name", ["default_metadata", "override_rule_set"])
def test_nesting_is_limited_inside_the_config_of_schemas_too(name: str) -> None:
    config = f'{{"{name}":{{"a":{"[" * 200}{"]" * 200}}}}}'.encode()
    assert refused(b'{"type":"SCHEMA_CONFIG_SET","config":' + config + b"}").details == {"limit": 128}


@pytest.mark.parametrize("wire_type", ["SCHEMA_CHECK", "SCHEMA_LOOKUP_REQUEST", "SCHEMA_REGISTER"])
def test_nesting_is_limited_in_schemas_that_are_only_asked_about(wire_type: str) -> None:
    data = json.dumps({"type": wire_type, "subject": "s", "schema": {"a": 0}}).encode()
    assert refused(data.replace(b'"a": 0', b'"a":' + b"[" * 200 + b"]" * 200)).details == {"limit": 128}


# -- JSON itself -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", NO_JSON_OBJECTS)
def test_what_is_no_json_object_is_malformed(data: bytes) -> None:
    error = refused(data)
    assert (type(error), error.code, error.request_id) == (MalformedRequest, "INVALID_REQUEST", None)


@pytest.mark.parametrize("where", [b'"host":"%s"', b'"not_a_field":"%s"', b'"config":{"%s":1}', b'"%s":1'])
def test_invalid_utf8_is_refused_wherever_it_stands(where: bytes) -> None:
    for bad in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"):
        error = refused(wire()[:-1] + b"," + where % bad + b"}")
        assert type(error) is MalformedRequest


@pytest.mark.parametrize("where", [b'"host":"%s"', b'"not_a_field":"%s"', b'"config":{"%s":1}'])
def test_lone_surrogate_is_refused_wherever_it_stands(where: bytes) -> None:
    for bad in (b"\\ud800", b"\\udc00", b"\\ud800\\u0041", b"\\ud800x"):
        refused(wire()[:-1] + b"," + where % bad + b"}")


def test_nul_is_refused_raw_and_kept_when_escaped() -> None:
    refused(wire(host="X").replace(b"X", b"\0"))
    command = protocol.decode(wire(host="\0"))
    assert isinstance(command, commands.RegisterProducer)
    assert command.host == "\0"


def test_of_duplicate_keys_each_must_be_valid_and_the_last_counts() -> None:
    command = protocol.decode(b'{"type":"DISCOVERY_REQUEST","channel":"a","channel":"b"}')
    assert isinstance(command, commands.Discover)
    assert command.channel == "b"
    refused(b'{"type":"DISCOVERY_REQUEST","channel":1,"channel":"b"}')


def test_second_type_is_refused_when_it_differs() -> None:
    refused(b'{"type":"PING","type":"STATS_REQUEST"}')
    protocol.decode(b'{"type":"PING","type":"PING"}')


def test_unknown_fields_are_ignored_and_order_does_not_matter() -> None:
    command = protocol.decode(
        b' {"new_field": {"a": [1e400]}, "channel": "c", "id": "7", "type": "DISCOVERY_REQUEST"}\n'
    )
    assert isinstance(command, commands.Discover)
    assert (command.channel, command.id) == ("c", "7")


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"channel": 1}, "channel"),
        ({"channel": None}, "channel"),
        ({"schema_hash": ""}, "schema_hash"),
        ({"schema_hash": "x" * 257}, "schema_hash"),
        ({"pid": -1}, "pid"),
        ({"pid": 1.0}, "pid"),
        ({"pid": True}, "pid"),
        ({"pid": 2**53 + 1}, "pid"),
        ({"access": "both"}, "access"),
        ({"priority": "urgent"}, "priority"),
        ({"config": []}, "config"),
        ({"blocks": [{"shm_name": "/a"}, {"shm_name": 1}]}, "blocks[1].shm_name"),
        ({"blocks": [{}]}, "blocks[0].shm_name"),
        ({"protocol": 1.0}, "protocol"),
    ],
)
def test_bad_field_is_named_and_the_id_echoed(changed: dict[str, Any], field: str) -> None:
    error = refused(wire(**changed))
    assert (type(error), error.details, error.request_id) == (MalformedRequest, {"field": field}, "7")
    assert error.message.startswith("PRODUCER_REGISTER: ")


def test_missing_field_is_named() -> None:
    assert refused(b'{"type":"PRODUCER_REGISTER","channel":"c"}').details == {"field": "schema_hash"}


def test_id_that_is_no_string_is_refused_and_not_echoed() -> None:
    error = refused(wire(id=7))
    assert (error.details, error.request_id) == ({"field": "id"}, None)


def test_value_is_not_quoted_at_length() -> None:
    assert len(refused(wire(access="x" * 100_000)).message) < 300


@pytest.mark.parametrize("data", [b"{}", b'{"type":null}', b'{"type":1}', b'{"type":["PING"]}'])
def test_type_is_required_and_a_string(data: bytes) -> None:
    error = refused(data)
    assert (type(error), error.details) == (MalformedRequest, {"field": "type"})


@pytest.mark.parametrize("wire_type", ["NOPE", "", "ping", "PONG", "DISCOVERY_RESPONSE", "x" * 100_000])
def test_unknown_type_is_told_what_there_is(wire_type: str) -> None:
    error = refused(json.dumps({"type": wire_type, "id": "7"}).encode())
    assert (type(error), error.request_id) == (UnknownType, "7")
    assert error.details["known"] == sorted(protocol.COMMANDS_BY_TYPE)
    assert len(error.message) < 200


# -- versions ----------------------------------------------------------------------------------------------


def test_same_version_is_spoken_without_a_warning() -> None:
    assert protocol.negotiate(["1.0"]) == ("1.0", None)


@pytest.mark.parametrize("version", ["1.1", "1.99"])
def test_newer_minor_version_only_warns(version: str) -> None:
    spoken, warning = protocol.negotiate([version])
    assert spoken == "1.0"
    assert warning is not None
    assert version in warning
    protocol.decode(wire(protocol=version))


def test_first_version_that_both_speak_is_taken() -> None:
    assert protocol.negotiate(["3.0", "2.7", "1.0"]) == ("1.0", None)


@pytest.mark.parametrize(
    "version",
    [
        "2.0",
        "0.9",
        "",
        "1",
        "1.",
        ".0",
        "1.x",
        "1.-1",
        "1.0.0",
        " 1.0",
        "1.0\n",
        "01.0",
        "\u0661.0",
        "1.\u0661",
        "1." + "9" * 10,
    ],
)
def test_other_major_version_or_garbage_is_unsupported_and_names_both_sides(version: str) -> None:
    error = refused(wire(protocol=version))
    assert (type(error), error.request_id) == (UnsupportedProtocol, "7")
    assert error.details == {"peer": [version], "supported": ["1.0"]}
    with pytest.raises(UnsupportedProtocol):
        protocol.negotiate([version])


def test_no_version_at_all_is_unsupported() -> None:
    with pytest.raises(UnsupportedProtocol, match="none"):
        protocol.negotiate([])


# -- replies -----------------------------------------------------------------------------------------------


def test_reply_echoes_the_id_and_leaves_it_out_when_there_was_none() -> None:
    pong = replies.Pong(broker_id="b", revision=1, read_only=False)
    assert json.loads(protocol.encode_reply(pong, "7"))["id"] == "7"
    assert "id" not in json.loads(protocol.encode_reply(pong, None))


def test_error_reply_is_raised_as_its_exception() -> None:
    refusal = refused(wire(access="both"))
    reply = protocol.decode_reply(protocol.encode_reply(protocol.error_reply(refusal), "7"))
    with pytest.raises(HubError) as caught:
        protocol.unwrap(reply)
    assert (caught.value.code, caught.value.details, caught.value.retryable) == (
        "INVALID_REQUEST",
        {"field": "access"},
        False,
    )


def test_reply_that_is_no_error_is_unwrapped_as_it_is() -> None:
    pong = protocol.decode_reply(json.dumps(SAMPLES["PONG"]).encode())
    assert protocol.unwrap(pong) is pong


def test_error_of_a_newer_broker_keeps_its_code() -> None:
    with pytest.raises(HubError) as caught:
        protocol.unwrap(replies.Error(code="BRAND_NEW", message="m", details={"a": 1}, retryable=True))
    assert (caught.value.code, caught.value.details, caught.value.retryable) == ("BRAND_NEW", {"a": 1}, True)
    assert HubError.code == "INTERNAL_ERROR"


@pytest.mark.parametrize(
    ("request_", "head"),
    [
        (b'{"type":"PING","id":"7"}', ("PING", "7")),
        (b'{"payload":{"id":"nested"},"id":"7"}', ("?", "7")),
        (b'{"type":"PING","id":"7","echo":"' + b"x" * 5000 + b'"}', ("PING", "7")),
        (b' { "priority" : "high", "id":"a\\"b\\u0041" , "type":"PING","x":[' + b"1," * 5000, ("PING", 'a"bA')),
        (b'{"type":"NO_SUCH","id":"7","x":[' + b"1," * 5000, ("?", "7")),
        (b'{"payload":{"id":"nested"},"id":"7","x":[' + b"1," * 5000, ("?", None)),
        (b'{"id":"' + b"x" * 5000, ("?", None)),
        (b"\xff" * 5000, ("?", None)),
    ],
)
def test_the_head_of_a_request_names_it_without_the_rest(request_: bytes, head: tuple[str, str | None]) -> None:
    assert protocol.request_head(request_) == head
    if len(request_) > protocol.HEAD_BYTES:
        cut = protocol.request_head(request_[: protocol.HEAD_BYTES])
        assert cut == head


def test_a_request_that_is_too_large_is_refused_with_its_id() -> None:
    with pytest.raises(MessageTooLarge) as refused:
        protocol.decode(b'{"type":"PING","id":"7","echo":"' + b"x" * protocol.MAX_REQUEST_BYTES + b'"}')
    assert refused.value.request_id == "7"


def test_the_frames_of_a_way_back_are_bounded() -> None:
    assert protocol.split([b"x" * 4096, b"y" * 4096, b"", PING]) is not None
    assert protocol.split([b"x", b"y" * 4097, b"", PING]) is None
