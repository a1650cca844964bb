"""A schema as a user hands it over, from a file or stdin, in the form its type needs; and as a user reads it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

if TYPE_CHECKING:
    from registry.commands import Schema

Type = Literal["JSON", "AVRO", "PROTOBUF", "ARROW"]
SchemaTypeOption = Annotated[Type, typer.Option("--schema-type", help="What language the schema is written in.")]

OwnSchemaType = Annotated[
    Type | None,
    typer.Option("--schema-type", help="What language the schema of --schema is written in. Default: JSON."),
]


def read_own_schema(source: str | None, schema_type: Type | None) -> "tuple[Schema | None, Type | None]":
    """Return what --schema and --schema-type say, where the schema may be left out."""
    if source is None:
        if schema_type is not None:
            raise typer.BadParameter("--schema-type goes with --schema.")
        return None, None
    return read_schema(source, schema_type or "JSON"), schema_type or "JSON"


def read_schema(source: str, schema_type: Type) -> "Schema":
    """The document itself for types written in JSON, else the text. Wrong input is wrong usage."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {source}: {error}", param_hint="schema") from None
    if schema_type == "PROTOBUF":
        return text
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise typer.BadParameter(f"{source} is not JSON: {error}", param_hint="schema") from None
    if not isinstance(document, dict | list | str | bool):
        raise typer.BadParameter(f"{source} is a JSON {type(document).__name__}, not a schema", param_hint="schema")
    return text if isinstance(document, str) else document


def readable(schema_type: str, text: str) -> str:
    """Return the text of a schema with a line for each of its parts."""
    return text if schema_type == "PROTOBUF" else msgspec.json.format(text, indent=2)
