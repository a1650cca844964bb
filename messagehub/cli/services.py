"""`messagehub services`: who serves what, and what could not be delivered."""

from typing import Annotated, Any

import typer

from messagehub.cli.failures import HubCommand
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import complain, echo, echo_json, echo_table
from messagehub.cli.session import connected
from messagehub.cli.subcommands import ListingGroup
from messagehub.display.values import instant, moment, size
from messagehub.hub import MessageHub
from registry import commands, replies

app = typer.Typer(
    name="services",
    cls=ListingGroup,
    help="List services and their workers; dead letters, and send them again; remove an empty pool.",
    rich_markup_mode=None,
)


@app.command(name="list", cls=HubCommand)
def list_services(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only addresses that start with this.")] = "",
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """List services and who serves them; the default when no other word is given."""
    with connected(endpoint, dir, timeout) as hub:
        found = hub.services(prefix)
    if as_json:
        echo_json(found)
    elif not found:
        echo(f"no address starts with {prefix!r}" if prefix else "no services yet")
    else:
        rows: list[tuple[Any, ...]] = []
        for service in found:
            strategy = service.strategy if service.address.startswith("pool:") else None
            rows += [
                (
                    *(service.address, w.status, w.worker_id, w.pid, w.host),
                    *(moment(w.registered_at), w.concurrency, strategy),
                    w.mailbox and f"{w.mailbox.queued}/{w.mailbox.capacity}",
                    w.tcp_endpoint,
                )
                for w in service.workers
            ] or [(service.address, *(None,) * 6, strategy, None, None)]
        headings = ("ADDRESS", "STATUS", "WORKER", "PID", "HOST", "SINCE", "CONCURRENCY", "STRATEGY", "QUEUED")
        if any(row[-1] for row in rows):
            echo_table((*headings, "FROM OTHER HOSTS"), rows)
        else:
            echo_table(headings, [row[:-1] for row in rows])


@app.command(name="dead-letters", cls=HubCommand)
def dead_letters(
    address: Annotated[str | None, typer.Argument(metavar="[ADDRESS]", help="Only those to this address.")] = None,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most this many, the newest.")
    ] = 100,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """List messages that could not be delivered, oldest first; in a site, those whose senders are on this host."""
    with connected(endpoint, dir, timeout) as hub:
        found = hub.dead_letters(address, limit=limit)
        other_hosts = () if as_json else _other_hosts(hub)
    if other_hosts:
        complain(f"messagehub: those of senders on other hosts are with the hubs there: {', '.join(other_hosts)}")
    if as_json:
        echo_json({"letters": found.letters, "kept": found.kept, "dropped": found.dropped})
    elif not found.letters:
        echo("no dead letters")
    else:
        rows = [
            (
                *(one.number, instant(one.at), one.address, one.code, one.reason, one.attempts),
                *(size(one.payload_bytes), one.form, one.sender),
            )
            for one in found.letters
        ]
        echo_table(("NUMBER", "AT", "ADDRESS", "CODE", "REASON", "ATTEMPTS", "SIZE", "FORM", "SENDER"), rows)


def _other_hosts(hub: MessageHub) -> list[str]:
    """Return the other hosts of the site, which have dead letters of their own; none without a site."""
    found = hub.ask(commands.ListHosts())
    return [one.host for one in found.hosts if one.host != found.host] if isinstance(found, replies.HostList) else []


@app.command(name="resend", cls=HubCommand)
def resend(
    address: Annotated[str | None, typer.Argument(metavar="[ADDRESS]", help="Only those to this address.")] = None,
    *,
    number: Annotated[
        list[int] | None,
        typer.Option(
            "--number", min=0, help="Only the letter of this number (NUMBER of dead-letters). Can be repeated."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, max=1000, help="End when this many were sent. Default: all.")
    ] = None,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Send dead letters again, oldest first, and forget those that were sent. Exit code 1 when not all were sent."""
    with connected(endpoint, dir, timeout) as hub:
        done = hub.resend_dead_letters(address, numbers=number or None, limit=limit, timeout=timeout)
    if number and done.sent + done.without_payload + done.left + len(done.failed) < len(set(number)):
        complain("messagehub: a letter of such a number is not there any more, or goes to another address")
    if as_json:
        echo_json(done)
    else:
        for one in done.failed:
            complain(f"messagehub: {one.address}: {one.reason}")
        echo(f"{done.sent} sent, {len(done.failed)} failed, {done.without_payload} without a payload, {done.left} left")
        if done.left and done.sent == limit:
            complain(f"messagehub: {limit} were sent, as --limit says: call it again for the rest")
        elif done.left:
            complain("messagehub: the time was up: call it again for the rest, or give it longer with --timeout")
    if done.failed or done.left or done.without_payload:
        raise typer.Exit(1)


@app.command(name="remove-pool", cls=HubCommand)
def remove_pool(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="pool:…")],
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Forget a pool that has no workers."""
    with connected(endpoint, dir, timeout) as hub:
        hub.remove_pool(address)
    if as_json:
        echo_json({"address": address})
    else:
        echo(f"{address} is removed")
