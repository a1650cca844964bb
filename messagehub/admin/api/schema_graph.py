"""Subjects, versions and what refers to what: /api/v1/schema-graph."""

from typing import Any

import msgspec

from messagehub.admin.api.parameters import Flag
from messagehub.admin.authentication import caller
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.routes import Operations
from messagehub.admin.shared_answers import SharedAnswers
from registry import commands, replies
from registry.records import Reference, SchemaType

MAX_SUBJECTS = 2000
KEPT_SECONDS = 60.0
operations = Operations()
_answers: SharedAnswers[Any] = SharedAnswers(seconds=KEPT_SECONDS)


class VersionNode(msgspec.Struct, kw_only=True):
    version: int
    id: int
    schema_type: SchemaType
    deleted: bool
    references: list[Reference]


class SubjectNode(msgspec.Struct):
    subject: str
    versions: list[VersionNode]


class GraphAnswer(msgspec.Struct):
    """`hidden`: whether there are more subjects than are shown."""

    subjects: list[SubjectNode]
    hidden: bool


@operations.add("GET", "/api/v1/schema-graph", "observe")
async def schema_graph(backend: BrokerClient, prefix: str = "", deleted: Flag = False) -> GraphAnswer:
    """Subjects with their versions, and what each version refers to."""
    command = commands.ExportSchemas(prefix=prefix, deleted="with" if deleted else "without")
    backend.callers.check(command)

    async def make() -> GraphAnswer:
        return await _graph(backend, command)

    rights = str(caller.get().rights)
    return await _answers.get((backend.generation, prefix, deleted, rights), make)  # type: ignore[no-any-return]


async def _graph(backend: BrokerClient, command: commands.ExportSchemas) -> GraphAnswer:
    found: dict[str, SubjectNode] = {}
    after: str | None = ""
    while after is not None and len(found) < MAX_SUBJECTS:
        page = await backend.ask(msgspec.structs.replace(command, id=None, after=after), replies.SchemaExport)
        for schema in page.schemas:
            node = found.setdefault(schema.subject, SubjectNode(schema.subject, []))
            node.versions.append(
                VersionNode(
                    version=schema.version,
                    id=schema.schema_id,
                    schema_type=schema.schema_type,
                    deleted=schema.is_deleted,
                    references=schema.references,
                )
            )
        after = page.next
    return GraphAnswer(list(found.values()), after is not None)
