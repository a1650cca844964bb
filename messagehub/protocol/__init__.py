"""Bytes to commands and replies to bytes; no sockets.

Rule 1: any bytes at all give a command or a ProtocolError, nothing else.
Rule 2: validation happens here and only here; what decoded needs no second look.
Rule 3: everything up to and including the first empty frame is the return path, and is echoed unchanged.
Rule 4: refusing what is too large costs the same whatever its size: only its beginning is looked at.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import msgspec

from messagehub.errors import (
    HubError,
    InternalError,
    MalformedRequest,
    MessageTooLarge,
    NestedTooDeeply,
    ProtocolError,
    UnknownType,
    UnsupportedProtocol,
    from_wire,
)
from registry import commands, replies
from registry.events import AnyEvent, ServiceChanged

VERSION = "1.0"
MAJOR, MINOR = 1, 0
MAX_REQUEST_BYTES = 1 << 20
MAX_FRAME_BYTES = 4 << 20
MAX_FRAMES = 8
MAX_PATH_FRAME_BYTES = 4096
"""How many bytes one frame of a return path may have; an identity that libzmq gives has 255 at most."""
HEAD_BYTES = 4096
"""How many bytes are looked at of a request that is refused unread."""
MAX_NESTING = 128
MAX_QUOTED = 200


class Beacon(msgspec.Struct, kw_only=True, tag="BEACON", tag_field="type"):
    """The newest revision on a topic, said while nothing happens and as the echo of a subscription."""

    revision: int
    broker_id: str


class _Envelope(msgspec.Struct):
    type: Any = None
    id: Any = None


_UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeError, ValueError)
_command_decoder: msgspec.json.Decoder[commands.AnyCommand] = msgspec.json.Decoder(commands.AnyCommand)
_envelope_decoder: msgspec.json.Decoder[_Envelope] = msgspec.json.Decoder(_Envelope)
_reply_decoder: msgspec.json.Decoder[replies.AnyReply] = msgspec.json.Decoder(replies.AnyReply)
_event_decoder: msgspec.json.Decoder[AnyEvent | ServiceChanged | Beacon] = msgspec.json.Decoder(
    AnyEvent | ServiceChanged | Beacon
)
_encoder = msgspec.json.Encoder()
_FREE_FORM = (commands.SchemaText, commands.TableSchema, commands.ReportDeadLetter)
_CONTAINERS = (dict, list, msgspec.Struct)
_HEAD = re.compile(rb'\s*\{(?:\s*"(?:type|id|protocol|priority)"\s*:\s*"(?:[^"\\]|\\.)*"\s*,)+')

encode = _encoder.encode

COMMANDS_BY_TYPE: dict[str, type[commands.Command]] = {
    str(command.__struct_config__.tag): command for command in get_args(commands.AnyCommand)
}


def split(frames: Sequence[bytes]) -> tuple[list[bytes], bytes] | None:
    """The return path and the request, or None for frames that are not one request behind a path."""
    if len(frames) > MAX_FRAMES or b"" not in frames[1:]:
        return None
    body = frames.index(b"", 1) + 1
    if len(frames) != body + 1 or max(map(len, frames[:body])) > MAX_PATH_FRAME_BYTES:
        return None
    return list(frames[:body]), frames[body]


def decode(data: bytes) -> commands.AnyCommand:
    if len(data) > MAX_REQUEST_BYTES:
        too_large = MessageTooLarge(
            f"a request of {len(data)} bytes is over the limit of {MAX_REQUEST_BYTES}",
            size_bytes=len(data),
            limit_bytes=MAX_REQUEST_BYTES,
        )
        too_large.request_id = request_head(data[:HEAD_BYTES])[1]
        raise too_large
    try:
        if not data.isascii():
            data.decode()  # the decoder passes over the strings of fields that it does not know
        command = _command_decoder.decode(data)
    except _UNDECODABLE as error:
        raise _explain(data, error) from None
    try:
        if command.protocol != VERSION:
            negotiate([command.protocol])
        is_free_form = command.writes or isinstance(command, _FREE_FORM)
        if is_free_form and data.count(b"{") + data.count(b"[") > MAX_NESTING // 2:  # or else it cannot be so deep
            _check_nesting(command)
    except ProtocolError as refused:
        refused.request_id = command.id
        raise
    return command


def request_head(data: bytes) -> tuple[str, str | None]:
    """Type and id of a request that is refused unread, so that the answer finds whoever waits for it.

    Of the head of one they are found among the first members, which are texts. The type is one of our own, or "?":
    never a peer's string.
    """
    try:
        found = _envelope_decoder.decode(data)
    except _UNDECODABLE:
        head = _HEAD.match(data, 0, HEAD_BYTES)
        found = _envelope(head[0][:-1] + b"}" if head else b"{}")
    is_ours = isinstance(found.type, str) and found.type in COMMANDS_BY_TYPE
    return (str(found.type) if is_ours else "?"), (found.id if isinstance(found.id, str) else None)


def _envelope(data: bytes) -> _Envelope:
    try:
        return _envelope_decoder.decode(data)
    except _UNDECODABLE:
        return _Envelope()


def negotiate(versions: Sequence[str]) -> tuple[str, str | None]:
    """The version to speak and a warning when the peer's is a newer minor one."""
    for version in versions:
        major, _, minor = version.partition(".")
        if major == str(MAJOR) and minor.isascii() and minor.isdigit() and len(minor) < 10:
            warning = None
            if int(minor) > MINOR:
                warning = f"the peer speaks protocol {version}, this side {VERSION}: newer fields are ignored"
            return VERSION, warning
    raise UnsupportedProtocol(
        f"the peer speaks protocol {', '.join(versions) or 'none'}, this side speaks {VERSION}",
        peer=list(versions),
        supported=[VERSION],
    )


