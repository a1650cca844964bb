"""The table of rights: complete, and as strict as it says."""

from typing import get_args

import pytest

from messagehub.admin import api
from messagehub.admin.confluent import paths as confluent_paths
from messagehub.admin.endpoints import Endpoint
from registry import commands, replies
from registry.access import ADMIN, NOTHING, ROLES, RULES, Right, Rights, Role, check, leave_out, may_see
from registry.errors import Forbidden, InvalidName, InvalidRequest
from registry.events import schema_topic
from registry.records import DeadLetter, Reference, RetainedMessage

ENDPOINTS = [*confluent_paths.ENDPOINTS, *api.ENDPOINTS]
OPEN_COMMANDS = {
    *(commands.Hello, commands.Ping, commands.Heartbeat),
    commands.UnregisterSubscriber,  # takes the subscriber's own lease
    commands.UnregisterWorker,  # takes the worker's own lease
    commands.ReportDeadLetter,  # tells, and shows nothing
    commands.ReportSubscriptions,  # tells, and shows nothing
}
LETTER = DeadLetter(address="c", code="X", reason="x", form="send")
OPEN_ROUTES = {
    "/api/v1/me",
    "/",
    "/healthz",
    "/readyz",
    "/schemas/types",
    "/contexts",
    "/v1/metadata/id",
    "/v1/metadata/version",
}


def test_every_command_has_a_rule_and_every_rule_names_fields_of_its_command() -> None:
    assert set(RULES) == set(get_args(commands.AnyCommand))
    for kind, rule in RULES.items():
        assert {rule.name, rule.prefix} - {""} <= set(kind.__struct_fields__), kind


def test_what_changes_something_takes_more_than_looking() -> None:
    for kind, rule in RULES.items():
        assert (rule.role is None) is (kind in OPEN_COMMANDS), kind
        if kind.writes:
            assert rule.role not in (None, "observe"), kind


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_every_route_takes_a_role_unless_it_tells_nothing(endpoint: Endpoint) -> None:
    assert endpoint.role in (None, *ROLES)
    assert (endpoint.role is None) is (endpoint.path in OPEN_ROUTES)
    if endpoint.writes:
        assert endpoint.role not in (None, "observe")


