"""docs/reference/metrics.md: what `/metrics` of a running hub shows, with the HELP text of each metric.

A shared hub counts more than a private one, so both are asked. Each kind of thing is there once: a channel with a ring,
and a refused request.
"""

import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from messagehub.errors import BY_CODE, InvalidSchema
from messagehub.hub import MessageHub

SECONDS = 60.0
_HEAD = """# Metrics

Written from a running hub by `make generate`. `GET /metrics` answers in Prometheus' text form;
[monitor a hub](../howto/monitoring.md) says what to ask of them.

- A histogram has `_bucket`, `_sum` and `_count`. All have the same bounds, powers of two from 16 µs to 33.6 s.
- Counters begin with 0 when their process starts.
  `messagehub_refused_CODE_total` is there once a request was refused with that [code](errors.md), in small letters.
- Those that say *shared hub* are there on a hub with `--group` or `--curve` only.

| metric | kind | labels | what |
|---|---|---|---|
"""
_FAMILY = re.compile(r"^# HELP (\w+) (.+)\n# TYPE \w+ (\w+)\n(.*)$", re.MULTILINE)
_REFUSED = re.compile(r"messagehub_refused_(\w+)_total")
_REFUSAL = ("messagehub_refused_CODE_total", "counter", "", "Requests that the broker refused with this code.")


def page() -> str:
    private, shared = _families(), _families("--endpoint", "tcp://127.0.0.1:0", "--curve")
    rows = []
    for name, (kind, labels, said) in sorted(shared.items()):
        where = "" if name in private else " *Shared hub.*"
        rows.append(f"| `{name}` | {kind} | {labels} | {said}{where} |")
    return _HEAD + "\n".join(rows) + "\n"


def _families(*options: str) -> dict[str, tuple[str, str, str]]:
    """Return kind, labels and text of each metric that a hub with these options shows."""
    found = {}
    with _metrics_of_a_hub(options) as text:
        for name, said, kind, sample in _FAMILY.findall(text):
            labels = ", ".join(f"`{label}`" for label in re.findall(r'(\w+)="', sample) if label != "le")
            refused = _REFUSED.fullmatch(name)
            if refused and refused[1].upper() in BY_CODE:
                found[_REFUSAL[0]] = _REFUSAL[1:]
            else:
                found[name] = (kind, labels, said)
    return found


@contextmanager
def _metrics_of_a_hub(options: tuple[str, ...]) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="mh-") as home:
        domain = f"metrics-{os.getpid()}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MESSAGEHUB_")}
        environment |= {"MESSAGEHUB_DOMAIN": domain, "MESSAGEHUB_DIR": home, "MESSAGEHUB_LOG": "ERROR"}
        program = [sys.executable, "-m", "messagehub"]
        command = [*program, "serve", "--http", "127.0.0.1:0", *options]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                (address,) = re.findall(r"http=(\S+)", process.stdout.readline())
                with MessageHub(dir=home, domain=domain) as hub, hub.producer("metrics") as producer:
                    producer.write(b"one")
                    _be_refused(hub)
                    _scrape(address, home)  # HTTP counts an answer when it has given it
                    yield _scrape(address, home)
            finally:
                process.terminate()
                process.wait(SECONDS)
        subprocess.run([*program, "purge", "--yes"], env=environment, check=True, stdout=subprocess.DEVNULL)


def _be_refused(hub: MessageHub) -> None:
    try:
        hub.register_schema("metrics.refused", {"type": "nonsense"})
    except InvalidSchema:
        return
    raise AssertionError("an invalid schema was taken")


def _scrape(address: str, home: str) -> str:
    token = Path(home, "http.token").read_text().strip()
    request = urllib.request.Request(f"{address}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return str(answer.read().decode())
