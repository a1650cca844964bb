"""The handlers of the Confluent Schema Registry REST API, for existing clients."""

from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from messagehub.admin import parameters
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.confluent.schema_formats import formatted
from messagehub.admin.errors import HttpError, answer
from messagehub.admin.parameters import ConfigBody, ModeBody, ReferenceBody, SchemaBody
from messagehub.admin.responses import (
    BuildAnswer,
    CheckAnswer,
    ClusterAnswer,
    ConfigChanged,
    IdAnswer,
    ModeAnswer,
    PlaceAnswer,
    RegisteredAnswer,
    content,
    immutable_headers,
    is_known,
    not_modified,
    place,
    shown,
    shown_config,
    text,
    touched_headers,
)
from messagehub.errors import SubjectNotFound
from messagehub.version import __version__
from registry import commands, replies
from registry.records import Reference, SchemaVersion

TYPES = ["JSON", "PROTOBUF", "AVRO", "ARROW"]


class Confluent:
    def __init__(self, backend: BrokerClient) -> None:
        self._backend = backend

    # -- subjects ------------------------------------------------------------------------------------------

    async def root(self, _: Request) -> Response:
        return answer(200, {})

    async def subjects(self, request: Request) -> Response:
        prefix = request.query_params.get("subjectPrefix", "").removeprefix(":.:").removeprefix(":*:")
        found = await self._backend.subjects(prefix, parameters.deleted(request))
        return answer(200, parameters.page(request, found))

    async def look_up(self, request: Request) -> Response:
        generation = self._backend.generation
        raw = await parameters.raw_body(request.scope, request.receive)
        asked = (request.scope["path"], request.scope["query_string"], raw)
        body = parameters.decoded(raw, SchemaBody)
        command = commands.LookUpSchema(
            **_schema_fields(request, body),
            metadata=body.metadata,
            rule_set=body.rule_set,
            deleted=parameters.flag(request, "deleted"),
        )
        found = await self._backend.ask(command, replies.SchemaFound)
        made = answer(200, shown(found.schema))
        self._backend.cache_look_up(asked, made, generation)
        return made

    async def delete_subject(self, request: Request) -> Response:
        reply = await self._delete(request, None)
        return answer(200, reply.versions, touched_headers(reply.touched))

    async def versions(self, request: Request) -> Response:
        deleted = parameters.deleted(request)
        command = commands.ListSchemas(subject=parameters.subject(request), deleted=deleted)
        found = await self._backend.ask(command, replies.SchemaList)
        return answer(200, parameters.page(request, [version.version for version in found.versions]))

    async def register(self, request: Request) -> Response:
        body = await parameters.body(request, SchemaBody)
        if not (body.schema or "").strip():
            body = await self._of_newest(request, body)
        normalize = parameters.flag(request, "normalize")
        command = registration(parameters.subject(request), body, normalize=normalize)
        reply = await self._backend.ask(command, replies.SchemaRegistered)
        return answer(200, RegisteredAnswer(id=reply.schema_id, version=reply.version, guid=reply.guid))

    async def version(self, request: Request) -> Response:
        generation = self._backend.generation
        made = answer(200, shown((await self._version(request)).schema))
        if request.path_params["version"] == "latest" and not request.url.query:
            self._backend.cache_latest(request.scope["path"], made, generation)
        return made

    async def version_schema(self, request: Request) -> Response:
        return text((await self._version(request)).schema)

    async def referenced_by(self, request: Request) -> Response:
        command = commands.RequestSchema(
            subject=parameters.subject(request),
            version=parameters.version(request),
            deleted=True,
            referrers=True,
            deleted_referrers=parameters.flag(request, "deleted"),
        )
        found = await self._backend.ask(command, replies.SchemaFound)
        return answer(200, parameters.page(request, found.referrers))

    async def delete_version(self, request: Request) -> Response:
        reply = await self._delete(request, parameters.version(request))
        return answer(200, reply.versions[0], touched_headers(reply.touched))

    async def metadata(self, request: Request) -> Response:
        keys, values = (request.query_params.getlist(name) for name in ("key", "value"))
        if len(keys) != len(values):
            raise HttpError(422, 422, "key and value come in pairs")
        wanted = dict(zip(keys, values, strict=True))
        name = parameters.subject(request)
        deleted: commands.Deleted = "with" if parameters.flag(request, "deleted") else "without"
        versions = [version for version in await self._export(name, deleted) if version.subject == name]
        if not versions:
            raise SubjectNotFound(f"no schema is registered under subject {name!r}", subject=name)
        for version in reversed(versions):
            properties = (version.metadata or {}).get("properties") or {}
            if all(properties.get(key) == value for key, value in wanted.items()):
                return answer(200, shown(version))
        raise HttpError(404, 40402, f"Version not found: none of subject {name!r} has that metadata")

    # -- schemas -------------------------------------------------------------------------------------------

    async def schemas(self, request: Request) -> Response:
        prefix = request.query_params.get("subjectPrefix", "").removeprefix(":.:").removeprefix(":*:")
        found = await self._export(prefix, "with" if parameters.flag(request, "deleted") else "without")
        if parameters.flag(request, "latestOnly"):
            found = list({version.subject: version for version in found}.values())
        return answer(200, [shown(version) for version in parameters.page(request, found)])

    async def by_id(self, request: Request) -> Response:
        generation = self._backend.generation
        found = await self._by_id(request)
        if is_known(request, found.schema):
            return not_modified(found.schema)
        body = content(found.schema)
        if "subject" in request.query_params:
            at = place(request.query_params["subject"], found)
            body.subject, body.version = at.subject, at.version
        if parameters.flag(request, "fetchMaxId"):
            body.max_id = found.max_id
            return answer(200, body)
        made = answer(200, body, immutable_headers(found.schema))
        if not request.url.query:
            self._backend.cache_id(request.scope["path"], made, generation)
        return made

    async def by_id_schema(self, request: Request) -> Response:
        version = (await self._by_id(request)).schema
        return not_modified(version) if is_known(request, version) else text(version, immutable_headers(version))

    async def by_id_subjects(self, request: Request) -> Response:
        places = self._places(request, await self._by_id(request))
        return answer(200, parameters.page(request, list(dict.fromkeys(place.subject for place in places))))

    async def by_id_versions(self, request: Request) -> Response:
        places = self._places(request, await self._by_id(request))
        found = [PlaceAnswer(subject=one.subject, version=one.version) for one in places]
        return answer(200, parameters.page(request, found))

    async def by_guid(self, request: Request) -> Response:
        version = (await self._by_guid(request)).schema
        if is_known(request, version):
            return not_modified(version)
        return answer(200, content(version), immutable_headers(version))

    async def by_guid_ids(self, request: Request) -> Response:
        found = await self._by_guid(request)
        return answer(200, [IdAnswer(context=".", id=found.schema.schema_id)])

    async def types(self, _: Request) -> Response:
        return answer(200, TYPES)

    # -- compatibility, config, mode -----------------------------------------------------------------------

    async def check(self, request: Request) -> Response:
        version = parameters.version(request) if "version" in request.path_params else None
        body = await parameters.body(request, SchemaBody)
        command = commands.CheckSchema(**_schema_fields(request, body), version=version)
        checked = await self._backend.ask(command, replies.SchemaChecked)
        answered = CheckAnswer(checked.is_compatible)
        if parameters.flag(request, "verbose"):
            answered.messages = [
                f"version {found.version}: {difference.kind} at {difference.path or '/'}: {difference.message}"
                + (f" Counterexample: {difference.counterexample}" if difference.counterexample else "")
                for found in checked.differences
                for difference in found.differences
            ]
        return answer(200, answered)

    async def config(self, request: Request) -> Response:
        name = parameters.subject(request) if "subject" in request.path_params else None
        command = commands.RequestSchemaConfig(
            subject=name, default_to_global=parameters.flag(request, "defaultToGlobal")
        )
        found = await self._backend.ask(command, replies.SchemaConfigFound)
        return answer(200, shown_config(found.config))

    async def set_config(self, request: Request) -> Response:
        name = parameters.subject(request) if "subject" in request.path_params else None
        body = await parameters.body(request, ConfigBody)
        command = commands.ConfigureSchemas(subject=name, config=body.to_config(), unset=body.unset())
        found = await self._backend.ask(command, replies.SchemaConfigFound)
        return answer(200, ConfigChanged(**msgspec.structs.asdict(found.config)), touched_headers(found.touched))

    async def delete_config(self, request: Request) -> Response:
        name = parameters.subject(request) if "subject" in request.path_params else None
        found = await self._backend.ask(commands.ConfigureSchemas(subject=name), replies.SchemaConfigFound)
        return answer(200, shown_config(found.config), touched_headers(found.touched))

    async def mode(self, request: Request) -> Response:
        name = parameters.subject(request) if "subject" in request.path_params else None
        command = commands.RequestSchemaMode(
            subject=name, default_to_global=parameters.flag(request, "defaultToGlobal")
        )
        found = await self._backend.ask(command, replies.SchemaModeFound)
        return answer(200, ModeAnswer(mode=found.mode))

    async def set_mode(self, request: Request) -> Response:
        name = parameters.subject(request) if "subject" in request.path_params else None
        body = await parameters.body(request, ModeBody)
        command = commands.SetSchemaMode(subject=name, mode=body.checked(), force=parameters.flag(request, "force"))
        found = await self._backend.ask(command, replies.SchemaModeFound)
        return answer(200, ModeAnswer(mode=found.mode))

    async def delete_mode(self, request: Request) -> Response:
        name = parameters.subject(request) if "subject" in request.path_params else None
        found = await self._backend.ask(commands.SetSchemaMode(subject=name), replies.SchemaModeFound)
        return answer(200, ModeAnswer(mode=found.mode))

    # -- about ---------------------------------------------------------------------------------------------

    async def contexts(self, request: Request) -> Response:
        return answer(200, parameters.page(request, ["."]))

    async def metadata_id(self, _: Request) -> Response:
        scope = {"path": [], "clusters": {"schema-registry-cluster": "messagehub"}}
        return answer(200, ClusterAnswer(id="", scope=scope))

    async def metadata_version(self, _: Request) -> Response:
        return answer(200, BuildAnswer(version=__version__, commit_id=""))

    # -- inside --------------------------------------------------------------------------------------------

    async def _of_newest(self, request: Request, body: SchemaBody) -> SchemaBody:
        """Complete a body without a text, which changes metadata or rules only, with the text of the newest version."""
        command = commands.RequestSchema(subject=parameters.subject(request))
        try:
            newest = (await self._backend.ask(command, replies.SchemaFound)).schema
        except SubjectNotFound:
            return body
        references = msgspec.convert(newest.references, list[ReferenceBody], from_attributes=True)
        return msgspec.structs.replace(
            body, schema=newest.schema, schema_type=newest.schema_type, references=references
        )

    async def _version(self, request: Request) -> replies.SchemaFound:
        command = commands.RequestSchema(
            subject=parameters.subject(request),
            version=parameters.version(request),
            deleted=parameters.flag(request, "deleted"),
        )
        return await self._found(request, command)

    async def _found(self, request: Request, command: commands.RequestSchema) -> replies.SchemaFound:
        """Return a schema in the form that `format` asks for."""
        wanted = request.query_params.get("format", "")
        if not wanted:
            return await self._backend.ask(command, replies.SchemaFound)
        command.resolve = True
        found = await self._backend.ask(command, replies.SchemaFound)
        schema = found.schema
        made = await run_in_threadpool(formatted, schema.schema_type, schema.schema, found.reference_texts, wanted)
        return msgspec.structs.replace(found, schema=msgspec.structs.replace(schema, schema=made))

    async def _delete(self, request: Request, version: int | None) -> replies.SchemaDeleted:
        command = commands.DeleteSchema(
            subject=parameters.subject(request),
            version=version,
            permanent=parameters.flag(request, "permanent"),
            force=parameters.flag(request, "force"),
        )
        return await self._backend.ask(command, replies.SchemaDeleted)

    async def _by_id(self, request: Request) -> replies.SchemaFound:
        """Find a schema by id. `subject` says in whose context to look."""
        command = commands.RequestSchema(schema_id=parameters.schema_id(request))
        if request.query_params.get("subject", "").removeprefix(":.:").startswith(":."):
            raise HttpError(404, 40403, f"no schema has id {command.schema_id} in that context")
        return await self._found(request, command)

    async def _by_guid(self, request: Request) -> replies.SchemaFound:
        return await self._found(request, commands.RequestSchema(guid=request.path_params["guid"][:256]))

    def _places(self, request: Request, found: replies.SchemaFound) -> list[replies.Place]:
        wanted = request.query_params.get("subject")
        with_deleted = parameters.flag(request, "deleted")
        return [
            place
            for place in found.places
            if (with_deleted or not place.is_deleted) and wanted in (None, place.subject)
        ]

    async def _export(self, prefix: str, deleted: commands.Deleted) -> list[SchemaVersion]:
        found: list[SchemaVersion] = []
        after: str | None = ""
        while after is not None:
            command = commands.ExportSchemas(prefix=prefix, deleted=deleted, after=after)
            page = await self._backend.ask(command, replies.SchemaExport)
            found += page.schemas
            after = page.next
        return found


