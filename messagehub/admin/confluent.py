"""The Confluent Schema Registry REST API, so that existing clients notice nothing."""

from typing import Any
from urllib.parse import quote

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from messagehub.admin import parameters
from messagehub.admin.backend import Backend
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import HttpError, answer
from messagehub.admin.parameters import ConfigBody, ModeBody, ReferenceBody, SchemaBody
from messagehub.admin.schema_formats import formatted
from messagehub.errors import SubjectNotFound
from messagehub.version import __version__
from registry import commands, replies
from registry.records import Reference, SchemaConfig, SchemaVersion

TYPES = ["JSON", "PROTOBUF", "AVRO", "ARROW"]
MAX_NAMED = 20
LEVELS_LEGACY = "compatibilityLevel"


class Confluent:
    def __init__(self, backend: Backend) -> None:
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
        asked = (request.scope["path"], request.scope["query_string"], await parameters.raw_body(request))
        body = parameters.decoded(asked[2], SchemaBody)
        command = commands.LookUpSchema(
            **schema_fields(request, body),
            metadata=body.metadata,
            rule_set=body.rule_set,
            deleted=parameters.flag(request, "deleted"),
        )
        found = await self._backend.ask(command, replies.SchemaFound)
        made = answer(200, shown(found.schema))
        self._backend.keep_look_up(asked, made, generation)
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
        reply = await self._backend.ask(registration(request, body), replies.SchemaRegistered)
        return answer(200, {"id": reply.schema_id, "version": reply.version, "guid": reply.guid})

    async def version(self, request: Request) -> Response:
        generation = self._backend.generation
        made = answer(200, shown((await self._version(request)).schema))
        if request.path_params["version"] == "latest" and not request.url.query:
            self._backend.keep_latest(request.scope["path"], made, generation)
        return made

    async def version_schema(self, request: Request) -> Response:
        return text((await self._version(request)).schema)

    async def referenced_by(self, request: Request) -> Response:
        command = commands.RequestSchema(
            subject=parameters.subject(request), version=parameters.version(request), deleted=True, referrers=True
        )
        return answer(200, (await self._backend.ask(command, replies.SchemaFound)).referrers)

    async def delete_version(self, request: Request) -> Response:
        reply = await self._delete(request, parameters.version(request))
        return answer(200, reply.versions[0], touched_headers(reply.touched))

    async def metadata(self, request: Request) -> Response:
        wanted = dict(zip(request.query_params.getlist("key"), request.query_params.getlist("value"), strict=False))
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
        if etag(found.schema) in request.headers.get("if-none-match", "") and not request.url.query:
            return Response(status_code=304, headers=immutable_headers(found.schema))
        body = content(found.schema)
        if "subject" in request.query_params:
            body = place(request.query_params["subject"], found) | body
        if parameters.flag(request, "fetchMaxId"):
            return answer(200, body | {"maxId": found.max_id})
        made = answer(200, body, immutable_headers(found.schema))
        if not request.url.query:
            self._backend.keep_id(request.scope["path"], made, generation)
        return made

    async def by_id_schema(self, request: Request) -> Response:
        return text((await self._by_id(request)).schema)

    async def by_id_subjects(self, request: Request) -> Response:
        places = self._places(request, await self._by_id(request))
        return answer(200, list(dict.fromkeys(place.subject for place in places)))

    async def by_id_versions(self, request: Request) -> Response:
        places = self._places(request, await self._by_id(request))
        return answer(200, [{"subject": place.subject, "version": place.version} for place in places])

    async def by_guid(self, request: Request) -> Response:
        return answer(200, content((await self._by_guid(request)).schema))

    async def by_guid_ids(self, request: Request) -> Response:
        found = await self._by_guid(request)
        return answer(200, [{"context": ".", "id": found.schema.schema_id}])

    async def types(self, _: Request) -> Response:
        return answer(200, TYPES)

    # -- compatibility, config, mode -----------------------------------------------------------------------

    async def check(self, request: Request) -> Response:
        version = parameters.version(request) if "version" in request.path_params else None
        command = commands.CheckSchema(**await self._schema(request), version=version)
        checked = await self._backend.ask(command, replies.SchemaChecked)
        answered: dict[str, Any] = {"is_compatible": checked.is_compatible}
        if parameters.flag(request, "verbose"):
            answered["messages"] = [
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
        return answer(200, shown_config(found.config, LEVELS_LEGACY))

    async def set_config(self, request: Request) -> Response:
        name = parameters.subject(request) if "subject" in request.path_params else None
        body = await parameters.body(request, ConfigBody)
        command = commands.ConfigureSchemas(subject=name, config=body.to_config())
        found = await self._backend.ask(command, replies.SchemaConfigFound)
        return answer(200, shown_config(found.config, "compatibility"), touched_headers(found.touched))

    async def delete_config(self, request: Request) -> Response:
        name = parameters.subject(request) if "subject" in request.path_params else None
        found = await self._backend.ask(commands.ConfigureSchemas(subject=name), replies.SchemaConfigFound)
        return answer(200, shown_config(found.config, LEVELS_LEGACY), touched_headers(found.touched))

    async def mode(self, request: Request) -> Response:
        name = parameters.subject(request) if "subject" in request.path_params else None
        command = commands.RequestSchemaMode(
            subject=name, default_to_global=parameters.flag(request, "defaultToGlobal")
        )
        found = await self._backend.ask(command, replies.SchemaModeFound)
        return answer(200, {"mode": found.mode})

    async def set_mode(self, request: Request) -> Response:
        name = parameters.subject(request) if "subject" in request.path_params else None
        body = await parameters.body(request, ModeBody)
        command = commands.SetSchemaMode(subject=name, mode=body.checked(), force=parameters.flag(request, "force"))
        found = await self._backend.ask(command, replies.SchemaModeFound)
        return answer(200, {"mode": found.mode})

    async def delete_mode(self, request: Request) -> Response:
        name = parameters.subject(request) if "subject" in request.path_params else None
        found = await self._backend.ask(commands.SetSchemaMode(subject=name), replies.SchemaModeFound)
        return answer(200, {"mode": found.mode})

    # -- about ---------------------------------------------------------------------------------------------

    async def contexts(self, _: Request) -> Response:
        return answer(200, ["."])

    async def metadata_id(self, _: Request) -> Response:
        return answer(200, {"id": "", "scope": {"path": [], "clusters": {"schema-registry-cluster": "messagehub"}}})

    async def metadata_version(self, _: Request) -> Response:
        return answer(200, {"version": __version__, "commitId": ""})

    # -- inside --------------------------------------------------------------------------------------------

    async def _of_newest(self, request: Request, body: SchemaBody) -> SchemaBody:
        """Without a text, only metadata or rules change: the text is that of the newest version."""
        command = commands.RequestSchema(subject=parameters.subject(request))
        try:
            newest = (await self._backend.ask(command, replies.SchemaFound)).schema
        except SubjectNotFound:
            return body
        references = msgspec.convert(newest.references, list[ReferenceBody], from_attributes=True)
        return msgspec.structs.replace(
            body, schema=newest.schema, schema_type=newest.schema_type, references=references
        )

    async def _schema(self, request: Request) -> dict[str, Any]:
        return schema_fields(request, await parameters.body(request, SchemaBody))

    async def _version(self, request: Request) -> replies.SchemaFound:
        command = commands.RequestSchema(
            subject=parameters.subject(request),
            version=parameters.version(request),
            deleted=parameters.flag(request, "deleted"),
        )
        return await self._found(request, command)

    async def _found(self, request: Request, command: commands.RequestSchema) -> replies.SchemaFound:
        """A schema in the form that `format` asks for."""
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
        """`subject` says in whose context to look: in the default one, an id means the same to all."""
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


def schema_fields(request: Request, body: SchemaBody, subject: str | None = None) -> dict[str, Any]:
    """What every command with a schema takes; the API's default type is AVRO."""
    schema_type = (body.schema_type or "AVRO").upper()
    if body.schema is None:
        raise HttpError(422, 42201, "Invalid schema: the body has no schema")
    if schema_type not in TYPES:
        raise HttpError(422, 42201, f"Invalid schema type {schema_type[:40]!r}: one of {', '.join(TYPES)}")
    references = [msgspec.structs.asdict(reference) for reference in body.references or []]
    try:
        return {
            "subject": parameters.subject(request) if subject is None else subject,
            "schema": body.schema,
            "schema_type": schema_type,
            "references": msgspec.convert(references, list[Reference]),
            "normalize": parameters.flag(request, "normalize"),
        }
    except msgspec.ValidationError as error:
        raise HttpError(422, 42201, f"Invalid schema: a reference does not fit: {error}") from None


def registration(request: Request, body: SchemaBody, subject: str | None = None) -> commands.RegisterSchema:
    """An id or version that is not positive is none."""
    parameters.check_rule_set(body.rule_set)
    return commands.RegisterSchema(
        **schema_fields(request, body, subject),
        metadata=body.metadata,
        rule_set=body.rule_set,
        schema_id=body.id if (body.id or 0) > 0 else None,
        version=body.version if (body.version or 0) > 0 else None,
    )


def content(version: SchemaVersion) -> dict[str, Any]:
    """A schema without its place. AVRO and absent parts are left out, as the API's clients expect."""
    found: dict[str, Any] = {"schema": version.schema, "guid": version.guid}
    if version.schema_type != "AVRO":
        found["schemaType"] = version.schema_type
    if version.references:
        found["references"] = version.references
    if version.metadata is not None:
        found["metadata"] = version.metadata
    if version.rule_set is not None:
        found["ruleSet"] = version.rule_set
    return found


def shown(version: SchemaVersion) -> dict[str, Any]:
    place: dict[str, Any] = {"subject": version.subject, "version": version.version, "id": version.schema_id}
    return place | content(version) | ({"deleted": True} if version.is_deleted else {})


def shown_config(config: SchemaConfig, level_name: str) -> dict[str, Any]:
    names = {"compatibility": level_name, "compatibility_group": "compatibilityGroup"}
    fields = {name: value for name, value in msgspec.structs.asdict(config).items() if value is not None}
    return {names.get(name, _camel(name)): value for name, value in fields.items()}


def text(version: SchemaVersion) -> Response:
    return Response(version.schema.encode(), 200, None, parameters.BODY_TYPES[0])


def place(subject: str, found: replies.SchemaFound) -> dict[str, Any]:
    """Where that subject has the schema, or else the first that has it."""
    name = subject.removeprefix(":.:")
    own = [one for one in found.places if one.subject == name] or found.places
    return {"subject": own[0].subject, "version": own[0].version}


def touched_headers(touched: list[replies.TouchedMember]) -> dict[str, str] | None:
    """Who is attached now, where the API's answers have no room for it."""
    if not touched:
        return None
    named = ", ".join(f"{member.role} {quote(member.member_id)}" for member in touched[:MAX_NAMED])
    more = len(touched) - MAX_NAMED
    return {"x-messagehub-touched": f"{named}, {more} more" if more > 0 else named}


def immutable_headers(version: SchemaVersion) -> dict[str, str]:
    return {"etag": etag(version), "cache-control": "max-age=60"}


def etag(version: SchemaVersion) -> str:
    """Of the content: an import may give the id of what was deleted to another schema."""
    return f'"{version.guid}"'


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


_DELETED = ("deleted", "deletedOnly", "deleted_only")
_PAGE = ("offset", "limit")
_CHECK = ("normalize", "verbose")
_S, _V = "/subjects/{subject}", "/subjects/{subject}/versions/{version}"
ENDPOINTS = (
    Endpoint("GET", "/", Confluent.root, None),
    Endpoint("POST", "/", Confluent.root, None),
    Endpoint("GET", "/subjects", Confluent.subjects, "observe", query=("subjectPrefix", *_DELETED, *_PAGE)),
    Endpoint("POST", _S, Confluent.look_up, "observe", query=("normalize", "deleted"), body=SchemaBody),
    Endpoint("DELETE", _S, Confluent.delete_subject, "schema-admin", writes=True, query=("permanent", "force")),
    Endpoint("GET", f"{_S}/versions", Confluent.versions, "observe", query=(*_DELETED, *_PAGE)),
    Endpoint(
        "POST", f"{_S}/versions", Confluent.register, "schema-admin", writes=True, query=("normalize",), body=SchemaBody
    ),
    Endpoint("GET", f"{_S}/metadata", Confluent.metadata, "observe", query=("key", "value", "deleted")),
    Endpoint("GET", _V, Confluent.version, "observe", query=("deleted", "format")),
    Endpoint("DELETE", _V, Confluent.delete_version, "schema-admin", writes=True, query=("permanent", "force")),
    Endpoint("GET", f"{_V}/schema", Confluent.version_schema, "observe", query=("deleted", "format")),
    Endpoint("GET", f"{_V}/referencedby", Confluent.referenced_by, "observe"),
    Endpoint("GET", "/schemas", Confluent.schemas, "observe", query=("subjectPrefix", "deleted", "latestOnly", *_PAGE)),
    Endpoint("GET", "/schemas/types", Confluent.types, None),
    Endpoint(
        "GET",
        "/schemas/ids/{id}",
        Confluent.by_id,
        "observe",
        query=("subject", "format", "fetchMaxId"),
        is_immutable=True,
    ),
    Endpoint("GET", "/schemas/ids/{id}/schema", Confluent.by_id_schema, "observe", query=("subject", "format")),
    Endpoint("GET", "/schemas/ids/{id}/subjects", Confluent.by_id_subjects, "observe", query=("subject", "deleted")),
    Endpoint("GET", "/schemas/ids/{id}/versions", Confluent.by_id_versions, "observe", query=("subject", "deleted")),
    Endpoint("GET", "/schemas/guids/{guid}", Confluent.by_guid, "observe", query=("format",)),
    Endpoint("GET", "/schemas/guids/{guid}/ids", Confluent.by_guid_ids, "observe"),
    Endpoint("POST", f"/compatibility{_S}/versions", Confluent.check, "observe", query=_CHECK, body=SchemaBody),
    Endpoint("POST", f"/compatibility{_V}", Confluent.check, "observe", query=_CHECK, body=SchemaBody),
    Endpoint("GET", "/config", Confluent.config, "observe"),
    Endpoint("PUT", "/config", Confluent.set_config, "schema-admin", writes=True, body=ConfigBody),
    Endpoint("DELETE", "/config", Confluent.delete_config, "schema-admin", writes=True),
    Endpoint("GET", "/config/{subject}", Confluent.config, "observe", query=("defaultToGlobal",)),
    Endpoint("PUT", "/config/{subject}", Confluent.set_config, "schema-admin", writes=True, body=ConfigBody),
    Endpoint("DELETE", "/config/{subject}", Confluent.delete_config, "schema-admin", writes=True),
    Endpoint("GET", "/mode", Confluent.mode, "observe"),
    Endpoint("PUT", "/mode", Confluent.set_mode, "schema-admin", writes=True, query=("force",), body=ModeBody),
    Endpoint("DELETE", "/mode", Confluent.delete_mode, "schema-admin", writes=True),
    Endpoint("GET", "/mode/{subject}", Confluent.mode, "observe", query=("defaultToGlobal",)),
    Endpoint(
        "PUT", "/mode/{subject}", Confluent.set_mode, "schema-admin", writes=True, query=("force",), body=ModeBody
    ),
    Endpoint("DELETE", "/mode/{subject}", Confluent.delete_mode, "schema-admin", writes=True),
    Endpoint("GET", "/contexts", Confluent.contexts, None),
    Endpoint("GET", "/v1/metadata/id", Confluent.metadata_id, None),
    Endpoint("GET", "/v1/metadata/version", Confluent.metadata_version, None),
)
