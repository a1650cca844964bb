"""`make demo-site`: a site of three hosts, on one machine, and what its clients see when parts of it fail. Takes root.

    python examples/site_demo.py [--no-spark] [--seconds 5]

Three hosts (namespaces: a network, a hostname and a /dev/shm each) with a member of etcd and a hub each. Anna measures
and publishes; Bert and Cleo read and hear it through the same calls as on one host; Cleo writes to the registry. Spark
runs on Anna and Bert and writes one table, which Cleo reads. Then the hub that leads is killed, and Cleo's link is cut.
The demo prints what each client saw, and ends with 1 if one of them lost what it may not lose.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from namespaces import Host, Network, network, stop, why_not
from site_clients import HERTZ, START_SECONDS

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = Path(__file__).with_name("site_clients.py")
NAMES = ("anna", "bert", "cleo")
SITE = "demo"
CUT_SECONDS = 4.0


class Client:
    """A process of this file on a host. What it says is printed, and its last word of each kind is kept."""

    def __init__(self, site: "DemoSite", host: Host, role: str, *arguments: str) -> None:
        self.host, self.role = host, role
        self.said: list[dict[str, Any]] = []
        self._is_ready = threading.Event()
        self._site = site
        command = [sys.executable, str(CLIENTS), role, str(site.directory(host)), *arguments]
        self._process = subprocess.Popen(
            host.command(*command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=site.log(host, role),
            env=site.environment(host),
        )
        self._reading = threading.Thread(target=self._take, daemon=True)
        self._reading.start()

    def wait_until_ready(self) -> None:
        if not self._is_ready.wait(START_SECONDS):
            raise SystemExit(f"{self.role} on {self.host.name} does not begin: see {self._site.base}")

    def end(self) -> dict[str, Any]:
        """Let it end, and return what it said last."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.wait()

    def wait(self) -> dict[str, Any]:
        self._reading.join(START_SECONDS)
        stop(self._process)
        if self._process.returncode or not self.said:
            raise SystemExit(f"{self.role} on {self.host.name} failed: {self._site.tail(self.host, self.role)}")
        return self.said[-1]

    def _take(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if said.pop("ready", False):
                self._is_ready.set()
                continue
            self.said.append(said)
            shown = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in said.items() if key != "client")
            tell(f"  {said['client']} on {self.host.name}: {shown}")