def _schema_fields(request: Request, body: SchemaBody) -> dict[str, Any]:
    normalize = parameters.flag(request, "normalize")
    return schema_fields(parameters.subject(request), body, normalize=normalize)


def schema_fields(subject: str, body: SchemaBody, *, normalize: bool) -> dict[str, Any]:
    """Return the fields that every command with a schema takes. The API's default type is AVRO."""
    schema_type = (body.schema_type or "AVRO").upper()
    if body.schema is None:
        raise HttpError(422, 42201, "Invalid schema: the body has no schema")
    if schema_type not in TYPES:
        raise HttpError(422, 42201, f"Invalid schema type {schema_type[:40]!r}: one of {', '.join(TYPES)}")
    references = [msgspec.structs.asdict(reference) for reference in body.references or []]
    try:
        return {
            "subject": subject,
            "schema": body.schema,
            "schema_type": schema_type,
            "references": msgspec.convert(references, list[Reference]),
            "normalize": normalize,
        }
    except msgspec.ValidationError as error:
        raise HttpError(422, 42201, f"Invalid schema: a reference does not fit: {error}") from None


def registration(subject: str, body: SchemaBody, *, normalize: bool) -> commands.RegisterSchema:
    """Return the command that registers a schema. An id or version that is not positive counts as none."""
    return commands.RegisterSchema(
        **schema_fields(subject, body, normalize=normalize),
        metadata=body.metadata,
        rule_set=body.rule_set,
        schema_id=body.id if (body.id or 0) > 0 else None,
        version=body.version if (body.version or 0) > 0 else None,
    )
