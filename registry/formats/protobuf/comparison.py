"""Protobuf compatibility: the rules of the Confluent registry, which are those of the wire format and more.

Rule 1: fields are matched by number, wherever in the message they stand; their names are free.
Rule 2: types may change within a group that shares its encoding (see SCALAR_GROUPS; enums are numbers).
Rule 3: a numeric field may not turn from single to repeated or back, because repeated numbers are packed;
        strings, bytes and messages may.
Rule 4: fields that could be set together before may not come to share a oneof. A member of a oneof may not go while
        the oneof's name or another of its members stays, under whatever oneof: a reader would take an unknown
        choice for none.
Rule 5: messages are matched by name and may not vanish, nor may the package change, because data names
        its message. Fields, enums and values may come and go; required fields may not.
"""

from collections import defaultdict

from registry.formats.differences import BudgetExceeded, Difference
from registry.formats.protobuf.linking import Linked, LinkedDefinition
from registry.formats.protobuf.model import SCALARS, Enum, Field, Message, option_of

MAX_STEPS = 200_000
SCALAR_GROUPS = {
    kind: group
    for group, kinds in {
        "varint number": "int32 int64 uint32 uint64 bool",
        "zigzag number": "sint32 sint64",
        "string or bytes": "string bytes",
        "32-bit number": "fixed32 sfixed32",
        "64-bit number": "fixed64 sfixed64",
        "float": "float",
        "double": "double",
    }.items()
    for kind in kinds.split()
}


