"""Who may ask for what: one table over all commands, used by the broker and by HTTP alike.

A right is written `ROLE` or `ROLE:PATTERN`. Patterns are matched against names of channels, subjects, topics and
services: `*` stands for exactly one dot-separated component, a last `>` for one or more; none is the same as `>`.

Rule 1: what no right allows is refused; a command without a rule is refused to everybody but `admin`.
Rule 2: `admin` may do everything; every other role may also look (`observe`) at what it may work with.
Rule 3: what concerns no name in particular, such as a list of everything, takes a right to everything.
Rule 4: a list of the names below a prefix takes a right to names there, and shows those alone (`leave_out`).
"""

import re
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_args

from registry import commands, names, replies
from registry.errors import Forbidden, InvalidName, InvalidRequest
from registry.events import subject_of

Role = Literal["observe", "consume", "produce", "schema-admin", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
EVERYTHING = ">"
PATTERN_RULE = "dot-separated components; `*` for any one component, `>` at the end for one or more"
_PATTERN = re.compile(r"(?:>|(?:\*|[^.*>\s]{1,64})(?:\.(?:\*|[^.*>\s]{1,64}))*(?:\.>)?)\Z")
_GIVING: dict[Role, tuple[Role, ...]] = {role: (role, "admin") for role in ROLES} | {"observe": ROLES}
"""Which roles include one."""


class Right(NamedTuple):
    role: Role
    pattern: str
    matches: Callable[[str], object]

    @classmethod
    def parse(cls, text: str) -> "Right":
        role, _, pattern = text.partition(":")
        if role not in ROLES:
            raise InvalidRequest(f"{text[:100]!r} is no right: ROLE or ROLE:PATTERN, with a role of {', '.join(ROLES)}")
        pattern = pattern or EVERYTHING
        if len(pattern) > names.MAX_LENGTH or not _PATTERN.match(pattern):
            shown = pattern[: names.MAX_LENGTH]
            raise InvalidName(f"pattern {shown!r} breaks the rule: {PATTERN_RULE}", name=shown, rule=PATTERN_RULE)
        if role == "admin" and pattern != EVERYTHING:
            raise InvalidRequest("admin is a right to everything and takes no pattern")
        parts = ["[^.]+" if c == "*" else ".+" if c == ">" else re.escape(c) for c in pattern.split(".")]
        return cls(role, pattern, re.compile(r"\.".join(parts), re.DOTALL).fullmatch)

    def __str__(self) -> str:
        return self.role if self.pattern == EVERYTHING else f"{self.role}:{self.pattern}"

    def covers(self, prefix: str) -> bool:
        """Return whether the pattern matches every name with this beginning."""
        return self.pattern == EVERYTHING or (self.pattern.endswith(".>") and self._begins(prefix))

    @property
    def beginning(self) -> str:
        """How all names that it matches begin, up to a dot: `sensors.` for `sensors.*`; empty for one or for all."""
        return re.split("[*>]", self.pattern)[0] if re.search("[*>]", self.pattern) else ""

    def _begins(self, prefix: str) -> bool:
        """Return whether names with this beginning match for sure: by the literal part of `a.b.>`, not beyond a `*`."""
        return "*" not in self.pattern and prefix.startswith(self.pattern[:-1])


class Rights:
    """The rights of one peer."""

    def __init__(self, rights: Iterable[Right]) -> None:
        self.all = tuple(rights)
        self.is_admin = any(right.role == "admin" for right in self.all)
        self._roles = _including(self.all)
        self._roles_everywhere = _including(right for right in self.all if right.pattern == EVERYTHING)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "Rights":
        return cls(Right.parse(text) for text in texts)

    def has(self, role: Role) -> bool:
        """Return whether there is a right of this role, for some name at least."""
        return role in self._roles

    def allows(self, role: Role, name: str) -> bool:
        return any(right.role in _GIVING[role] and right.matches(name) for right in self.all)

    def allows_prefix(self, role: Role, prefix: str) -> bool:
        return any(right.role in _GIVING[role] and right.covers(prefix) for right in self.all)

    def beginnings(self, role: Role) -> list[str]:
        """Return the beginnings of names that may be listed."""
        return sorted({right.beginning for right in self.all if right.role in _GIVING[role]} - {""})

    def allows_list(self, role: Role, prefix: str) -> bool:
        """Return whether names with this beginning may be listed, if those that no right matches are left out."""
        return self.allows_prefix(role, prefix) or any(map(prefix.startswith, self.beginnings(role)))

    def allows_everything(self, role: Role) -> bool:
        return role in self._roles_everywhere

    def __str__(self) -> str:
        return " ".join(map(str, self.all)) or "nothing"


def _including(rights: Iterable[Right]) -> frozenset[Role]:
    given = {right.role for right in rights}
    return frozenset(role for role in ROLES if given.intersection(_GIVING[role]))


ADMIN = Rights.parse(["admin"])
NOTHING = Rights([])


class Rule(NamedTuple):
    """`name` and `prefix` are fields of the command; the first that is given is what a pattern is matched against.

    No role: whoever was let in may ask. No field: a right to everything is needed.
    """

    role: Role | None
    name: str = ""
    prefix: str = ""


RULES: dict[type[commands.Command], Rule] = {
    commands.Hello: Rule(None),
    commands.Ping: Rule(None),
    commands.Heartbeat: Rule(None),
    commands.RegisterProducer: Rule("produce", "channel"),
    commands.UnregisterProducer: Rule("produce", "channel"),
    commands.RegisterConsumer: Rule("consume", "channel"),
    commands.UnregisterConsumer: Rule("consume", "channel"),
    commands.Discover: Rule("observe", "channel"),
    commands.DescribeChannel: Rule("observe", "channel"),
    commands.ListConsumers: Rule("observe", "channel"),
    commands.ListChannels: Rule("observe", prefix="prefix"),
    commands.RequestSnapshot: Rule("observe", "channel"),
    commands.CreateChannel: Rule("admin"),
    commands.DestroyChannel: Rule("admin"),
    commands.EvictMember: Rule("admin"),
    commands.CheckTable: Rule("produce", "channel"),
    commands.RegisterTable: Rule("produce", "channel"),
    commands.DropTable: Rule("produce", "channel"),
    commands.ListTables: Rule("observe", prefix="prefix"),
    commands.RegisterSchema: Rule("schema-admin", "subject"),
    commands.DeleteSchema: Rule("schema-admin", "subject"),
    commands.ConfigureSchemas: Rule("schema-admin", "subject"),
    commands.SetSchemaMode: Rule("schema-admin", "subject"),
    commands.LookUpSchema: Rule("observe", "subject"),
    commands.CheckSchema: Rule("observe", "subject"),
    commands.RequestSchema: Rule("observe", "subject"),
    commands.ListSchemas: Rule("observe", "subject", "prefix"),
    commands.ExportSchemas: Rule("observe", prefix="prefix"),
    commands.RequestSchemaConfig: Rule("observe", "subject"),
    commands.RequestSchemaMode: Rule("observe", "subject"),
    commands.KeepTopic: Rule("admin"),
    commands.DeleteTopic: Rule("admin"),
    commands.ListTopics: Rule("observe", "pattern"),
    commands.DescribeTopic: Rule("observe", "topic"),
    commands.PublishMessages: Rule("produce", "topic"),
    commands.ReadTopic: Rule("consume", "topic"),
    commands.OpenPosition: Rule("consume", "topic"),
    commands.FetchMessages: Rule("consume", "topic"),
    commands.AcknowledgeMessages: Rule("consume", "topic"),
    commands.ReturnMessages: Rule("consume", "topic"),
    commands.ListPositions: Rule("observe", "topic"),
    commands.DescribePosition: Rule("observe", "topic"),
    commands.ResetPosition: Rule("admin"),
    commands.DeletePosition: Rule("admin"),
    commands.RegisterSubscriber: Rule("consume", "patterns"),
    commands.UnregisterSubscriber: Rule(None),  # whoever knows the member and its lease
    commands.ReportSubscriptions: Rule(None),
    commands.ListSubscriptions: Rule("observe", "topic"),
    commands.TraceMessage: Rule("observe", "topic"),
    commands.RegisterWorker: Rule("produce", "address"),
    commands.UnregisterWorker: Rule(None),  # whoever knows the worker and its lease
    commands.ResolveService: Rule("consume", "address"),
    commands.ListServices: Rule("observe", prefix="prefix"),
    commands.RemovePool: Rule("admin"),
    commands.ReportDeadLetter: Rule(None),
    commands.ListDeadLetters: Rule("admin"),  # payloads are in them
    commands.RemoveDeadLetters: Rule("admin"),
    commands.ListHosts: Rule("observe"),
    commands.RequestGateway: Rule("consume", "channel"),
    commands.Stats: Rule("observe"),
    commands.Trace: Rule("observe"),
}


def check(rights: Rights, command: commands.Command, *, places: Iterable[str] = ()) -> None:
    """Raise Forbidden unless the rights allow the command.

    `places` are the subjects that hold what a schema is asked for by content (id, GUID, hash): one of them will do.
    """
    if rights.is_admin:
        return
    rule = RULES.get(type(command), Rule("admin"))
    if isinstance(command, commands.RequestGateway) and command.changes:
        rule = RULES[commands.DropTable]
    if rule.role is None:
        return
    if isinstance(command, commands.RequestSchema) and asks_by_content(command):
        is_allowed = rights.allows_everything("observe") or any(rights.allows("observe", place) for place in places)
        name = None
    else:
        name = _name(command, rule)
        is_allowed = _allows(rights, rule, command, name)
    if not is_allowed:
        raise _forbidden(rights, command, rule.role, name)
    if isinstance(command, commands.SchemaText):
        for reference in command.references:
            if not rights.allows("observe", reference.subject):
                raise _forbidden(rights, command, "observe", reference.subject)


def asks_by_content(command: commands.RequestSchema) -> bool:
    """Return whether a command asks by id, GUID or hash, which decide before a subject beside them does."""
    return command.schema_id is not None or command.guid is not None or command.schema_hash is not None


def _name(command: commands.Command, rule: Rule) -> str | None:
    """Return the name as the registry will read it, since channels are asked for by display names too."""
    name: str | None = getattr(command, rule.name) if rule.name else None
    if isinstance(command, commands.RegisterSubscriber):
        return ", ".join(command.patterns)
    return names.logical(name) if name is not None and rule.name == "channel" else name


def _allows(rights: Rights, rule: Rule, command: commands.Command, name: str | None) -> bool:
    assert rule.role is not None
    if isinstance(command, commands.ListTopics):
        return _allows_topics(rights, rule.role, command.pattern)
    if isinstance(command, commands.RegisterSubscriber):
        return all(_allows_topics(rights, rule.role, pattern) for pattern in command.patterns)
    if name is not None:
        return rights.allows(rule.role, name)
    if rule.prefix:
        return rights.allows_list(rule.role, getattr(command, rule.prefix))
    return rights.allows_everything(rule.role)


def _allows_topics(rights: Rights, role: Role, pattern: str) -> bool:
    wildcard = re.search("[*>]", pattern)
    return rights.allows_prefix(role, pattern[: wildcard.start()]) if wildcard else rights.allows(role, pattern)


def _forbidden(rights: Rights, command: commands.Command, role: Role, name: str | None) -> Forbidden:
    kind = str(command.__struct_config__.tag)
    on = "everything" if name is None else repr(name[: names.MAX_LENGTH])
    below = rights.beginnings(role) if name is None and RULES.get(type(command), Rule("admin")).prefix else []
    instead = f"; list one of these prefixes: {', '.join(below)}" if below else ""
    return Forbidden(
        f"{kind} takes the right {role} on {on}; this peer has: {rights}{instead}",
        request=kind,
        role=role,
        name=name if name is None else name[: names.MAX_LENGTH],
    )


LISTS: dict[type[replies.Reply], tuple[str, Callable[[Any], str]]] = {
    replies.ChannelList: ("channels", attrgetter("channel")),
    replies.TableList: ("tables", attrgetter("channel")),
    replies.ServiceList: ("services", attrgetter("address")),
    replies.SchemaList: ("subjects", str),
    replies.SchemaExport: ("schemas", attrgetter("subject")),
}
"""Where the entries of a list are, and the name of one."""


def leave_out(rights: Rights, command: commands.Command, reply: replies.Reply) -> None:
    """Remove the names from a list that the peer may not see. `next` may still be one of them."""
    rule = RULES.get(type(command), Rule("admin"))
    listed = LISTS.get(type(reply))
    if rights.is_admin or listed is None or rule.role is None or not rule.prefix:
        return
    role = rule.role
    if not rights.allows_prefix(role, getattr(command, rule.prefix)):
        field, name_of = listed
        setattr(reply, field, [entry for entry in getattr(reply, field) if rights.allows(role, name_of(entry))])


def about(command: commands.Command) -> str | None:
    """Return the name that a command is about, for the audit log and for traces."""
    for field in _ABOUT[type(command)]:
        name: str | None = getattr(command, field)
        if name:
            return name
    return None


def member(command: commands.Command) -> str | None:
    """Return the member that a command is about, for the audit log: who registers, leaves or is evicted."""
    ids = (getattr(command, kind, None) for kind in ("producer_id", "consumer_id", "worker_id", "member_id"))
    return next(filter(None, ids), None)


_ABOUT = {
    kind: tuple(field for field in ("channel", "subject", "topic", "address") if field in kind.__struct_fields__)
    for kind in RULES
}
"""The fields that say what a command is about: it is asked for every request."""


def may_see(rights: Rights, topic: str) -> bool:
    """Return whether a peer may see the events of a topic.

    `channel/NAME/` is about one name, a shorter one about all below.

    Events of services hold the keys that open workers: they are for those who may ask them.
    """
    kind, _, rest = topic.partition("/")
    role: Role = "consume" if "service".startswith(kind) else "observe"
    if rights.allows_everything(role):
        return True
    if kind not in ("channel", "schema", "topic", "service"):
        return False
    name, is_whole, _ = rest.partition("/")
    name = subject_of(name) if kind == "schema" else name
    return rights.allows(role, name) if is_whole else rights.allows_prefix(role, name)
