"""A noun whose plain form lists: `messagehub channels sensor` is `messagehub channels list sensor`."""

from typing import Any

from typer.core import TyperGroup


class ListingGroup(TyperGroup):
    """Whatever is not the name of a subcommand belongs to `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if first not in self.commands and first not in ("-h", "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path, "[list] [OPTIONS] [NAME] | COMMAND [ARGS]...")
