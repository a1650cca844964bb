"""An id that was given can be read with all that it refers to, until it is permanently deleted itself."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from registry import commands, replies
from registry.commands import RegisterSchema
from registry.errors import InvalidSchema, ReferenceExists, Refusal
from registry.records import Reference, SchemaConfig
from registry.registry import Registry
from tests.registry.driving import Driver
from tests.registry.test_schema_catalog import OBJECT, register

A = [{"name": "a.json", "subject": "a", "version": 1}]


@pytest.fixture
def hub(hub: Driver) -> Driver:
    """`b` refers to a/1, and both are softly deleted."""
    hub.ask("SCHEMA_CONFIG_SET", config={"compatibility": "NONE"})
    register(hub, "a", OBJECT)
    register(hub, "b", {"$ref": "a.json"}, references=A)
    hub.refused(ReferenceExists, "SCHEMA_DELETE", subject="a")
    hub.ask("SCHEMA_DELETE", subject="b")
    hub.ask("SCHEMA_DELETE", subject="a")
    return hub


def read(hub: Driver, schema_id: int) -> dict[str, str]:
    texts: dict[str, str] = hub.ask("SCHEMA_REQUEST", schema_id=schema_id, resolve=True).reference_texts
    return texts


@pytest.mark.parametrize("which", [{}, {"version": 1}])
def test_what_a_softly_deleted_schema_refers_to_is_not_deleted_permanently(hub: Driver, which: Any) -> None:
    refusal = hub.refused(ReferenceExists, "SCHEMA_DELETE", subject="a", permanent=True, **which)
    assert refusal.message.startswith("One or more references exist to the schema {subject=a,version=1}")
    assert refusal.details["referrers"] == [{"subject": "b", "version": 1}]
    assert read(hub, 2) == {"a.json": '{"type":"object"}'}
    hub.ask("SCHEMA_DELETE", subject="b", permanent=True)
    assert hub.ask("SCHEMA_DELETE", subject="a", permanent=True).versions == [1]


def test_what_is_referred_to_stays_when_its_content_is_registered_again(hub: Driver) -> None:
    assert register(hub, "a", OBJECT) == (2, 1)
    assert read(hub, 2) == {"a.json": '{"type":"object"}'}
    hub.ask("SCHEMA_DELETE", subject="b", permanent=True)
    hub.ask("SCHEMA_DELETE", subject="a")
    assert register(hub, "a", OBJECT) == (3, 1)
    assert [v.version for v in hub.ask("SCHEMA_LIST_REQUEST", subject="a", deleted="with").versions] == [3]


def test_import_mode_does_not_clear_what_is_referred_to(hub: Driver) -> None:
    hub.refused(ReferenceExists, "SCHEMA_MODE_SET", subject="a", mode="IMPORT")
    assert read(hub, 2)
    hub.ask("SCHEMA_MODE_SET", mode="IMPORT")
    assert hub.ask("SCHEMA_LIST_REQUEST", deleted="with").subjects == []


def test_subject_that_refers_to_itself_can_be_deleted(hub: Driver) -> None:
    register(hub, "s", OBJECT)
    own = [{"name": "s.json", "subject": "s", "version": 1}]
    register(hub, "s", {"$ref": "s.json"}, references=own)
    hub.refused(ReferenceExists, "SCHEMA_DELETE", subject="s", version=1)
    for permanent in (False, True):
        assert hub.ask("SCHEMA_DELETE", subject="s", permanent=permanent).versions == [1, 2]


def test_referrers_that_are_softly_deleted_are_told_when_asked_for(hub: Driver) -> None:
    asked = {"subject": "a", "version": 1, "deleted": True, "referrers": True}
    assert hub.ask("SCHEMA_REQUEST", **asked).referrers == []
    assert hub.ask("SCHEMA_REQUEST", **asked, deleted_referrers=True).referrers == [2]


def test_softly_deleted_schema_is_found_by_its_content_with_its_references(hub: Driver) -> None:
    asked = {"subject": "b", "schema": {"$ref": "a.json"}, "references": A}
    found = hub.ask("SCHEMA_LOOKUP_REQUEST", **asked, deleted=True).schema
    assert (found.schema_id, found.is_deleted) == (2, True)
    hub.refused(InvalidSchema, "SCHEMA_REGISTER", **asked)


def test_known_text_is_known_again_when_its_kept_predecessor_is_deleted(hub: Driver) -> None:
    register(hub, "a", OBJECT)
    hub.ask("SCHEMA_DELETE", subject="b", permanent=True)
    hub.ask("SCHEMA_DELETE", subject="a", version=1, permanent=True)
    assert hub.registry.needed_check(RegisterSchema(subject="a", schema=OBJECT)) is None
    assert register(hub, "a", OBJECT) == (2, 1)


def test_of_two_versions_with_one_name_the_nearer_is_meant(hub: Driver) -> None:
    register(hub, "near", {"title": "near"})
    register(hub, "far", {"title": "far"})
    far = [{"name": "x.json", "subject": "far", "version": 1}]
    register(hub, "between", {"$ref": "x.json"}, references=far)
    near = {"name": "x.json", "subject": "near", "version": 1}
    between = {"name": "between.json", "subject": "between", "version": 1}
    _, schema_id = register(hub, "s", {"$ref": "x.json"}, references=[near, between])
    assert read(hub, schema_id)["x.json"] == '{"title":"near"}'


subjects = st.sampled_from(["a", "b"])
titles = st.integers(0, 1)
numbers = st.integers(1, 3)
Targets = list[tuple[str, int]]


class AnyHistory(RuleBasedStateMachine):
    """The model knows by the replies alone which place has which id, and reads every id after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.ask(commands.ConfigureSchemas(config=SchemaConfig(compatibility="NONE")))
        self.places: dict[tuple[str, int], int] = {}
        self.contents: dict[int, tuple[str, dict[str, str]]] = {}

    def ask(self, command: commands.Command) -> Any:
        try:
            return self.registry.apply(command, now=1.0).reply
        except Refusal:
            return None

    def served(self, schema_id: int) -> tuple[str, dict[str, str]]:
        reply = self.ask(commands.RequestSchema(schema_id=schema_id, resolve=True))
        assert isinstance(reply, replies.SchemaFound), f"id {schema_id} was given and cannot be read"
        return reply.schema.schema, reply.reference_texts

    def targets(self, data: st.DataObject) -> Targets:
        """Versions to refer to, or the newest of their subject."""
        present = sorted(self.places)
        one = st.sampled_from(present).flatmap(lambda place: st.sampled_from([place, (place[0], -1)]))
        return data.draw(st.lists(one, max_size=2, unique_by=lambda target: target[0])) if present else []

    @rule(subject=subjects, title=titles, data=st.data())
    def register(self, subject: str, title: int, data: st.DataObject) -> None:
        self.take(_registration(subject, title, self.targets(data)))

    @rule(subject=subjects, title=titles, schema_id=st.integers(1, 6), version=numbers, data=st.data())
    def import_(self, subject: str, title: int, schema_id: int, version: int, data: st.DataObject) -> None:
        self.ask(commands.SetSchemaMode(subject=subject, mode="IMPORT", force=True))
        command = _registration(subject, title, self.targets(data))
        command.schema_id, command.version = schema_id, version
        self.take(command)
        self.ask(commands.SetSchemaMode(subject=subject))

    def take(self, command: commands.RegisterSchema) -> None:
        reply = self.ask(command)
        if reply is None:
            return
        self.places[reply.subject, reply.version] = reply.schema_id
        self.contents.setdefault(reply.schema_id, self.served(reply.schema_id))
        listed = self.ask(commands.ListSchemas(subject=reply.subject, deleted="with"))
        present = {(reply.subject, version.version) for version in listed.versions}
        for place in [place for place in self.places if place[0] == reply.subject and place not in present]:
            assert self.places.pop(place) == reply.schema_id, "only the same content takes a version's place"

    @precondition(lambda self: self.places)
    @rule(data=st.data(), is_whole=st.booleans(), permanent=st.booleans())
    def delete(self, data: st.DataObject, is_whole: bool, permanent: bool) -> None:
        subject, number = data.draw(st.sampled_from(sorted(self.places)))
        version = None if is_whole else number
        reply = self.ask(commands.DeleteSchema(subject=subject, version=version, permanent=permanent))
        if reply is not None and permanent:
            self.gone((subject, number) for number in reply.versions)

    @rule(subject=st.one_of(st.none(), subjects))
    def clear_for_import(self, subject: str | None) -> None:
        if self.ask(commands.SetSchemaMode(subject=subject, mode="IMPORT")) is not None:
            self.ask(commands.SetSchemaMode(subject=subject))
            self.gone([place for place in self.places if subject in (None, place[0])])

    @rule()
    def restart(self) -> None:
        saved = self.registry.schemas
        self.registry = Registry()
        self.registry.schemas.restore(
            saved.every(), last_id=saved.last_id, configs=saved.configs, modes=saved.modes, revision=1
        )

    @invariant()
    def every_id_is_served_with_all_that_it_refers_to(self) -> None:
        for schema_id in set(self.places.values()):
            assert self.served(schema_id) == self.contents[schema_id]

    def gone(self, places: Iterable[tuple[str, int]]) -> None:
        for place in places:
            self.places.pop(place, None)
        self.contents = {schema_id: self.contents[schema_id] for schema_id in self.places.values()}


def _registration(subject: str, title: int, refers_to: Targets) -> commands.RegisterSchema:
    references = [Reference(name=f"{name}.json", subject=name, version=version) for name, version in refers_to]
    return commands.RegisterSchema(
        subject=subject,
        schema={"title": str(title), "allOf": [{"$ref": reference.name} for reference in references] or [True]},
        references=references,
    )


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(stateful_step_count=40, deadline=None)
