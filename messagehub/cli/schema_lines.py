"""The lines of an export: a schema each, or the settings of a subject."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec
import typer

from messagehub.cli.request_tasks import Steps
from messagehub.errors import CompatibilityNotSet, ModeNotSet
from registry import commands
from registry.records import Mode, SchemaConfig, SchemaVersion


class SchemaLine(msgspec.Struct, tag_field="line", tag="schema"):
    schema: SchemaVersion


class SettingsLine(msgspec.Struct, tag_field="line", tag="settings", omit_defaults=True):
    """Of a subject, or with none of the whole registry."""

    subject: str | None = None
    config: SchemaConfig | None = None
    mode: Mode | None = None


Line = SchemaLine | SettingsLine


def config_of(subject: str | None) -> Steps[SchemaConfig | None]:
    """Only what is set."""
    try:
        return (yield commands.RequestSchemaConfig(subject=subject)).config  # type: ignore[no-any-return]  # its reply
    except CompatibilityNotSet:
        return None


def mode_of(subject: str | None) -> Steps[Mode | None]:
    """Only what is set."""
    try:
        return (yield commands.RequestSchemaMode(subject=subject)).mode  # type: ignore[no-any-return]  # its reply
    except ModeNotSet:
        return None


def settings_of(subject: str | None) -> Steps[SettingsLine]:
    config = yield from config_of(subject)
    mode = yield from mode_of(subject)
    return SettingsLine(subject, config, mode)


def read_lines(file: str) -> list[Line]:
    decoder = msgspec.json.Decoder(Line)
    lines: list[Line] = []
    with ExitStack() as stack:
        source = sys.stdin if file == "-" else stack.enter_context(opened(file, "r"))
        number = 0
        try:
            for text in source:
                number += 1
                if text.strip():
                    lines.append(decoder.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise typer.BadParameter(f"line {number} of {file} is not of an export: {error}") from None
    return lines


def write_line(out: IO[str], line: Line) -> None:
    out.write(msgspec.json.encode(line).decode() + "\n")


def opened(file: str, mode: str) -> IO[str]:
    try:
        return Path(file).open(mode, encoding="utf-8")
    except FileExistsError:
        raise typer.BadParameter(f"{file} exists already: choose another name.", param_hint="FILE") from None
    except OSError as error:
        raise typer.BadParameter(f"cannot open {file}: {error.strerror}", param_hint="FILE") from None
