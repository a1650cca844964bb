"""`messagehub register`: be a channel's producer, as far as the hub is concerned, for as long as this runs."""

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec.structs import asdict

from messagehub.cli.options import Dir, Endpoint, Json, SchemaFile, Timeout
from messagehub.cli.output import complain, echo, echo_json_line
from messagehub.cli.schema_input import OwnSchemaType, read_own_schema
from messagehub.cli.session import TURN_SECONDS, Interrupt, connections, interrupt, settings_for
from messagehub.display.values import shown
from registry import commands
from registry.replies import Notice, ProducerRegistered

if TYPE_CHECKING:
    from messagehub.client.registration import Registration
    from messagehub.hub import MessageHub


def register(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")],
    *,
    schema_hash: Annotated[
        str | None, typer.Option(help="The schema's hash. Default: what --schema hashes to.")
    ] = None,
    schema: SchemaFile = None,
    schema_type: OwnSchemaType = None,
    version: Annotated[str, typer.Option(help="The schema's version, as its users call it.")] = "",
    policy: Annotated[str | None, typer.Option(help="How data is stored, e.g. RingBuffer.")] = None,
    capacity: Annotated[int | None, typer.Option(min=1, help="How many items the data holds.")] = None,
    page_size: Annotated[int | None, typer.Option(min=1, help="Bytes per item.")] = None,
    producer_id: Annotated[str | None, typer.Option(help="A name for this producer.")] = None,
    shm_name: Annotated[
        str | None, typer.Option(help="Where the data is. Default: /pylabhub_CHANNEL, or as shm_prefix says.")
    ] = None,
    access: Annotated[
        Literal["exclusive", "shared"], typer.Option(help="The only producer, or one of several.")
    ] = "exclusive",
    once: Annotated[bool, typer.Option("--once", help="Do not stay: the registration ends with its lease.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Register a producer and keep it registered until Ctrl-C.

    A broker that restarts is told again. With --json: a line for the registration, then one for each notice.
    """
    from messagehub.hub import MessageHub

    if schema_hash is None and schema is None:
        raise typer.BadParameter("give --schema-hash, --schema, or both.")
    document, known_type = read_own_schema(schema, schema_type)
    given = {"policy": policy, "capacity": capacity, "page_size": page_size}
    hub = MessageHub(settings_for(endpoint, dir, timeout))
    with interrupt() as interrupted:
        try:
            if schema_hash is None and document is not None and known_type is not None:
                # Only the hub knows how it hashes a schema.
                schema_hash = hub.register_schema(channel, document, schema_type=known_type).schema_hash
            said: dict[str, Any] = {
                "schema_hash": schema_hash or "",
                "schema_version": version,
                "config": {name: value for name, value in given.items() if value is not None},
                "schema": document,
                "schema_type": known_type,
                "producer_id": producer_id,
                "shm_name": shm_name,
                "access": access,
            }
            if once:
                # Without its process: this one is about to end, and the hub would see that.
                ack = hub.ask(commands.RegisterProducer(channel=channel, **said))
                assert isinstance(ack, ProducerRegistered)
                _announce(ack, once=True, as_json=as_json)
                return
            registration = hub.register_producer(channel, required=True, **said)
            assert isinstance(registration.ack, ProducerRegistered)
            _announce(registration.ack, once=False, as_json=as_json)
            _keep(hub, registration, interrupted, as_json=as_json)
            complain(f"messagehub: unregistering {shown(channel)}")
        finally:
            hub.close()


def _announce(ack: ProducerRegistered, *, once: bool, as_json: bool) -> None:
    if as_json:
        echo_json_line({name: value for name, value in asdict(ack).items() if name != "id"})
    else:
        echo(f"{shown(ack.channel)}: registered as {shown(ack.producer_id)}, shm {shown(ack.shm_name)}")
    if once:
        complain(f"messagehub: nobody renews it, so it ends in {ack.lease_seconds:g} s")
    else:
        complain("messagehub: kept alive by heartbeats until Ctrl-C")


def _keep(hub: "MessageHub", registration: "Registration", interrupted: Interrupt, *, as_json: bool) -> None:
    """Say what becomes of the registration; raises when it ended for good."""
    seen, is_lost = connections(hub), False
    while not interrupted.has_come:
        time.sleep(TURN_SECONDS)
        for notice in hub.notices():
            _tell(notice, as_json=as_json)
        if registration.is_closed:
            assert registration.error is not None
            raise registration.error
        if not is_lost and not hub.is_connected:
            is_lost = True
            complain("messagehub: the broker is gone; registering again as soon as one answers")
        elif hub.is_connected and registration and connections(hub) != seen:
            seen, is_lost = connections(hub), False
            complain("messagehub: a broker answers; registered again")


def _tell(notice: Notice, *, as_json: bool) -> None:
    if as_json:
        echo_json_line(notice)
    else:
        member = f" {shown(notice.member)}" if notice.member else ""
        reason = f" ({shown(notice.reason)})" if notice.reason else ""
        echo(f"{shown(notice.channel)}: {notice.event.lower().replace('_', ' ')}{member}{reason}")
