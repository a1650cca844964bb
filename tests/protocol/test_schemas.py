"""`schemas/` and the decoders say the same, except where the reference lists an exception by name."""

import binascii
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.validators import extend  # type: ignore[import-untyped]

from messagehub import protocol
from messagehub.errors import HubError
from tests.levels import examples
from tests.protocol.messages import KINDS, SAMPLES, near_messages, validator
from tools import schema_files

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"
DECODE: dict[str, Callable[[bytes], Any]] = {
    "request": protocol.decode,
    "reply": protocol.decode_reply,
    "event": protocol.decode_event,
}
Strict = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int),
)


def decodes(wire_type: str, data: bytes) -> bool:
    try:
        DECODE[KINDS[wire_type]](data)
    except HubError:
        return False
    return True


def validates(wire_type: str, data: bytes) -> bool:
    return bool(validator(wire_type).is_valid(json.loads(data)))


def test_nothing_has_drifted() -> None:
    assert schema_files.drift(schema_files.DEFAULT_DIR) == [], "run `make generate`"


def test_check_tells_drift_and_writing_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--dir", str(tmp_path)]
    assert schema_files.main(where) == 0
    assert schema_files.main([*where, "--check"]) == 0
    (tmp_path / "ping.json").write_text("{}")
    (tmp_path / "samples" / "pong.json").unlink()
    (tmp_path / "no_message.json").write_text("{}")
    capsys.readouterr()
    assert schema_files.main([*where, "--check"]) == 1
    told = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert told == ["no_message.json", "ping.json", "samples/pong.json"]
    assert (tmp_path / "ping.json").read_text() == "{}", "checking changes nothing"
    assert schema_files.main(where) == 0
    assert schema_files.main([*where, "--check"]) == 0


@pytest.mark.parametrize("wire_type", sorted(KINDS))
def test_every_message_has_a_schema_and_a_sample_that_validates_and_decodes(wire_type: str) -> None:
    Draft202012Validator.check_schema(validator(wire_type).schema)
    for path in schema_files.DEFAULT_DIR.glob("samples/*.json"):
        data = path.read_bytes()
        if json.loads(data)["type"] == wire_type:
            break
    else:
        pytest.fail(f"no sample of {wire_type}")
    assert validates(wire_type, data)
    decoded = DECODE[KINDS[wire_type]](data)
    assert decoded.__struct_config__.tag == wire_type


def test_samples_hold_the_four_drafts_word_for_word() -> None:
    drafts = """
{"type":"PRODUCER_REGISTER","channel":"sensor_data","schema_hash":"abc123...","schema_version":"1.0.0",
 "config":{"policy":"RingBuffer","capacity":10,"page_size":4096}}
{"type":"CONSUMER_REGISTER","channel":"sensor_data","consumer_id":"consumer_001","expected_schema_hash":"abc123..."}
{"type":"DISCOVERY_REQUEST","channel":"sensor_data"}
{"type":"DISCOVERY_RESPONSE","channel":"sensor_data","shm_name":"/pylabhub_sensor_data","schema_hash":"abc123...",
 "schema_version":"1.0.0","status":"active"}
"""
    for text in drafts.replace(",\n", ",").strip().splitlines():
        draft = json.loads(text)
        kept = (schema_files.DEFAULT_DIR / "samples" / schema_files.file_name(draft["type"])).read_text()
        assert list(json.loads(kept).items()) == list(draft.items())


def test_every_wire_type_has_one_struct_and_every_struct_is_listed() -> None:
    assert len(KINDS) == sum(len(members) for members in schema_files.MESSAGES.values())
    assert schema_files.MESSAGES["request"] == protocol.COMMANDS_BY_TYPE


# -- agreement ---------------------------------------------------------------------------------------------


def every_value(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *value.keys(), *(found for inner in value.values() for found in every_value(inner))]
    if isinstance(value, list):
        return [value, *(found for inner in value for found in every_value(inner))]
    return [value]


def has_integral_float(message: dict[str, Any]) -> bool:
    """Where the schema wants an integer: the rest of the schema does not mind."""
    schema = validator(message["type"]).schema
    return validates(message["type"], json.dumps(message).encode()) and not Strict(schema).is_valid(message)


def has_number_out_of_range(message: dict[str, Any]) -> bool:
    return any(isinstance(value, float) and not math.isfinite(value) for value in every_value(message))


def has_lone_surrogate(message: dict[str, Any]) -> bool:
    return any(
        isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value) for value in every_value(message)
    )


def has_other_protocol(message: dict[str, Any]) -> bool:
    protocol_ = message.get("protocol", "1.0")
    return KINDS[message["type"]] == "request" and isinstance(protocol_, str) and not protocol_.startswith("1.")


def has_bad_base64(message: dict[str, Any]) -> bool:
    return not all(map(is_base64, base64_fields(message)))


def base64_fields(message: dict[str, Any]) -> list[str]:
    """The payloads of retained messages."""
    listed = message.get("messages")
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return [item["payload"] for item in items if isinstance(item.get("payload"), str)]


def is_base64(text: str) -> bool:
    try:
        binascii.a2b_base64(text.encode(), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        return False
    return True


EXCEPTIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "integral-float": has_integral_float,
    "number-out-of-range": has_number_out_of_range,
    "lone-surrogate": has_lone_surrogate,
    "protocol-version": has_other_protocol,
    "base64": has_bad_base64,
}
ONLY_IN_BYTES = ("duplicate-key", "nesting", "size")


@settings(max_examples=examples(400))
@given(near_messages())
def test_validator_and_decoder_agree_but_for_named_exceptions(message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    named = [name for name, applies in EXCEPTIONS.items() if applies(message)]
    assert decodes(message["type"], data) == (validates(message["type"], data) and not named)


PRODUCER = SAMPLES["PRODUCER_REGISTER"]
SHOWN: dict[str, bytes] = {
    "integral-float": json.dumps(PRODUCER | {"pid": 1.0}).encode(),
    "number-out-of-range": json.dumps(PRODUCER).replace("4096", "1e400").encode(),
    "lone-surrogate": json.dumps(PRODUCER | {"host": "\ud800"}).encode(),
    "protocol-version": json.dumps(PRODUCER | {"protocol": "2.0"}).encode(),
    "base64": json.dumps(SAMPLES["TOPIC_PUBLISH"] | {"messages": [{"payload": "not base64"}]}).encode(),
    "duplicate-key": b'{"type":"DISCOVERY_REQUEST","channel":1,"channel":"c"}',
    "nesting": json.dumps(PRODUCER).replace("4096", "[" * 127 + "]" * 127).encode(),
    "size": json.dumps(PRODUCER | {"metadata": {"a": "x" * protocol.MAX_REQUEST_BYTES}}).encode(),
}


@pytest.mark.parametrize("name", [*EXCEPTIONS, *ONLY_IN_BYTES])
def test_every_exception_is_real_and_documented(name: str) -> None:
    data = SHOWN[name]
    wire_type = json.loads(data)["type"]
    assert validates(wire_type, data)
    assert not decodes(wire_type, data)
    assert f"`{name}`" in REFERENCE.read_text()
