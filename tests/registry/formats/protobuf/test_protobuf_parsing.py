"""Protobuf parsing: what protoc refuses is refused, and one schema has one canonical text."""

import pytest

from registry.formats import protobuf
from registry.formats.differences import BudgetExceeded, MalformedSchema
from registry.formats.protobuf import tokens


def proto3(body: str) -> str:
    return f'syntax = "proto3"; {body}'


def message(fields: str) -> str:
    return proto3(f"message M {{ {fields} }}")


INVALID = [
    ("nothing at all", "", "defines nothing"),
    ("only a comment", "// to be written", "defines nothing"),
    ("an unclosed message", "message M {", "the end of the text"),
    ("an unclosed comment", "/* never", "unexpected"),
    ("an unclosed string", 'syntax = "proto3;', "unexpected"),
    ("a stray word", proto3("hello world;"), "unexpected 'hello'"),
    ("a missing semicolon", message("string a = 1"), "expected ';'"),
    ("a field without number", message("string a;"), "expected '='"),
    ("a field without name", message("string = 1;"), "a name"),
    ("an unknown syntax", 'syntax = "proto4";', "proto4"),
    ("an unknown edition", 'edition = "1999";', "1999"),
    ("syntax after the beginning", 'message M {} syntax = "proto3";', "unexpected 'syntax'"),
    ("two packages", proto3("package a; package b;"), "one package"),
    ("number zero", message("string a = 0;"), "not within 1"),
    ("a number beyond 2^29-1", message("string a = 536870912;"), "not within 1"),
    ("a number of endless length", message(f"string a = {'9' * 5000};"), "too large"),
    ("an octal number that is none", message("string a = 09;"), "octal"),
    ("a number that belongs to Protobuf", message("string a = 19500;"), "19000"),
    ("a number twice", message("string a = 1; string b = 1;"), "number 1"),
    ("a name twice", message("string a = 1; string a = 2;"), "defined twice"),
    ("a number twice through a oneof", message("string a = 1; oneof o { string b = 1; }"), "number 1"),
    ("a message twice", proto3("message M {} message M {}"), "defined twice"),
    ("an enum and a message of one name", proto3("message M {} enum M { A = 0; }"), "defined twice"),
    ("a value twice among siblings", proto3("enum E { A = 0; } enum F { A = 0; }"), "defined twice"),
    ("a JSON name twice", message("string a_b = 1; string aB = 2;"), "in JSON"),
    ("a reserved number", message("reserved 1 to 3; string a = 2;"), "reserved"),
    ("a reserved name", message('reserved "a"; string a = 2;'), "reserved"),
    ("reserved ranges that overlap", message("reserved 1 to 5, 3 to 9;"), "overlap"),
    ("a range backwards", message("reserved 5 to 1;"), "empty"),
    ("an unknown type", message("Nowhere a = 1;"), "Nowhere"),
    ("an absolute name does not look around", proto3("package p; message M { .M a = 1; }"), "M"),
    ("an enum without values", proto3("enum E {}"), "at least one value"),
    ("a proto3 enum begins at zero", proto3("enum E { A = 1; }"), "zero"),
    ("two values of one number", proto3("enum E { A = 0; B = 0; }"), "allow_alias"),
    ("a reserved value", proto3("enum E { reserved 1; A = 0; B = 1; }"), "reserved"),
    ("a value beyond 32 bits", proto3("enum E { A = 0; B = 2147483648; }"), "32 bits"),
    ("required in proto3", message("required string a = 1;"), "no required"),
    ("a group in proto3", message("optional group G = 1 {}"), "no groups"),
    ("a default in proto3", message("string a = 1 [default = 'x'];"), "no default"),
    ("extensions in proto3", message("extensions 100 to 200;"), "no extension"),
    ("no label in proto2", "message M { string a = 1; }", "optional, required or repeated"),
    ("a label in an edition", 'edition = "2023"; message M { optional string a = 1; }', "features"),
    ("a label in a oneof", message("oneof o { repeated string a = 1; }"), "no label"),
    ("an empty oneof", message("oneof o { }"), "no field"),
    ("a repeated map", message("repeated map<string, string> a = 1;"), "no label"),
    ("a map with a float key", message("map<float, string> a = 1;"), "key of a map"),
    ("a map with a message key", message("map<M, string> a = 1;"), "key of a map"),
    ("a map of maps", message("map<string, map<string, string>> a = 1;"), "expected '>'"),
    ("a group in lower case", "message M { optional group g = 1 {} }", "capital"),
    ("an extension of a kept number", "message M { extensions 5; optional int32 a = 5; }", "extensions"),
    ("an import that is missed", proto3('import "a.proto"; message M { A a = 1; }'), "references: a.proto"),
    (
        "an import twice",
        proto3('import "google/protobuf/any.proto"; import "google/protobuf/any.proto";'),
        "twice",
    ),
    (
        "a method of an enum",
        proto3("enum E { A = 0; } service S { rpc Do (E) returns (E); }"),
        "not a message",
    ),
    ("a flag that is no truth", message("string a = 1 [deprecated = maybe];"), "deprecated"),
    ("a text option that is a number", proto3("option java_package = 5; message M {}"), "java_package"),
    ("an unknown choice", proto3("option optimize_for = LUCK; message M {}"), "optimize_for"),
    ("an option twice", message("string a = 1 [deprecated = true, deprecated = true];"), "twice"),
    (
        "a feature that is none",
        'edition = "2023"; option features.enum_type = AJAR; message M {}',
        "enum_type",
    ),
    ("a default of another type", 'message M { optional int32 a = 1 [default = "x"]; }', "default"),
    ("a letter that is none of the language's", message("string ä = 1;"), "unexpected 'ä'"),
    ("half a character", "\ud800", "Unicode"),
    ("base64 of something else", "aGVsbG8gd29ybGQ=", "descriptor"),
    ("base64 that is none", "abcde", "base64"),
]


