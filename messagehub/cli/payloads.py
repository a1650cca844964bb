"""Payloads and headers on the command line: from what a person types, and to what a person or a script reads."""

import base64
from typing import Any

import msgspec
import typer

from messagehub.cli.output import shown


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
    """`payload`, or `payload_base64` for bytes that are not text."""
    if isinstance(payload, bytes):
        try:
            return {"payload": payload.decode()}
        except UnicodeDecodeError:
            return {"payload_base64": base64.b64encode(payload).decode()}
    return {"payload": _plain(payload)}


def text_of(payload: Any) -> str:
    """One safe line."""
    if isinstance(payload, bytes):
        return shown(payload.decode("utf-8", errors="backslashreplace"))
    return msgspec.json.encode(_plain(payload)).decode()


def _plain(payload: Any) -> Any:
    """Arrow as a list of rows."""
    return payload.to_pylist() if hasattr(payload, "to_pylist") else payload
