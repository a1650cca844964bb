"""Shared memory of this user, or of the hub's group: blocks that nobody writes any more, and damaged ones."""

import contextlib
from collections.abc import Iterator

from messagehub.channels.inventory import BlockInfo, inventory
from messagehub.cli.diagnosis import Finding
from messagehub.settings import Settings
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.domain_lock import serving_brokers
from messagehub.shm.channel_directory.location import directory_of, domain_served, shared_with
from messagehub.shm.channel_directory.ownership import list_directory
from messagehub.shm.errors import DataBlockError


def check_blocks(settings: Settings) -> Iterator[Finding]:
    domain = settings.domain
    try:
        directory = directory_of(settings)
        with contextlib.suppress(FileNotFoundError):  # nobody produced anything yet
            list_directory(directory.path)
        blocks = inventory(directory)
    except DataBlockError as error:
        yield Finding("blocks", "error", str(error), "let your user, or the hub's group, use its directory in /dev/shm")
        return
    for block in blocks:
        if block.flaw:
            yield Finding(
                "blocks",
                "warning",
                f"block {block.shm_name} of channel {block.channel} is {block.state}: {block.flaw}",
                f"restart its producer, or remove it: messagehub blocks clean --now --domain {domain}",
            )
    for block in blocks:
        yield from _held_back(block)
    stale = [block for block in blocks if block.state == "dead"]
    if stale:
        yield Finding(
            "blocks",
            "info",
            f"{_count(stale)} whose producer is gone, kept for readers and for its return",
            f"messagehub blocks clean --domain {domain} (a running broker does it by itself)",
        )
    elif not any(block.flaw for block in blocks):
        yield Finding("blocks", "ok", f"{_count(blocks)} in use")


def check_domain(settings: Settings, *, is_held: bool) -> Iterator[Finding]:
    """Whether another broker serves the same domain; `is_held` says whether the hub of the directory runs."""
    served = domain_served(settings) or settings.domain
    try:
        directory = Directory(served, gid=shared_with(settings), shm_prefix=settings.shm_prefix)
    except DataBlockError:
        return  # reported already
    if serving_brokers(directory) > is_held:
        yield Finding(
            "domain",
            "warning",
            f"another broker serves domain {served!r}: both hubs show the same rings and tables",
            "give each hub a domain of its own, with domain in its messagehub.toml, and start it again",
        )


def _held_back(block: BlockInfo) -> Iterator[Finding]:
    """Report readers that hold a producer back: a warning where items are skipped, since nobody wants that."""
    skipped = f", and {block.skipped} items were skipped so far" if block.skipped else ""
    if block.held_back is not None and not block.is_waiting:
        yield Finding(
            "blocks",
            "warning",
            f"readers hold all {block.slots} slots of channel {block.channel}: {block.held_back}{skipped}",
            "let them keep fewer values, read without copy='never', or give the producer more capacity",
        )
    elif block.held_back is not None:
        yield Finding(
            "blocks",
            "info",
            f"the producer of channel {block.channel} waits for its readers: {block.held_back}",
            "let them read faster, or lossless=False, or give the producer more capacity"
            + ("; delete a group that nobody is in" if any(one.is_left_behind for one in block.holders) else ""),
        )
    elif skipped and block.state == "live":
        yield Finding(
            "blocks",
            "info",
            f"{block.skipped} items of channel {block.channel} were skipped so far, because readers held every slot",
            "let its readers keep fewer values, or give the producer more capacity",
        )


def _count(blocks: list[BlockInfo]) -> str:
    size = sum(block.size_bytes for block in blocks)
    return f"{len(blocks)} {'block' if len(blocks) == 1 else 'blocks'} ({size / (1 << 20):.1f} MiB)"