class Comparison:
    def __init__(self, old: Linked, new: Linked) -> None:
        self.old = old
        self.new = new
        self.found: list[Difference] = []
        self.seen: set[tuple[int, int]] = set()
        self.queue: list[tuple[Message, Message, str]] = []
        self.steps = 0

    def differences(self) -> list[Difference]:
        old, new = self.old.file, self.new.file
        if old.package != new.package:
            message = f'The package "{old.package}" became "{new.package}", so no message keeps its name.'
            self._add("PACKAGE_CHANGED", "/", message)
        self._types(old.messages, new.messages, "")
        self._extensions()
        while self.queue:
            self._message(*self.queue.pop(0))
        return self.found

    def _add(self, kind: str, path: str, message: str) -> None:
        self.found.append(Difference(kind, path, message))

    def _types(self, old: list[Message], new: list[Message], path: str) -> None:
        by_name = {message.name: message for message in new}
        for message in old:
            here = f"{path}/{message.name}"
            if message.name in by_name:
                self._enqueue(message, by_name[message.name], here)
            else:
                self._add("MESSAGE_REMOVED", here, f'The message "{message.name}" is gone.')

    def _enqueue(self, old: Message, new: Message, path: str) -> None:
        """Each pair once, which also ends recursive types."""
        pair = (id(old), id(new))
        if pair not in self.seen and not old.is_known and not new.is_known:
            self.seen.add(pair)
            self.queue.append((old, new, path))

    def _message(self, old: Message, new: Message, path: str) -> None:
        self.steps += 1 + len(old.fields) + len(new.fields)
        if self.steps > MAX_STEPS:
            raise BudgetExceeded("comparison steps", MAX_STEPS)
        before = {field.number: field for field in old.fields}
        after = {field.number: field for field in new.fields}
        kept_oneofs = {oneof.name for oneof in new.oneofs}
        kept_oneofs |= {field.oneof for number, field in before.items() if field.oneof and number in after}
        for number, field in before.items():
            here = f"{path}/{number}"
            if number in after:
                self._field(field, after[number], here)
            elif _is_required(field):
                self._add("REQUIRED_FIELD_REMOVED", here, f'The required field "{field.name}" is gone.')
            elif field.oneof in kept_oneofs:
                message = f'The field "{field.name}" is gone from the oneof "{field.oneof}".'
                self._add("ONEOF_FIELD_REMOVED", f"{path}/{field.oneof}/{number}", message)
        for number, field in after.items():
            if number not in before and _is_required(field):
                message = f'The required field "{field.name}" is new, so old messages lack it.'
                self._add("REQUIRED_FIELD_ADDED", f"{path}/{number}", message)
        self._oneofs(before, new, path)
        self._types(old.messages, new.messages, path)

    def _oneofs(self, before: dict[int, Field], new: Message, path: str) -> None:
        members: defaultdict[str, list[Field]] = defaultdict(list)
        for field in new.fields:
            if field.oneof and field.number in before:
                members[field.oneof].append(before[field.number])
        for name, met in members.items():
            origins = {field.oneof or field.number for field in met}
            if len(origins) < 2:
                continue
            names = ", ".join(f'"{field.name}"' for field in met)
            message = f'The fields {names} could be set together and now share the oneof "{name}".'
            was_oneof = any(field.oneof for field in met)
            kind = "FIELD_MOVED_TO_EXISTING_ONEOF" if was_oneof else "MULTIPLE_FIELDS_MOVED_TO_ONEOF"
            self._add(kind, f"{path}/{name}", message)

    def _extensions(self) -> None:
        before, after = _extensions(self.old), _extensions(self.new)
        for key, field in before.items():
            if key in after:
                self._field(field, after[key], f"/{key[0]}/{key[1]}")

    def _field(self, old: Field, new: Field, path: str) -> None:
        if _is_required(new) and not _is_required(old):
            message = f'The field "{new.name}" is now required, but old messages may lack it.'
            self._add("FIELD_BECAME_REQUIRED", path, message)
        if old.key and new.key:
            self._type(old.key, new.key, old, new, path)
        elif bool(old.key) != bool(new.key):
            message = f'The field "{new.name}" changed between a map and another kind of field.'
            self._add("FIELD_KIND_CHANGED", path, message)
            return
        same = self._type(old.type, new.type, old, new, path)
        was_repeated, is_repeated = old.label == "repeated", new.label == "repeated"
        if same and was_repeated != is_repeated and self._is_packable(old.type, self.old):
            message = f'The numeric field "{new.name}" changed between single and repeated.'
            self._add("FIELD_NUMERIC_LABEL_CHANGED", path, message)

    def _type(self, old_type: str, new_type: str, old: Field, new: Field, path: str) -> bool:
        """Whether both types are encoded alike; if not, the difference is noted."""
        before, after = self._group(old_type, self.old), self._group(new_type, self.new)
        was_message, is_message = not before, not after
        change = f'The field "{new.name}" changed from {old_type} to {new_type}'
        if was_message != is_message:
            self._add("FIELD_KIND_CHANGED", path, f"{change}, between a message and a scalar.")
        elif not was_message:
            if before == after:
                return True
            self._add("FIELD_SCALAR_KIND_CHANGED", path, f"{change}, which is encoded in another way.")
        elif _is_delimited(old, self.old) != _is_delimited(new, self.new):
            self._add("FIELD_KIND_CHANGED", path, f"{change}, between a group and a message.")
        else:
            return self._message_type(old_type, new_type, path, change)
        return False

    def _message_type(self, old_type: str, new_type: str, path: str, change: str) -> bool:
        was, now = self.old.types[old_type[1:]], self.new.types[new_type[1:]]
        if old_type != new_type and (
            _is_known(was) or _is_known(now) or _local_name(old_type, was) != _local_name(new_type, now)
        ):
            self._add("FIELD_NAMED_TYPE_CHANGED", path, f"{change}, which is another message.")
            return False
        if isinstance(was.type, Message) and isinstance(now.type, Message):
            self._enqueue(was.type, now.type, "/" + _local_name(new_type, now).replace(".", "/"))
        return True

    def _group(self, kind: str, linked: Linked) -> str:
        """The encoding that a scalar or enum shares with others; empty for messages."""
        if kind in SCALARS:
            return SCALAR_GROUPS[kind]
        is_enum = isinstance(linked.types[kind[1:]].type, Enum)
        return SCALAR_GROUPS["int32"] if is_enum else ""

    def _is_packable(self, kind: str, linked: Linked) -> bool:
        return self._group(kind, linked) not in ("", SCALAR_GROUPS["string"])


def _is_required(field: Field) -> bool:
    return field.label == "required" or option_of(field.options, "features.field_presence") == "LEGACY_REQUIRED"


def _is_delimited(field: Field, linked: Linked) -> bool:
    """Groups, and what editions encode like them, are delimited by marks instead of a length."""
    feature = "features.message_encoding"
    chosen = option_of(field.options, feature) or option_of(linked.file.options, feature)
    return field.is_group or (chosen == "DELIMITED" and not field.key)


def _is_known(definition: LinkedDefinition) -> bool:
    return isinstance(definition.type, Message) and definition.type.is_known


def _local_name(name: str, definition: LinkedDefinition) -> str:
    return name[1:].removeprefix(definition.package + ".") if definition.package else name[1:]


def _extensions(linked: Linked) -> dict[tuple[str, int], Field]:
    extends = list(linked.file.extends)
    queue = list(linked.file.messages)
    while queue:
        message = queue.pop()
        extends += message.extends
        queue += message.messages
    return {(extend.extendee[1:], field.number): field for extend in extends for field in extend.fields}
