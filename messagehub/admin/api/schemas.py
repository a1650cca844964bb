"""What our own API does with schemas: registering several, checking, comparing versions, validating documents."""

from typing import Annotated, Any

import msgspec
from fastapi import Depends, Query
from starlette.concurrency import run_in_threadpool

from messagehub.admin.api.parameters import Flag, NotGiven, Subject, Version
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.confluent.handlers import registration, schema_fields
from messagehub.admin.errors import HttpError, error_body, hub_error_body
from messagehub.admin.parameters import SchemaBody, checked_subject
from messagehub.admin.routes import JsonBody, Operations
from messagehub.errors import HubError
from registry import commands, replies
from registry.formats.differences import Difference
from registry.formats.json_schema.documents import document_schema
from registry.records import Level
from registry.schemas.catalog import LATEST

MAX_BATCH = 1000
operations = Operations()


class BatchItem(SchemaBody):
    subject: str = ""


class BatchAnswer(msgspec.Struct, omit_defaults=True):
    """What one would have been answered alone, and its status."""

    subject: str
    status: int
    id: int | None = None
    version: int | None = None
    guid: str | None = None
    error_code: int | None = None
    message: str | None = None
    code: str | None = None
    details: dict[str, Any] | None = None


class DiffAnswer(msgspec.Struct, rename={"old": "from", "new": "to"}):
    subject: str
    old: int
    new: int
    backward: list[Difference]
    forward: list[Difference]


class ValidAnswer(msgspec.Struct):
    valid: bool
    problems: list[dict[str, str]]
    version: int


@operations.add("POST", "/api/v1/schemas", "schema-admin", writes=True, codes=(42209, 422))
async def register(
    backend: BrokerClient,
    items: Annotated[list[BatchItem], Depends(JsonBody(list[BatchItem]))],
    normalize: Flag = False,
) -> list[BatchAnswer]:
    """Register several, in order, so that later ones may refer to earlier ones; each has a status of its own."""
    if len(items) > MAX_BATCH:
        raise HttpError(422, 42209, f"{len(items)} schemas are more than the {MAX_BATCH} that one batch may have")
    return [await _register(backend, item, normalize=normalize) for item in items]


async def _register(backend: BrokerClient, item: BatchItem, *, normalize: bool) -> BatchAnswer:
    try:
        command = registration(checked_subject(item.subject), item, normalize=normalize)
        made = await backend.ask(command, replies.SchemaRegistered)
    except HttpError as error:
        status, said = error.status, error_body(error.error_code, error.message)
    except HubError as error:
        status, said = hub_error_body(error)
    else:
        return BatchAnswer(item.subject, 200, made.schema_id, made.version, made.guid)
    return BatchAnswer(item.subject, status, **said)


@operations.add("GET", "/api/v1/schemas/{subject}/diff", "observe", codes=(40401, 40402, 42202, 42208, 42209))
async def diff(
    backend: BrokerClient,
    subject: Subject,
    first: Annotated[Version, Query(alias="from")] = 1,
    second: Annotated[Version | NotGiven, Query(alias="to")] = None,
) -> DiffAnswer:
    """What changes from one version to another, in both directions."""
    old = (await _version(backend, subject, first)).schema
    new = (await _version(backend, subject, LATEST if second is None else second)).schema
    levels: tuple[Level, ...] = ("BACKWARD", "FORWARD")
    found: list[list[Difference]] = []
    for level in levels:
        command = commands.CheckSchema.of(new, version=old.version, level=level)
        checked = await backend.ask(command, replies.SchemaChecked)
        found.append([difference for entry in checked.differences for difference in entry.differences])
    return DiffAnswer(subject, old.version, new.version, *found)


@operations.add("POST", "/api/v1/schemas/{subject}/check", "observe", codes=(42201, 42208, 42209))
async def check(
    backend: BrokerClient,
    subject: Subject,
    body: Annotated[SchemaBody, Depends(JsonBody(SchemaBody))],
    normalize: Flag = False,
) -> replies.SchemaChecked:
    """Whether a schema could be registered, every difference with its counterexample, and who is attached now."""
    command = commands.CheckSchema(**schema_fields(subject, body, normalize=normalize))
    return await backend.ask(command, replies.SchemaChecked)


@operations.add("POST", "/api/v1/validate/{subject}", "observe", codes=(40401, 40402, 42202, 42208, 42201))
async def validate(
    backend: BrokerClient,
    subject: Subject,
    document: Annotated[Any, Depends(JsonBody(Any))],
    version: Version | NotGiven = None,
) -> ValidAnswer:
    """Whether a JSON document is valid under a version of a JSON subject."""
    found = await _version(backend, subject, LATEST if version is None else version, resolve=True)
    schema = found.schema
    if schema.schema_type != "JSON":
        raise HttpError(422, 42201, f"documents are validated against JSON schemas; this is {schema.schema_type}")
    problems = await run_in_threadpool(_problems, found, document)
    return ValidAnswer(not problems, problems, schema.version)


async def _version(backend: BrokerClient, subject: str, number: int, *, resolve: bool = False) -> replies.SchemaFound:
    command = commands.RequestSchema(subject=subject, version=number, resolve=resolve)
    return await backend.ask(command, replies.SchemaFound)


def _problems(found: replies.SchemaFound, document: object) -> list[dict[str, str]]:
    return document_schema(found.schema.schema, tuple(found.reference_texts.items())).problems(document)