class DemoSite:
    def __init__(self, base: Path, made: Network, etcd: str) -> None:
        self.base, self.hosts = base, made.hosts
        self._etcd = etcd
        self._ending = contextlib.ExitStack()
        self._hubs: dict[str, subprocess.Popen[bytes]] = {}

    def directory(self, host: Host) -> Path:
        return self.base / host.name / "hub"

    def environment(self, host: Host) -> dict[str, str]:
        source = os.pathsep.join([str(ROOT), str(ROOT / "messagehub" / "spark" / "auto_registration")])
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
        return os.environ | {
            "MESSAGEHUB_DIR": str(self.directory(host)),
            "PYTHONPATH": path,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": host.address,
        }

    def log(self, host: Host, what: str) -> int:
        (self.base / host.name).mkdir(exist_ok=True)
        opened = os.open(self.base / host.name / f"{what}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._ending.callback(os.close, opened)
        return opened

    def tail(self, host: Host, what: str) -> str:
        return (self.base / host.name / f"{what}.log").read_text(errors="replace")[-2000:]

    def start_etcd(self) -> None:
        hosts = list(self.hosts.values())
        for host in hosts:
            self._start(host, "etcd", *host.etcd(self._etcd, str(self.base / host.name / "etcd"), hosts))

        asking = "import urllib.request as r; r.urlopen({!r}, timeout=2)"
        for host in self.hosts.values():
            ask = host.command(sys.executable, "-c", asking.format(f"http://{host.address}:2379/health"))
            until(
                lambda ask=ask: subprocess.run(ask, capture_output=True, timeout=30, check=False).returncode == 0,
                "etcd",
            )

    def start_hub(self, name: str) -> None:
        host = self.hosts[name]
        log = self.base / name / "hub.log"
        begins_at = log.stat().st_size if log.exists() else 0
        self._hubs[name] = self._start(
            host,
            "hub",
            *(sys.executable, "-m", "messagehub", "serve", "--dir", str(self.directory(host)), "--no-http"),
            *host.site_options(SITE, list(self.hosts.values())),
        )
        started = self._hubs[name]
        until(
            lambda: " ready: " in log.read_text()[begins_at:] or started.poll() is not None, f"the hub of {name}: {log}"
        )
        if started.poll() is not None:
            raise SystemExit(f"the hub of {name} does not start: {self.tail(host, 'hub')}")

    def kill_hub(self, name: str) -> None:
        stop(self._hubs.pop(name), signal.SIGKILL)

    def start_spark(self, *names: str) -> str:
        """Start a master on the first host, and a worker on each; return its address."""
        import pyspark

        program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        master = self.hosts[names[0]]
        url = f"spark://{master.address}:7077"
        self._start(
            master,
            "spark-master",
            *(program, "org.apache.spark.deploy.master.Master", "--host", master.address, "--port", "7077"),
            *("--webui-port", "0"),
        )
        until(lambda: "New state: ALIVE" in self.tail(master, "spark-master"), "Spark's master")
        for name in names:
            host = self.hosts[name]
            self._start(
                host,
                "spark-worker",
                *(program, "org.apache.spark.deploy.worker.Worker", "--host", host.address, "--webui-port", "0"),
                *("--cores", "1", "--memory", "1g", "--work-dir", str(self.base / name / "spark"), url),
            )
        for name in names:
            log = self.base / name / "spark-worker.log"
            until(lambda log=log: "Successfully registered" in log.read_text(), f"Spark's worker: {log}")
        return url

    def members(self, seen_from: str) -> list[dict[str, Any]]:
        done = self.command(seen_from, "hosts", "--json")
        return list(json.loads(done.stdout)["hosts"]) if done.returncode == 0 else []

    def leader(self, seen_from: str) -> str | None:
        return next((each["host"] for each in self.members(seen_from) if each["is_leader"]), None)

    def command(self, name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        host = self.hosts[name]
        command = host.command(sys.executable, "-m", "messagehub", *arguments, "--dir", str(self.directory(host)))
        environment = self.environment(host)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def close(self) -> None:
        self._ending.close()

    def _start(self, host: Host, what: str, *command: str) -> "subprocess.Popen[bytes]":
        log = self.log(host, what)
        settings = self.environment(host) | {"SPARK_DAEMON_MEMORY": "256m"}
        started = subprocess.Popen(
            host.command(*command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=settings,
            start_new_session=True,
        )
        self._ending.callback(stop, started)
        return started


def tell(text: str) -> None:
    print(text, flush=True)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(0.1)


def show(site: DemoSite, seconds: float, *, with_spark: bool) -> bool:
    """Run it all, and return whether everything was as promised."""
    tell("three members of etcd, and three hubs")
    site.start_etcd()
    for name in ("bert", "anna", "cleo"):  # so that Bert's hub leads
        (site.base / name / "hub").mkdir(mode=0o700)
        site.start_hub(name)
    until(lambda: site.leader("anna") == "bert", "a leader")
    until(lambda: all(each["topics"] and each["gateway"] for each in site.members("cleo")), "gateways")
    tell(site.command("cleo", "hosts").stdout.rstrip())

    anna, bert, cleo = (site.hosts[name] for name in NAMES)
    tell(f"\nAnna writes {HERTZ} items a second and publishes every tenth number; Bert and Cleo read and listen")
    listeners = [Client(site, host, "hear") for host in (bert, cleo)]
    producer = Client(site, anna, "measure")
    readers = [Client(site, host, "read") for host in (bert, cleo)]
    writer = Client(site, cleo, "write")
    for each in (*listeners, producer, *readers, writer):
        each.wait_until_ready()
    time.sleep(seconds)
    frame = None
    if with_spark:
        tell("\nSpark writes one table from tasks on Anna and Bert, and Cleo reads it")
        Client(site, anna, "spark", site.start_spark("anna", "bert")).wait()
        frame = Client(site, cleo, "fetch").wait()

    tell("\nthe hub of Bert, which leads, is killed")
    site.kill_hub("bert")
    began_at = time.monotonic()
    until(lambda: site.leader("anna") not in (None, "bert"), "another leader")
    tell(f"  the hub of {site.leader('anna')} leads, {time.monotonic() - began_at:.1f} s later")
    time.sleep(seconds)
    site.start_hub("bert")
    tell("  the hub of Bert is back")
    time.sleep(seconds)

    tell(f"\nthe link of Cleo is cut for {CUT_SECONDS:g} s")
    cleo.cut()
    time.sleep(CUT_SECONDS)
    cleo.mend()
    tell("  the link of Cleo is back")
    time.sleep(2 * seconds)

    tell("\nwhat each client saw in the end")
    written = producer.end()["written"]
    time.sleep(1.0)
    results = [each.end() for each in readers]
    heard = [each.end() for each in listeners]
    wrote = writer.end()
    return is_as_promised(written, results, heard, wrote, frame)


def is_as_promised(
    written: int,
    readers: list[dict[str, Any]],
    heard: list[dict[str, Any]],
    wrote: dict[str, Any],
    frame: dict[str, Any] | None,
) -> bool:
    """Nothing acknowledged is lost, no table has a hole, and whatever did not come was counted."""
    checks = {
        "all that was written was read on both hosts": all(
            each["read"] + each["missing"] <= written for each in readers
        )
        and all(each["missing"] == 0 for each in readers),
        "what readers missed was counted": all(each["missing"] <= each["counted"] for each in readers),
        "what subscribers missed was counted": all(each["missing"] == each["counted"] for each in heard),
        "nothing that was acknowledged is lost": wrote["lost"] == 0 and wrote["acknowledged"] > 0,
        "the table came whole": frame is None or frame["all_there"],
    }
    for what, is_so in checks.items():
        tell(f"  {'yes' if is_so else 'NO '}  {what}")
    return all(checks.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="A site of three hosts on this machine, and what its clients see.")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to look at each state")
    parser.add_argument("--no-spark", action="store_true", help="leave out the Spark cluster")
    given = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"make demo-site: {reason}")
    from benchmarks.packages import program

    base = Path(tempfile.mkdtemp(prefix="messagehub-site-"))
    with network(*NAMES) as made:
        site = DemoSite(base, made, program("etcd", "etcd-server"))
        try:
            is_good = show(site, given.seconds, with_spark=not given.no_spark)
        finally:
            site.close()
    tell(f"logs: {base}" if not is_good else "everything is as docs/howto/several-hosts.md promises")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