@pytest.mark.parametrize(("reason", "text", "words"), INVALID, ids=[case[0] for case in INVALID])
def test_invalid_schema_is_refused_with_a_reason(reason: str, text: str, words: str) -> None:
    with pytest.raises(MalformedSchema) as caught:
        protobuf.parse(text, {})
    assert words in str(caught.value)


def test_a_syntax_error_names_line_and_column() -> None:
    with pytest.raises(MalformedSchema) as caught:
        protobuf.parse('syntax = "proto3";\n\nmessage M {\n  string a 1;\n}', {})
    assert caught.value.path == "line 4, column 12"


DEEP = [
    ("messages", "message M {" * 5000 + "}" * 5000),
    ("options", "option (a) = " + "{ a: " * 5000 + "1" + "}" * 5000 + ";"),
    ("lists", "option (a) = { a: " + "[" * 5000 + "]" * 5000 + "};"),
]


@pytest.mark.parametrize(("reason", "text"), DEEP, ids=[case[0] for case in DEEP])
def test_deep_nesting_exceeds_a_named_budget(reason: str, text: str) -> None:
    with pytest.raises(BudgetExceeded, match="nesting"):
        protobuf.parse(text, {})


def test_huge_text_and_endless_imports_exceed_named_budgets() -> None:
    with pytest.raises(BudgetExceeded, match="bytes"):
        protobuf.parse(" " * (tokens.MAX_TEXT_BYTES + 1), {})
    chain = {f"{number}.proto": proto3(f'import "{number + 1}.proto";') for number in range(500)}
    with pytest.raises(BudgetExceeded, match="import depth"):
        protobuf.parse(proto3('import "0.proto";'), chain)


def test_imports_that_meet_themselves_are_refused() -> None:
    references = {"a.proto": proto3('import "b.proto";'), "b.proto": proto3('import "a.proto";')}
    with pytest.raises(MalformedSchema, match="imports itself"):
        protobuf.parse(proto3('import "a.proto";'), references)


VALID = [
    ("an import that nobody misses", proto3('import "a.proto"; message M { string a = 1 [(a.b) = 1]; }')),
    ("no syntax is proto2", "message M { optional string a = 1; }"),
    ("a byte order mark", "\ufeff" + message("")),
    ("comments anywhere", message("string /* x */ a // y\n = 1 [ /* z */ deprecated = true ];")),
    ("a hexadecimal number", message("string a = 0x10;")),
    ("keywords as names", message("string message = 1; int32 option = 2; bool reserved = 3; M package = 4;")),
    ("a type called group's name", message("message group {} .M.group a = 1;")),
    ("split strings", proto3('option java_package = "a" "b"; message M {}')),
    ("empty statements", proto3("; message M { ; string a = 1; ; } ;")),
    (
        "an aggregate option",
        proto3("option (a.b).c = { x: 1 y { z: 'q' } l: [1, 2]; [a.b/c.D]: < n: -inf > }; message M {}"),
    ),
    ("an unquoted reserved name", 'edition = "2023"; message M { reserved foo, bar; }'),
    ("visibility", 'edition = "2024"; export message M {} local enum E { A = 0; }'),
    ("negative and hexadecimal values", proto3("enum E { A = 0; B = -1; C = 0x7FFFFFFF; }")),
    ("a value called reserved", proto3("enum E { reserved = 0; }")),
    (
        "an extension of options",
        proto3('import "google/protobuf/descriptor.proto";extend google.protobuf.FieldOptions { string x = 50000; }'),
    ),
    (
        "streams",
        proto3("message M {} service S { rpc Do (stream M) returns (stream .M) { option deprecated = true; } }"),
    ),
    (
        "a message called stream",
        proto3("message stream {} service S { rpc Do (stream) returns (stream stream); }"),
    ),
    ("the scope nearest wins", proto3("message A { int32 x = 1; } message M { message A {} A a = 1; }")),
    (
        "extensions and groups",
        "message M { extensions 100 to max; repeated group G = 1 { optional int32 a = 1; } }"
        "extend M { optional M m = 100; }",
    ),
]


