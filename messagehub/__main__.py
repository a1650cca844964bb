"""`python -m messagehub` is the `messagehub` command."""

from messagehub.cli import main

main()
