"""`messagehub validate`: JSON documents against a registered JSON Schema."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from messagehub.cli.failures import REFUSED
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_json
from messagehub.cli.progress import progress
from messagehub.cli.session import connected
from messagehub.display.values import shown
from messagehub.errors import InvalidSchema

if TYPE_CHECKING:
    from registry.formats.json_schema.documents import DocumentSchema

LINE_SUFFIXES = (".jsonl", ".ndjson")
MAX_SHOWN = 1000


def validate(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="What the schema is registered under.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The document's file, or - for stdin.")] = "-",
    *,
    version: Annotated[int | None, typer.Option(min=1, help="Default: the newest.")] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="One document a line; also for files called *.jsonl or *.ndjson.")
    ] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Check a JSON document, or one a line; 1 when one is not valid."""
    from registry.commands import RequestSchema
    from registry.formats.json_schema.documents import DocumentSchema
    from registry.replies import SchemaFound

    with connected(endpoint, dir, timeout) as hub:
        found = hub.ask(RequestSchema(subject=subject, version=version, resolve=True))
    assert isinstance(found, SchemaFound)
    if found.schema.schema_type != "JSON":
        raise InvalidSchema(f"documents are validated against JSON schemas; this is {found.schema.schema_type}")
    schema = DocumentSchema(found.schema.schema, found.reference_texts)
    is_lines = lines or file.endswith(LINE_SUFFIXES)
    documents = invalid = 0
    kept: list[dict[str, Any]] = []
    for number, text in _texts(file, is_lines):
        problems = _problems(schema, text)
        documents += 1
        invalid += bool(problems)
        place = {"line": number} if is_lines else {}
        told = [{**place, **problem} for problem in problems[: MAX_SHOWN - len(kept)]]
        kept += told
        if not as_json:
            for problem in told:
                _tell(problem)
    if as_json:
        counts = {"version": found.schema.version, "documents": documents, "invalid": invalid}
        echo_json({"valid": not invalid, **counts, "problems": kept})
    elif is_lines:
        echo(f"{documents} documents, {invalid} of them not valid under version {found.schema.version}")
    elif not invalid:
        echo(f"valid under version {found.schema.version}")
    if invalid:
        raise typer.Exit(REFUSED)


def _texts(file: str, is_lines: bool) -> Iterator[tuple[int, bytes]]:
    """Documents with the numbers of their lines; empty lines are none."""
    with ExitStack() as stack:
        try:
            source: IO[bytes] = sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
            size = None if file == "-" else Path(file).stat().st_size
        except OSError as error:
            raise typer.BadParameter(f"cannot open {file}: {error.strerror}", param_hint="FILE") from None
        if not is_lines:
            yield 1, source.read()
            return
        advance = stack.enter_context(progress("validating", size))
        for number, line in enumerate(source, start=1):
            advance(len(line))
            if line.strip():
                yield number, line


def _problems(schema: "DocumentSchema", text: bytes) -> list[dict[str, str]]:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return [{"path": "", "message": f"not JSON: {error}"}]
    return schema.problems(document)


def _tell(problem: dict[str, Any]) -> None:
    where = f"line {problem['line']}: " if "line" in problem else ""
    echo(f"{where}{shown(problem['path'] or '/')}: {shown(problem['message'])}")
