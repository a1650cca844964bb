"""The responses of the registry API as types. They are sent, and the OpenAPI document is made from them.

Parts that are not there are left out, as the API's clients expect, and so is the schema type AVRO.
"""

from typing import Any
from urllib.parse import quote

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from messagehub.admin.parameters import BODY_TYPES
from registry.records import Level, Mode, Reference, SchemaConfig, SchemaType, SchemaVersion
from registry.replies import SchemaFound, TouchedMember

MAX_NAMED = 20


class Answer(Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A response in which fields that are not set are left out."""


class ContentAnswer(Answer, kw_only=True):
    """A schema; `subject` and `version` when a subject was named."""

    subject: str | None = None
    version: int | None = None
    schema: str
    guid: str
    schema_type: SchemaType | None = None
    references: list[Reference] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    max_id: int | None = None


class VersionAnswer(Answer):
    subject: str
    version: int
    id: int
    schema: str
    guid: str
    schema_type: SchemaType | None = None
    references: list[Reference] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    deleted: bool = False


class RegisteredAnswer(Answer):
    id: int
    version: int
    guid: str


class PlaceAnswer(Answer):
    subject: str
    version: int


class IdAnswer(Answer):
    context: str
    id: int


class CheckAnswer(Struct, omit_defaults=True):
    is_compatible: bool
    messages: list[str] | None = None


class ConfigAnswer(Answer):
    """A config as it is read. Where it is written, the level is called `compatibility`."""

    compatibility_level: Level | None = None
    normalize: bool | None = None
    alias: str | None = None
    compatibility_group: str | None = None
    default_metadata: dict[str, Any] | None = None
    override_metadata: dict[str, Any] | None = None
    default_rule_set: dict[str, Any] | None = None
    override_rule_set: dict[str, Any] | None = None


class ConfigChanged(Answer):
    compatibility: Level | None = None
    normalize: bool | None = None
    alias: str | None = None
    compatibility_group: str | None = None
    default_metadata: dict[str, Any] | None = None
    override_metadata: dict[str, Any] | None = None
    default_rule_set: dict[str, Any] | None = None
    override_rule_set: dict[str, Any] | None = None


class ModeAnswer(Answer):
    mode: Mode


class ClusterAnswer(Answer):
    id: str
    scope: dict[str, Any]


class BuildAnswer(Answer):
    version: str
    commit_id: str


def content(version: SchemaVersion) -> ContentAnswer:
    return ContentAnswer(schema=version.schema, guid=version.guid, **_extras(version))


def shown(version: SchemaVersion) -> VersionAnswer:
    return VersionAnswer(
        subject=version.subject,
        version=version.version,
        id=version.schema_id,
        schema=version.schema,
        guid=version.guid,
        deleted=version.is_deleted,
        **_extras(version),
    )


def _extras(version: SchemaVersion) -> dict[str, Any]:
    return {
        "schema_type": None if version.schema_type == "AVRO" else version.schema_type,
        "references": version.references or None,
        "metadata": version.metadata,
        "rule_set": version.rule_set,
    }


def shown_config(config: SchemaConfig) -> ConfigAnswer:
    return ConfigAnswer(
        compatibility_level=config.compatibility,
        normalize=config.normalize,
        alias=config.alias,
        compatibility_group=config.compatibility_group,
        default_metadata=config.default_metadata,
        override_metadata=config.override_metadata,
        default_rule_set=config.default_rule_set,
        override_rule_set=config.override_rule_set,
    )


def place(subject: str, found: SchemaFound) -> PlaceAnswer:
    """Return where that subject has the schema, or else the first place that has it."""
    name = subject.removeprefix(":.:")
    own = [one for one in found.places if one.subject == name] or found.places
    return PlaceAnswer(subject=own[0].subject, version=own[0].version)


def text(version: SchemaVersion, headers: dict[str, str] | None = None) -> Response:
    return Response(version.schema.encode(), 200, headers, BODY_TYPES[0])


def touched_headers(touched: list[TouchedMember]) -> dict[str, str] | None:
    """Return headers that say who is attached now, since the API's answers have no field for it."""
    if not touched:
        return None
    named = ", ".join(f"{member.role} {quote(member.member_id)}" for member in touched[:MAX_NAMED])
    more = len(touched) - MAX_NAMED
    return {"x-messagehub-touched": f"{named}, {more} more" if more > 0 else named}


def is_known(request: Request, version: SchemaVersion) -> bool:
    """Return whether the caller has this answer already, as its ETag says."""
    return etag(version) in request.headers.get("if-none-match", "") and not request.url.query


def not_modified(version: SchemaVersion) -> Response:
    return Response(status_code=304, headers=immutable_headers(version))


def immutable_headers(version: SchemaVersion) -> dict[str, str]:
    return {"etag": etag(version), "cache-control": "max-age=60", "vary": "accept-encoding"}


def etag(version: SchemaVersion) -> str:
    """Return the ETag of the content, not of the id: an import may give the id of a deleted schema to another."""
    return f'"{version.guid}"'