def encode_reply(reply: replies.Reply, request_id: str | None) -> bytes:
    reply.id = msgspec.UNSET if request_id is None else request_id
    return encode(reply)


def error_reply(error: HubError) -> replies.Error:
    return replies.Error(code=error.code, message=error.message, details=error.details, retryable=error.retryable)


def decode_reply(data: bytes) -> replies.AnyReply:
    try:
        return _reply_decoder.decode(data)
    except _UNDECODABLE as error:
        raise InternalError(f"the broker's answer cannot be read: {error}") from None


def unwrap(reply: replies.AnyReply) -> replies.AnyReply:
    """The reply; an ERROR is raised as its exception."""
    if isinstance(reply, replies.Error):
        raise from_wire(reply.code, reply.message, reply.details, retryable=reply.retryable)
    return reply


def decode_event(data: bytes) -> AnyEvent | ServiceChanged | Beacon:
    try:
        return _event_decoder.decode(data)
    except _UNDECODABLE as error:
        raise InternalError(f"the broker's event cannot be read: {error}") from None


def _explain(data: bytes, error: Exception) -> ProtocolError:
    """What was wrong, with the peer's id when the envelope can still be read."""
    try:
        envelope = _envelope_decoder.decode(data)
    except _UNDECODABLE as unreadable:
        if isinstance(unreadable, RecursionError):
            return _too_deep()
        if isinstance(unreadable, msgspec.ValidationError):
            return MalformedRequest(f"the request is not a JSON object: {unreadable}")
        return MalformedRequest(f"the request is not JSON: {unreadable}")
    refused: ProtocolError
    if envelope.type is None:
        refused = MalformedRequest("the request has no type", field="type")
    elif not isinstance(envelope.type, str):
        refused = MalformedRequest("the request's type is not a string", field="type")
    elif envelope.type not in COMMANDS_BY_TYPE:
        refused = UnknownType(f"unknown request type {envelope.type[:64]!r}", known=sorted(COMMANDS_BY_TYPE))
    else:
        field = _field(str(error))
        refused = MalformedRequest(f"{envelope.type}: {_shortened(error)}", **({"field": field} if field else {}))
    if isinstance(envelope.id, str):
        refused.request_id = envelope.id
    return refused


def _check_nesting(command: commands.AnyCommand) -> None:
    """Refuse free-form values that are nested too deeply to be encoded again inside replies and events."""
    level: list[Any] = [command]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_NESTING:
            raise _too_deep()
        level = [child for value in level for child in _children(value) if isinstance(child, _CONTAINERS)]


def _children(value: dict[str, Any] | list[Any] | msgspec.Struct) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else msgspec.structs.astuple(value)


def _too_deep() -> NestedTooDeeply:
    return NestedTooDeeply(f"the request is nested more than {MAX_NESTING} levels deep", limit=MAX_NESTING)


def _field(message: str) -> str:
    """The path of the field that the decoder's message is about."""
    what, found, where = message.rpartition(" - at `$.")
    path = where.rstrip("`") if found else ""
    _, is_missing, rest = (what if found else message).partition("missing required field `")
    return ".".join(part for part in (path, rest.partition("`")[0] if is_missing else "") if part)


def _shortened(error: Exception) -> str:
    """The decoder may quote the peer's value in full; what is wrong stands before it, and where at the end."""
    text = str(error)
    return text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED // 2]}…{text[-MAX_QUOTED // 2 :]}"
