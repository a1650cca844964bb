"""Path and query parameters and bodies of the registry API, each refused with its documented code."""

import re
from difflib import get_close_matches
from typing import Any, TypeVar, get_args
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.types import Receive, Scope

from messagehub.admin.authentication import caller, counters
from messagehub.admin.errors import HttpError
from messagehub.security.rate_limits import ConcurrencyLimit
from registry.commands import Deleted
from registry.decoding import decodable
from registry.records import ConfigField, Level, Mode, SchemaConfig
from registry.schemas.catalog import LATEST

MAX_BODY_BYTES = 1 << 20
MAX_OPEN_BODIES = 64
MAX_VERSION = 2**31 - 1
BODY_TYPES = (
    "application/vnd.schemaregistry.v1+json",
    "application/vnd.schemaregistry+json",
    "application/json",
    "application/octet-stream",
)
T = TypeVar("T")
FLAGS = {"true": True, "1": True, "": True, "false": False, "0": False}
BAD_FLAG = "flag"
"""The type of pydantic's error about a flag, which has another `error_code` than one about a number."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ID = re.compile(r"-?[0-9]{1,10}\Z")
_SLIP, _LIKE = 0.8, 0.6
"""How like a parameter another name has to be, for a refusal and for a hint."""
_open_bodies = ConcurrencyLimit(MAX_OPEN_BODIES)


@decodable
class ReferenceBody(msgspec.Struct):
    name: str
    subject: str
    version: int


class SchemaBody(msgspec.Struct, rename="camel"):
    """What registering, looking up and checking take."""

    schema: str | None = None
    schema_type: str | None = None
    references: list[ReferenceBody] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    id: int | None = None
    version: int | None = None
    schema_tags_to_add: list[Any] | None = None
    schema_tags_to_remove: list[Any] | None = None
    propagate_schema_tags: bool | None = None

    def __post_init__(self) -> None:
        for name in ("schema_tags_to_add", "schema_tags_to_remove", "propagate_schema_tags"):
            if getattr(self, name):
                raise ValueError(f"{name} is not supported, so it would have no effect: leave it out")


class ConfigBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """What is left out stays as it is; what is null is removed."""

    compatibility: str | UnsetType | None = UNSET
    normalize: bool | UnsetType | None = UNSET
    alias: str | UnsetType | None = UNSET
    compatibility_group: str | UnsetType | None = UNSET
    default_metadata: dict[str, Any] | UnsetType | None = UNSET
    override_metadata: dict[str, Any] | UnsetType | None = UNSET
    default_rule_set: dict[str, Any] | UnsetType | None = UNSET
    override_rule_set: dict[str, Any] | UnsetType | None = UNSET

    def unset(self) -> list[ConfigField]:
        return [name for name in get_args(ConfigField) if getattr(self, name) is None]

    def to_config(self) -> SchemaConfig:
        fields = {name: getattr(self, name) for name in get_args(ConfigField)}
        fields = {name: value for name, value in fields.items() if value not in (None, UNSET)}
        if "compatibility" in fields:
            fields["compatibility"] = fields["compatibility"].upper()
        try:
            return msgspec.convert(fields, SchemaConfig)
        except msgspec.ValidationError as error:
            if "compatibility`" in str(error) or "Invalid enum" in str(error):
                said = f"Invalid compatibility level: {self.compatibility!r}; one of {', '.join(get_args(Level))}"
                raise HttpError(422, 42203, said) from None
            raise HttpError(422, 422, f"Invalid config: {error}") from None


class ModeBody(msgspec.Struct, forbid_unknown_fields=True):
    mode: str | None = None

    def checked(self) -> Mode:
        try:
            mode: Mode = msgspec.convert((self.mode or "").upper(), Mode)
            return mode
        except msgspec.ValidationError:
            said = f"Invalid mode: {self.mode!r}; one of {', '.join(get_args(Mode))}"
            raise HttpError(422, 42204, said) from None


async def body(request: Request, kind: type[T]) -> T:
    """Return the JSON body. Its size is bounded while it arrives."""
    return decoded(await raw_body(request.scope, request.receive), kind)


async def raw_body(scope: Scope, receive: Receive) -> bytes:
    """Return the body of a media type that may hold JSON, not decoded."""
    for name, value in scope["headers"]:
        if name == b"content-type":
            _check_media_type(value.decode("latin-1"))
            break
    return await _received(scope, receive)


def _check_media_type(given: str) -> None:
    if given not in BODY_TYPES and (media_type := given.partition(";")[0].strip().lower()) not in BODY_TYPES:
        said = f"HTTP 415 Unsupported Media Type: {media_type!r}; send {', '.join(BODY_TYPES)}"
        raise HttpError(415, 415, said)


def decoded(received: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(received, type=kind)
    except msgspec.ValidationError as error:
        raise HttpError(422, 422, f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise HttpError(400, 400, f"the body is not JSON: {error}") from None


async def _received(scope: Scope, receive: Receive) -> bytes:
    """Receive a body, bounded in size and in how many arrive at once. The connection has a deadline for its end."""
    sender = caller.get().peer
    if not _open_bodies.take(sender):
        counters["http_open_bodies"] += 1
        said = f"more than {MAX_OPEN_BODIES} bodies arrive at once, or {_open_bodies.of_one} from one caller"
        raise HttpError(429, 42901, f"{said}: try again in a moment")
    received = bytearray()
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                if "is_late" in scope:  # said by the connection, which has answered
                    raise HttpError(408, 408, "the body did not arrive in time")
                raise HttpError(400, 400, "the caller went away before the body was there")
            received += message.get("body", b"")
            if len(received) > MAX_BODY_BYTES:
                counters["http_large_bodies"] += 1
                raise HttpError(422, 42209, f"the body is larger than {MAX_BODY_BYTES} bytes")
            if not message.get("more_body"):
                return bytes(received)
    finally:
        _open_bodies.give_back(sender)


def subject(request: Request) -> str:
    return decoded_subject(request.path_params["subject"])


def decoded_subject(text: str) -> str:
    """Return the subject of a path. Paths are matched before they are decoded, so that a subject may hold slashes."""
    try:
        name = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise HttpError(422, 42208, "The subject is not UTF-8") from None
    return checked_subject(name)


def checked_subject(name: str) -> str:
    """Return a subject that was checked. `:.:name` is `name` in the default context."""
    name = name.removeprefix(":.:")
    if not name or len(name) > 256 or _CONTROL.search(name):
        raise HttpError(422, 42208, f"The specified subject {name[:40]!r} is not a valid subject")
    if name.startswith(":."):
        raise HttpError(422, 42208, "contexts other than the default one are not supported")
    return name


def version(request: Request) -> int:
    text = unquote(request.path_params["version"]).strip()
    if text.lower() in ("latest", "-1"):
        return LATEST
    if text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= MAX_VERSION:
        return int(text)
    raise HttpError(
        422,
        42202,
        f"The specified version '{text[:40]}' is not a valid version id."
        ' Allowed values are between [1, 2^31-1] and the string "latest"',
    )


def schema_id(request: Request) -> int:
    """Return the id in a path. One that does not fit into four bytes is no path; 0 stands for all ids below zero."""
    text = request.path_params["id"]
    if not _ID.match(text) or not -MAX_VERSION <= int(text) <= MAX_VERSION:
        raise HttpError(404, 404, "HTTP 404 Not Found")
    return max(int(text), 0)


def check_query(request: Request, known: tuple[str, ...], *, is_confluent: bool) -> None:
    """Refuse a query parameter that would have no effect.

    Clients of the Confluent API send parameters of servers that can do more, and expect them to be ignored: there, only
    what looks like a slip of the pen is refused.
    """
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        near = get_close_matches(name, known, 1, _SLIP if is_confluent else _LIKE)
        if name not in known and (near or not is_confluent):
            takes = f"is {near[0]!r} meant?" if near else f"it takes {', '.join(known) or 'none'}"
            raise HttpError(422, 422, f"this takes no query parameter {name[:40]!r}; {takes}")
        if given.count(name) > 1 and not is_confluent:
            raise HttpError(422, 422, f"the query parameter {name} is given {given.count(name)} times")


def flag(request: Request, *names: str) -> bool:
    """Return whether a flag was given, as `name=true` or bare."""
    return True in [_is_true(name, request.query_params.get(name, "false")) for name in names]


def _is_true(name: str, value: str) -> bool:
    is_true = FLAGS.get(value.lower())
    if is_true is None:
        raise HttpError(422, 422, f"{name} is true or false, not {value[:40]!r}")
    return is_true


def deleted(request: Request) -> Deleted:
    if flag(request, "deletedOnly", "deleted_only"):
        return "only"
    return "with" if flag(request, "deleted") else "without"


def page(request: Request, found: list[T]) -> list[T]:
    """Return the part of a list that `offset` and `limit` ask for. A limit of 0 or below means all."""
    offset, limit = _integer(request, "offset", 0), _integer(request, "limit", -1)
    start = max(offset, 0)
    return found[start:] if limit <= 0 else found[start : start + limit]


def _integer(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        return int(text[:20])
    except ValueError:
        raise HttpError(422, 422, f"{name} is a number, not {text[:40]!r}") from None
