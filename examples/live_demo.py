"""`make demo-live`: a hub with something to look at, until Ctrl-C. It prints the address to open in a browser.

    python examples/live_demo.py [--http 127.0.0.1:8081] [--no-spark]

Two producers, a quick and a slow consumer, a group of two, a service and a pool with their callers, a retained topic
with subscribers, and a Spark query where Java is there. The hub has a directory and a domain of its own; nothing is
left of it.
"""

import argparse
import json
import math
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from spark_demo import RAW, ROOT, SCHEMA, aggregate, measure, spark_session

from messagehub import MessageHub
from messagehub.errors import HubError

PRESSURE = "demo.pressure"
PRESSURE_SCHEMA = pa.schema([("at", pa.float64()), ("bar", pa.float64()), ("flow", pa.float64())])
CUSTOMER = {"type": "object", "properties": {"name": {"type": "string"}, "country": {"type": "string", "maxLength": 2}}}
ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "total": {"type": "number"}, "customer": {"$ref": "customer"}},
}


def is_over(seconds: float) -> bool:
    """Wait so long. Every process of the demo ends when its stdin does, so that none outlives the demo."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def sensors(hub: MessageHub) -> None:
    measure(hub.settings.endpoint, hub.settings.domain)


def pressure(hub: MessageHub) -> None:
    with hub.producer(PRESSURE, schema=PRESSURE_SCHEMA, capacity=1024, producer_id="pump") as producer:
        print("ready", flush=True)
        while not is_over(0.02):
            now = time.time()
            values = [now], [4 + math.sin(now / 2) + random.gauss(0, 0.1)], [2 + math.cos(now / 3)]
            producer.write(pa.record_batch([*values], schema=PRESSURE_SCHEMA))


def read(hub: MessageHub, channel: str, schema: pa.Schema, seconds: float, **options: Any) -> None:
    """Read everything, taking so many seconds for each item."""
    with hub.consumer(channel, expected_schema=schema, **options) as consumer:
        while not is_over(seconds):
            consumer.read(timeout=1.0)


def messages(hub: MessageHub) -> None:
    """Serve, ask, and publish; some of it goes wrong, as in life."""
    hub.topic("orders.eu").keep(10_000)
    with (
        hub.serve("service:quote", lambda message, _: {"total": message.payload["id"] * 1.19}),
        hub.serve("pool:resizers", lambda message, _: message.payload, concurrency=2),
        hub.serve("pool:resizers", lambda message, _: message.payload, concurrency=2),
    ):
        number = 0
        while not is_over(0.5):
            number += 1
            order = {
                "id": number,
                "total": round(random.uniform(5, 500), 2),
                "customer": {"name": "Ada", "country": "DE"},
            }
            hub.publish("orders.eu", order, headers={"source": "live_demo"})
            hub.publish(
                "alarms.boiler", {"level": random.choice(["info", "warning"]), "celsius": random.randrange(60, 99)}
            )
            hub.request("service:quote", {"id": number}, timeout=5.0)
            hub.request("pool:resizers", {"width": number}, timeout=5.0)
            if number % 20 == 1:
                try:
                    hub.send("service:invoices", order)  # nobody serves it: a dead letter
                except HubError:
                    pass  # as expected: the console shows it


def subscribers(hub: MessageHub) -> None:
    """Bill every order, under a durable name; hear all alarms; and copy everything too slowly, which loses some."""
    hub.topic("orders.eu").keep(10_000)
    with (
        hub.subscribe("orders.eu", lambda _: None, durable="billing"),
        hub.subscribe("alarms.>", lambda _: None),
        hub.subscribe(">", lambda _: time.sleep(1.0), buffer=4),
    ):
        while not is_over(1.0):
            pass


def spark(hub: MessageHub) -> None:
    """Average the sensors. On a busy machine Spark may give up on its Python workers; it is then asked again."""
    with tempfile.TemporaryDirectory(prefix="messagehub-demo-") as scratch, spark_session(scratch) as session:
        options = {"endpoint": hub.settings.endpoint, "domain": hub.settings.domain}
        while not is_over(0.0):
            query = aggregate(session, options, f"{scratch}/checkpoint")
            while query.exception() is None and not is_over(0.5):
                pass
            query.stop()


ROLES: dict[str, Callable[[MessageHub], None]] = {
    "sensors": sensors,
    "pressure": pressure,
    "dashboard": lambda hub: read(hub, RAW, SCHEMA, 0.0, consumer_id="dashboard"),
    "archiver": lambda hub: read(hub, PRESSURE, PRESSURE_SCHEMA, 0.5, consumer_id="slow-archiver"),
    "alarm-1": lambda hub: read(hub, PRESSURE, PRESSURE_SCHEMA, 0.0, consumer_id="alarm-1", group="alarms"),
    "alarm-2": lambda hub: read(hub, PRESSURE, PRESSURE_SCHEMA, 0.0, consumer_id="alarm-2", group="alarms"),
    "messages": messages,
    "subscribers": subscribers,
    "spark": spark,
}
PRODUCERS = ("sensors", "pressure")
"""They say when they are ready, so that no consumer begins before them."""


def register_schemas(url: str, token: str) -> None:
    """Two versions of a customer and of an order, which refers to it; each takes more than the one before."""
    longer = CUSTOMER | {"properties": {"name": {"type": "string"}, "country": {"type": "string"}}}
    references = [{"name": "customer", "subject": "demo.customer", "version": 1}]
    changed = ORDER | {"properties": ORDER["properties"] | {"total": {"type": ["number", "null"]}}}
    for subject, schema, refers in (
        ("demo.customer", CUSTOMER, []),
        ("demo.customer", longer, []),
        ("demo.order", ORDER, references),
        ("demo.order", changed, references),
    ):
        put(url, token, "PUT", f"config/{subject}", {"compatibility": "BACKWARD"})
        body = {"schemaType": "JSON", "schema": json.dumps(schema), "references": refers}
        put(url, token, "POST", f"subjects/{subject}/versions", body)


def put(url: str, token: str, method: str, path: str, body: dict[str, Any]) -> None:
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=30):
        pass


@contextmanager
def running(*arguments: str, environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A process of the demo. It is asked to end by the end of its stdin, and by a signal if that is not enough."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the demo, which ends the others in order
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(20 if "spark" in arguments else 5)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait(10)
        process.stdout.close()


@contextmanager
def demo(http: str, *, has_spark: bool) -> Iterator[tuple[str, str]]:
    """Start everything. Yields the address of the page and a token that may do everything."""
    domain = f"demo-{os.getpid()}"
    with ExitStack() as started:
        directory = started.enter_context(tempfile.TemporaryDirectory(prefix="mh-demo-"))
        started.callback(clean, domain)
        environment = os.environ | {"MESSAGEHUB_DIR": directory, "MESSAGEHUB_DOMAIN": domain}
        hub = started.enter_context(running("-m", "messagehub", "serve", "--http", http, environment=environment))
        started.callback(hub.send_signal, signal.SIGTERM)
        assert hub.stdout is not None
        line = hub.stdout.readline()
        if "ready" not in line:
            raise SystemExit("the hub did not start: see above")
        url, token = (
            json.loads(Path(directory, "broker.json").read_text())["http"],
            Path(directory, "http.token").read_text().strip(),
        )
        register_schemas(url, token)
        for role in ROLES:
            if role != "spark" or has_spark:
                process = started.enter_context(running(__file__, "--role", role, environment=environment))
                if role in PRODUCERS and process.stdout is not None:
                    process.stdout.readline()
        yield url, token


def has_java() -> bool:
    return shutil.which("java") is not None


def clean(domain: str) -> None:
    shutil.rmtree(f"/dev/shm/messagehub-{os.geteuid()}/{domain}", ignore_errors=True)
    for ring in Path("/dev/shm").glob(f"pylabhub_*@{domain}"):
        ring.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--http", default="127.0.0.1:8081", help="where to serve the page; port 0 is any free one")
    parser.add_argument("--no-spark", action="store_true", help="leave the Spark query out")
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role:
        with MessageHub() as hub:
            ROLES[chosen.role](hub)
        return
    has_spark = not chosen.no_spark and has_java()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with demo(chosen.http, has_spark=has_spark) as (url, token):
        print(f"open     {url}/console/\ntoken    {token}  (for all that takes a right beyond looking)", flush=True)
        print(
            f"Spark    {'starts, which takes some seconds' if has_spark else 'is left out'}\nstop it  Ctrl-C",
            flush=True,
        )
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("stopping", flush=True)


if __name__ == "__main__":
    main()
