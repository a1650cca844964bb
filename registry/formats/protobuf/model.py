"""A .proto file as values. Text and descriptors both become this, and everything else works on it."""

import msgspec

SCALARS = frozenset(
    {"double", "float", "bool", "string", "bytes", "int32", "int64", "uint32", "uint64", "sint32", "sint64"}
    | {"fixed32", "fixed64", "sfixed32", "sfixed64"}
)
MAX_FIELD_NUMBER = (1 << 29) - 1
MAX_ENUM_NUMBER = (1 << 31) - 1
INTERNAL_NUMBERS = range(19000, 20000)


class Option(msgspec.Struct, frozen=True, order=True):
    """`value` is canonical source text.

    A custom option of which only the number is known is called `(50001)` and has its bytes in hex.
    """

    name: str
    value: str


class Field(msgspec.Struct):
    """`key` is set for maps, whose `type` is that of the values.

    A named type is as written until linking makes it absolute: `.pkg.Name`.
    """

    name: str
    number: int
    type: str
    label: str = ""
    key: str = ""
    oneof: str = ""
    is_group: bool = False
    options: list[Option] = []


class EnumValue(msgspec.Struct):
    name: str
    number: int
    options: list[Option] = []


class Enum(msgspec.Struct, tag=True):
    name: str
    values: list[EnumValue] = []
    reserved: list[tuple[int, int]] = []
    reserved_names: list[str] = []
    options: list[Option] = []


class Oneof(msgspec.Struct):
    name: str
    options: list[Option] = []


class Extend(msgspec.Struct):
    extendee: str
    fields: list[Field] = []


class ExtensionRange(msgspec.Struct):
    start: int
    end: int
    options: list[Option] = []


class Message(msgspec.Struct, tag=True):
    """Ranges include both ends. Of a well-known type (`is_known`) only the name is at hand."""

    name: str
    fields: list[Field] = []
    oneofs: list[Oneof] = []
    messages: list["Message"] = []
    enums: list[Enum] = []
    extends: list[Extend] = []
    extension_ranges: list[ExtensionRange] = []
    reserved: list[tuple[int, int]] = []
    reserved_names: list[str] = []
    options: list[Option] = []
    is_known: bool = False


class Method(msgspec.Struct):
    name: str
    input: str
    output: str
    client_streaming: bool = False
    server_streaming: bool = False
    options: list[Option] = []


class ServiceType(msgspec.Struct):
    name: str
    methods: list[Method] = []
    options: list[Option] = []


class Import(msgspec.Struct, frozen=True, order=True):
    name: str
    modifier: str = ""


class File(msgspec.Struct):
    """`syntax` is proto2, proto3 or editions; `edition` is the year of the latter."""

    syntax: str = "proto2"
    edition: str = ""
    package: str = ""
    imports: list[Import] = []
    options: list[Option] = []
    messages: list[Message] = []
    enums: list[Enum] = []
    extends: list[Extend] = []
    services: list[ServiceType] = []


def option_of(options: list[Option], name: str) -> str:
    return next((option.value for option in options if option.name == name), "")


def json_name(name: str) -> str:
    """The lowerCamelCase that protoc gives a field which names none itself."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