@pytest.mark.parametrize("kind", list(RULES), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("role", ROLES)
def test_only_its_role_admin_and_for_looking_any_role_may(kind: type[commands.Command], role: Role) -> None:
    needed = RULES[kind].role
    is_allowed = needed is None or role in (needed, "admin") or needed == "observe"
    command = made(kind)
    if is_allowed:
        check(Rights.parse([role]), command)
    else:
        with pytest.raises(Forbidden) as refused:
            check(Rights.parse([role]), command)
        assert refused.value.details["role"] == needed
    if needed is not None:
        with pytest.raises(Forbidden):
            check(NOTHING, command)
    check(ADMIN, command)


@pytest.mark.parametrize("kind", [kind for kind, rule in RULES.items() if rule.name], ids=lambda kind: kind.__name__)
def test_a_pattern_limits_each_command_to_its_names(kind: type[commands.Command]) -> None:
    rule = RULES[kind]
    assert rule.role is not None
    rights = Rights.parse([f"{rule.role}:sensors.*"])
    check(rights, made(kind, **{rule.name: "sensors.a"}))
    for other in ("sensors", "sensors.a.b", "other", "xsensors.a", "other | pid:1-1"):
        with pytest.raises(Forbidden):
            check(rights, made(kind, **{rule.name: other}))


def test_a_display_name_is_checked_as_the_channel_that_it_means() -> None:
    rights = Rights.parse(["observe:secret"])
    check(rights, commands.Discover(channel="secret | pid:1-0"))
    with pytest.raises(Forbidden):
        check(Rights.parse(["observe:open"]), commands.Discover(channel="secret | pid:1-0"))


def test_lists_take_a_right_to_all_that_they_would_show() -> None:
    rights = Rights.parse(["observe:sensors.>"])
    check(rights, commands.ListChannels(prefix="sensors."))
    check(rights, commands.ListSchemas(prefix="sensors.a"))
    for command in (commands.ListChannels(prefix="sensors"), commands.ListChannels(), commands.RequestSnapshot()):
        with pytest.raises(Forbidden):
            check(rights, command)
    for pattern in ("sensors", "sensors.a", "*", "*.a"):
        with pytest.raises(Forbidden):
            check(Rights.parse([f"observe:{pattern}"]), commands.ListChannels(prefix=pattern.strip("*")))


def test_a_list_below_ones_own_prefix_shows_what_one_may_see() -> None:
    rights = Rights.parse(["produce:sensors.*", "consume:cameras.*.raw"])
    listed = ["cameras.a.raw", "sensors.a", "sensors.a.b", "sensors.b"]
    reply = replies.SchemaList(subject=None, subjects=listed, versions=[], next=None, revision=1)
    command = commands.ListSchemas(prefix="sensors.")
    check(rights, command)
    leave_out(rights, command, reply)
    assert reply.subjects == ["cameras.a.raw", "sensors.a", "sensors.b"]
    with pytest.raises(Forbidden, match=r"list one of these prefixes: cameras\., sensors\."):
        check(rights, commands.ListChannels())


def test_a_schema_by_id_takes_a_right_to_one_of_its_subjects_whatever_subject_is_named_beside_it() -> None:
    rights = Rights.parse(["observe:mine"])
    asked = commands.RequestSchema(schema_id=1, subject="mine")
    with pytest.raises(Forbidden):
        check(rights, asked, places=["theirs"])
    check(rights, asked, places=["theirs", "mine"])


def test_a_schema_may_refer_only_to_what_its_author_may_see() -> None:
    reference = Reference(name="x", subject="theirs", version=1)
    with pytest.raises(Forbidden, match="theirs"):
        check(
            Rights.parse(["schema-admin:mine"]),
            commands.RegisterSchema(subject="mine", schema={}, references=[reference]),
        )


@pytest.mark.parametrize(
    ("topic", "is_seen"),
    [
        ("channel/sensors.a/", True),
        ("schema/sensors.a/", True),
        ("channel/sensors.a.b/", False),
        ("channel/other/", False),
        ("channel/sensors.a", False),
        ("channel/", False),
        ("topic/sensors.a/", True),
        ("odd/sensors.a/", False),
    ],
)
def test_events_are_seen_of_names_that_may_be_observed(topic: str, is_seen: bool) -> None:
    assert may_see(Rights.parse(["consume:sensors.*"]), topic) is is_seen
    assert may_see(Rights.parse(["observe"]), topic)


def test_a_right_to_one_subject_shows_nothing_of_those_whose_names_begin_so() -> None:
    rights = Rights.parse(["observe:orders"])
    for subject in ("orders/secret", "orders/", "orders%2Fsecret"):
        topic = schema_topic(subject)
        assert not topic.startswith(schema_topic("orders"))
        assert not may_see(rights, topic)
        assert may_see(Rights.parse([f"observe:{subject}"]), topic)


@pytest.mark.parametrize("topic", ["", "s", "service/", "service/pool:sensors.a/"])
def test_events_of_services_hold_keys_and_are_for_those_who_may_ask_them(topic: str) -> None:
    assert not may_see(Rights.parse(["observe"]), topic)
    assert may_see(Rights.parse(["consume"]), topic)
    assert may_see(Rights.parse(["consume:pool:sensors.*"]), topic) is (topic == "service/pool:sensors.a/")


def test_a_pattern_of_topics_takes_a_right_to_all_that_it_matches() -> None:
    check(Rights.parse(["produce:orders.*"]), commands.ListTopics(pattern="orders.eu"))
    check(Rights.parse(["consume:orders.>"]), commands.ListTopics(pattern="orders.*"))
    for pattern in ("orders.>", "orders.*", ">"):
        with pytest.raises(Forbidden):
            check(Rights.parse(["produce:orders.*"]), commands.ListTopics(pattern=pattern))


@pytest.mark.parametrize("text", ["", "root", "admin:x", "produce:a..b", "produce:a.>.b", "produce:*a", "produce:a b"])
def test_what_is_no_right_is_refused(text: str) -> None:
    with pytest.raises((InvalidRequest, InvalidName)):
        Right.parse(text)


def made(kind: type[commands.Command], **given: str) -> commands.Command:
    """The command with a text in every field that it must have."""
    fields: dict[str, object] = {"channel": "c", "consumer_id": "r", "schema_hash": "h", "lease": "l", "subject": "c"}
    fields |= {
        "schema": {},
        "topic": "c",
        "pattern": "c",
        "address": "c",
        "worker_id": "w",
        "endpoint": "e",
        "key": "k",
        "generation": 1,
        "shm_name": "/t",
    }
    fields |= {"position": "p", "incarnation": 1, "offsets": [1], "member_id": "m", "kind": "position", "name": "n"}
    fields["patterns"] = [given.pop("patterns", "c")]
    fields |= {"messages": [RetainedMessage(payload="")], "letter": LETTER, "numbers": [1], "host": "h", **given}
    names = set(kind.__struct_fields__) & (
        {*fields} if RULES[kind].name else {"lease", "worker_id", "member_id", "letter", "numbers"}
    )
    if kind in (commands.KeepTopic, commands.DeleteTopic):
        names = {"topic"}
    if kind in (commands.ResetPosition, commands.DeletePosition):
        fields["offset"] = 1
        names = {"topic", "position", "offset"} & set(kind.__struct_fields__)
    if kind is commands.RemovePool:
        names = {"address"}
    if kind in (commands.CreateChannel, commands.DestroyChannel):
        names = {"channel"}
    if kind is commands.EvictMember:
        names = {"channel", "member_id"}
    if kind is commands.RequestSchema:
        names = {"subject"}
    return kind(**{name: fields[name] for name in names})
