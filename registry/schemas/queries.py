"""Questions about the catalogue that need no check: one version, a list, an export."""

from collections.abc import Callable

from registry import commands, replies
from registry.errors import InvalidRequest
from registry.records import SchemaVersion
from registry.schemas.catalog import SchemaCatalog, Subject
from registry.schemas.checks import CheckResult
from registry.schemas.usage import Decision, Decisions


class SchemaQueries:
    def __init__(self, catalog: SchemaCatalog) -> None:
        self._catalog = catalog
        self.decisions: Decisions = {
            commands.RequestSchema: self._request,
            commands.ListSchemas: self._list,
            commands.ExportSchemas: self._export,
        }

    def _request(self, command: commands.RequestSchema, _: CheckResult | None) -> Decision:
        catalog = self._catalog
        if command.schema_id is not None:
            found = catalog.by_id(command.schema_id, f"id {command.schema_id}")
        elif command.guid is not None:
            found = catalog.by_guid(command.guid)
        elif command.schema_hash is not None:
            found = catalog.by_hash(command.schema_hash)
        elif command.subject is not None:
            found = catalog.version(command.subject, command.version, "with" if command.deleted else "without")
        else:
            raise InvalidRequest("SCHEMA_REQUEST needs schema_id, guid, schema_hash or subject", field="subject")
        reply = found_reply(catalog, found)
        if command.resolve:
            reply.reference_texts = dict(catalog.texts(found.references))
        if command.referrers:
            among: commands.Deleted = "with" if command.deleted_referrers else "without"
            reply.referrers = sorted({v.schema_id for v in catalog.referrers(found.subject, found.version, among)})
        return reply, []

    def _list(self, command: commands.ListSchemas, _: CheckResult | None) -> Decision:
        catalog = self._catalog
        if command.subject is None:
            names, following = catalog.page(
                prefix=command.prefix,
                wanted=_IS_LISTED[command.deleted],
                after=command.after,
                limit=command.limit,
            )
            reply = replies.SchemaList(subject=None, subjects=names, versions=[], next=following, revision=0)
            return reply, []
        subject = catalog.subject(command.subject, "without" if command.deleted == "without" else "with")
        versions = [
            replies.SchemaVersionSummary(
                version=version.version,
                schema_id=version.schema_id,
                schema_type=version.schema_type,
                schema_hash=version.schema_hash,
                is_deleted=version.is_deleted,
            )
            for version in subject.visible(command.deleted)
        ]
        reply = replies.SchemaList(
            subject=command.subject,
            subjects=[command.subject],
            versions=versions,
            next=None,
            revision=catalog.revision(command.subject),
        )
        return reply, []

    def _export(self, command: commands.ExportSchemas, _: CheckResult | None) -> Decision:
        names, following = self._catalog.page(
            prefix=command.prefix,
            wanted=lambda subject: bool(subject.visible(command.deleted)),
            after=command.after,
            limit=command.limit,
        )
        schemas = [v for name in names for v in self._catalog.subject(name, command.deleted).visible(command.deleted)]
        return replies.SchemaExport(schemas=schemas, next=following, revision=0), []


def found_reply(catalog: SchemaCatalog, version: SchemaVersion) -> replies.SchemaFound:
    places = catalog.places(version.schema_id)
    return replies.SchemaFound(schema=version, places=places, max_id=catalog.last_id)


_IS_LISTED: dict[commands.Deleted, Callable[[Subject], bool]] = {
    "without": lambda subject: bool(subject.visible()),
    "with": lambda subject: bool(subject.versions),
    "only": lambda subject: not subject.visible(),
}
