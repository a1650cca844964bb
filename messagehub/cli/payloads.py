"""Payloads and headers on the command line: from what a person types, and to what a person or a script reads."""

import base64
from typing import Any

import msgspec
import typer

from messagehub.display.values import shown
from messagehub.payloads.rows import records_of


def header_of(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE.", param_hint="--header")
    return name, value


def value_of(text: bytes) -> Any:
    """What JSON says."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise typer.BadParameter(f"the message is not JSON: {error}.") from None


def fields_of(payload: Any) -> dict[str, Any]:
    """`kind`, and `payload`, or `payload_base64` for bytes that are not text."""
    kind = kind_of(payload)
    if kind == "bytes":
        return {"kind": kind, "payload_base64": base64.b64encode(payload).decode()}
    return {"kind": kind, "payload": payload.decode() if kind == "text" else _plain(payload)}


def kind_of(payload: Any) -> str:
    """What tells `{"n": 1}` as text from `{"n": 1}` as a value."""
    if not isinstance(payload, bytes):
        return "arrow" if hasattr(payload, "to_pylist") else "array" if hasattr(payload, "tolist") else "json"
    try:
        payload.decode()
    except UnicodeDecodeError:
        return "bytes"
    return "text"


def text_of(payload: Any) -> str:
    """One safe line."""
    if isinstance(payload, bytes):
        return shown(payload.decode("utf-8", errors="backslashreplace"))
    return msgspec.json.encode(_plain(payload)).decode()


def _plain(payload: Any) -> Any:
    """Return Arrow data as a list of rows and an array as nested lists."""
    if hasattr(payload, "to_pylist"):
        return records_of(payload)
    return msgspec.to_builtins(getattr(payload, "tolist", lambda: payload)(), enc_hook=str)
