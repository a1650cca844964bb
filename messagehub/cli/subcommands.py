"""A noun whose plain form lists: `messagehub channels sensor` is `messagehub channels list sensor`."""

from typing import Any

from typer.core import TyperGroup

from messagehub.cli.output import complain


class ListingGroup(TyperGroup):
    """Whatever is not the name of a subcommand belongs to `list`. A word that is nearly one is pointed out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if ctx.resilient_parsing and not args:  # a shell completes the word behind the noun
            return super().parse_args(ctx, args)
        if first not in self.commands and first not in ("-h", "--help"):
            import difflib  # not for every command that starts

            meant = difflib.get_close_matches(first, self.commands, n=1, cutoff=0.8)
            if meant:
                complain(f"messagehub: {first!r} is taken for a name; did you mean `{ctx.command_path} {meant[0]}`?")
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path, "[list] [OPTIONS] [NAME] | COMMAND [ARGS]...")