@pytest.mark.parametrize(("reason", "text"), VALID, ids=[case[0] for case in VALID])
def test_valid_schema_is_taken_and_its_canonical_text_is_stable(reason: str, text: str) -> None:
    canonical = protobuf.normalize(text, {})
    assert protobuf.normalize(canonical, {}) == canonical


ANY = 'import "google/protobuf/any.proto";'
EMPTY = 'import "google/protobuf/empty.proto";'
SAME = [
    ("white space and comments", "message M{string a=1;}", "// c\nmessage M {\n  string a = 1; // d\n}\n"),
    ("order of imports", f"{ANY} {EMPTY}", f"{EMPTY} {ANY}"),
    (
        "order of options",
        'option java_package = "a"; option go_package = "b"; message M {}',
        'option go_package = "b"; option java_package = "a"; message M {}',
    ),
    (
        "where options stand",
        'message M {} option java_package = "a";',
        'option java_package = "a"; message M {}',
    ),
    ("spelling of a type", "package p; message M { M a = 1; }", "package p; message M { .p.M a = 1; }"),
    (
        "quotes and escapes",
        "message M {} option java_package = 'a\\x62';",
        'message M {} option java_package = "ab";',
    ),
    ("spelling of a number", "message M { string a = 0x0a; }", "message M { string a = 10; }"),
    (
        "the usual JSON name",
        "message M { string a_b = 1; }",
        'message M { string a_b = 1 [json_name = "aB"]; }',
    ),
    (
        "order of reserved",
        "message M { reserved 5, 1 to 2; reserved 'b', 'a'; }",
        'message M { reserved 1 to 2; reserved 5; reserved "a", "b"; }',
    ),
]
DIFFERENT = [
    ("order of messages, which serializers number", "message A {} message B {}", "message B {} message A {}"),
    ("a field's name", "message M { string a = 1; }", "message M { string b = 1; }"),
    ("explicit presence", "message M { string a = 1; }", "message M { optional string a = 1; }"),
    ("an option", "message M { string a = 1; }", "message M { string a = 1 [deprecated = true]; }"),
    ("a reserved number", "message M { }", "message M { reserved 1; }"),
]


@pytest.mark.parametrize(("reason", "one", "other"), SAME, ids=[case[0] for case in SAME])
def test_canonical_text_ignores(reason: str, one: str, other: str) -> None:
    assert protobuf.parse(proto3(one), {}).hash == protobuf.parse(proto3(other), {}).hash


@pytest.mark.parametrize(("reason", "one", "other"), DIFFERENT, ids=[case[0] for case in DIFFERENT])
def test_canonical_text_keeps(reason: str, one: str, other: str) -> None:
    assert protobuf.parse(proto3(one), {}).hash != protobuf.parse(proto3(other), {}).hash


def test_canonical_text_reads_well() -> None:
    text = proto3("package p; message M { reserved 9; map<string,M> m=2; oneof o { int32 a=3; E e=4; } enum E{A=0;} }")
    assert protobuf.normalize(text, {}) == (
        'syntax = "proto3";\n'
        "package p;\n"
        "message M {\n"
        "  reserved 9;\n"
        "  map<string, .p.M> m = 2;\n"
        "  oneof o {\n"
        "    int32 a = 3;\n"
        "    .p.M.E e = 4;\n"
        "  }\n"
        "  enum E {\n"
        "    A = 0;\n"
        "  }\n"
        "}\n"
    )


def test_public_imports_are_seen_through_and_others_are_not() -> None:
    references = {
        "deep.proto": proto3("message Deep {}"),
        "open.proto": proto3('import public "deep.proto";'),
        "closed.proto": proto3('import "deep.proto";'),
    }
    protobuf.parse(proto3('import "open.proto"; message M { Deep deep = 1; }'), references)
    with pytest.raises(MalformedSchema, match="Deep"):
        protobuf.parse(proto3('import "closed.proto"; message M { Deep deep = 1; }'), references)


def test_an_error_in_a_reference_names_it() -> None:
    with pytest.raises(MalformedSchema, match=r'in "a\.proto".*line 1'):
        protobuf.parse(proto3('import "a.proto";'), {"a.proto": "message {"})
