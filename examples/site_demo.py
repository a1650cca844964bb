"""`make demo-site`: a site of three hosts, on one machine, and what its clients see when parts of it fail. Takes root.

    python examples/site_demo.py [--no-spark] [--seconds 5]

Three hosts (namespaces: a network, a hostname and a /dev/shm each) with a member of etcd and a hub each. Anna measures
and publishes; Bert and Cleo read and hear it through the same calls as on one host, and share jobs of Anna as a group.
Anna serves what they ask. Anna and Cleo publish orders to a retained topic whose home is Bert, and Cleo books them by a
durable name; Cleo writes to the registry. Spark runs on Anna and Bert and writes one table, which Cleo reads.
Then a member of the group is killed, the hub that leads is killed, and Cleo's link is cut. The demo prints what each
client did beside what is promised, and ends with 1 if a promise was broken.
"""

import argparse
import contextlib
import json
import os
import shutil
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
from site_clients import ASK_SECONDS, HERTZ, JOB_HERTZ, START_SECONDS
from site_report import CUT_OFF, Row, Seen, rows, table

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = Path(__file__).with_name("site_clients.py")
NAMES = ("anna", "bert", "cleo")
SITE = "demo"
CUT_SECONDS = 4.0
MENDED_SECONDS = 6.0
"""So long after a link is back its connections may still be silent: then they are given up, and made anew."""
CATCH_UP_SECONDS = 60.0


class Client:
    """A process on a host. What it says is printed and kept; what it says to be done is kept only."""

    def __init__(self, site: "DemoSite", host: Host, role: str, *arguments: str) -> None:
        self.host, self.role = host, role
        self.said: list[dict[str, Any]] = []
        self.done: list[tuple[Any, ...]] = []
        self.refused_at: list[float] = []
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
        site.stop_at_end(self._process)
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

    def kill(self) -> None:
        stop(self._process, signal.SIGKILL)
        self._reading.join(START_SECONDS)

    def seen(self) -> Seen:
        return Seen(self.host.name, self.said[-1] if self.said else {}, self.done, self.refused_at)

    def wait(self) -> dict[str, Any]:
        """Let it end by itself, and return what it said last."""
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
            if "done" in said:
                self.done.append(tuple(said["done"]))
                continue
            if isinstance(said.get("refused"), str):
                self.refused_at.append(time.monotonic())
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

    def stop_at_end(self, process: "subprocess.Popen[bytes]") -> None:
        self._ending.callback(stop, process)

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
        self.stop_at_end(started)
        return started


def tell(text: str) -> None:
    print(text, flush=True)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(0.1)


class Clients:
    """All clients of the demo but those of the table, by what they do."""

    def __init__(self, site: DemoSite) -> None:
        anna, bert, cleo = (site.hosts[name] for name in NAMES)
        self._all: list[Client] = []

        def start(role: str, *hosts: Host, arguments: tuple[str, ...] = ()) -> list[Client]:
            started = [Client(site, host, role, *arguments) for host in hosts]
            for each in started:
                each.wait_until_ready()
            self._all += started
            return started

        self.subscribers = start("hear", bert, cleo)
        (self.service,) = start("serve", anna)
        (self.waves,) = start("measure", anna)
        (self.jobs,) = start("hand_out", anna)
        self.publishers = start("order", anna, cleo, arguments=("bert",))
        (self.books,) = start("book", cleo)
        self.readers = start("read", bert, cleo)
        self.members = start("work", bert, bert, cleo)
        self.callers = start("ask", bert, cleo)
        (self.writer,) = start("write", cleo)

    def kill_member(self) -> None:
        """Kill a member of the group, and wait until the others have done what was left, and the jobs of a second."""
        killed, *others = self.members
        killed.kill()
        began_at = time.monotonic()
        newest = max((number for each in self.members for (number,) in each.done), default=0)
        left = {(number,) for number in range(newest + JOB_HERTZ)} - set(killed.done)
        until(lambda: left <= {job for each in others for job in each.done}, "the jobs of a killed member")
        tell(f"  the others have done its jobs, and all of the next second, {time.monotonic() - began_at:.1f} s later")

    def end(self) -> None:
        """Have those end that write, then those that read, when they have all or had time enough."""
        for writes in (self.waves, self.jobs, *self.publishers, *self.callers, self.writer):
            writes.end()
        ordered = {each for publisher in self.publishers for each in publisher.done}
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while not ordered <= set(self.books.done) and time.monotonic() < deadline:
            time.sleep(0.1)
        for ends_with_its_stream in (*self.readers, *self.members[1:]):
            ends_with_its_stream.wait()
        for reads in (self.books, *self.subscribers, self.service):
            reads.end()

    def rows(self, excused: tuple[float, float], *more: Client) -> list[Row]:
        seen: dict[str, list[Seen]] = {}
        for each in (*self._all, *more):
            seen.setdefault(each.role, []).append(each.seen())
        return rows(seen, excused)


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

    anna, cleo = site.hosts["anna"], site.hosts[CUT_OFF]
    tell(f"\nAnna writes {HERTZ} items a second and publishes every tenth number; Bert and Cleo read and listen,")
    tell("share jobs of Anna, and ask a service of Anna. Anna and Cleo publish orders, with Bert as home; Cleo books")
    clients = Clients(site)
    time.sleep(seconds)
    for what in ("services", "topics"):
        tell(f"\nmessagehub {what}, on Cleo\n{site.command('cleo', what).stdout.rstrip()}")
    of_table = []
    if with_spark:
        tell("\nSpark writes one table from tasks on Anna and Bert, and Cleo reads it")
        Client(site, anna, "spark", site.start_spark("anna", "bert")).wait()
        of_table = [Client(site, cleo, "fetch")]
        of_table[0].wait()

    tell("\na member of the group, on Bert, is killed")
    clients.kill_member()
    time.sleep(seconds)

    tell("\nthe hub of Bert, which leads and is the home of the orders, is killed")
    site.kill_hub("bert")
    began_at = time.monotonic()
    until(lambda: site.leader("anna") not in (None, "bert"), "another leader")
    tell(f"  the hub of {site.leader('anna')} leads, {time.monotonic() - began_at:.1f} s later")
    time.sleep(seconds)
    site.start_hub("bert")
    tell("  the hub of Bert is back")
    time.sleep(seconds)

    tell(f"\nthe link of Cleo is cut for {CUT_SECONDS:g} s")
    cut_at = time.monotonic()
    cleo.cut()
    time.sleep(CUT_SECONDS)
    cleo.mend()
    excused = (cut_at, time.monotonic() + MENDED_SECONDS + ASK_SECONDS)
    tell("  the link of Cleo is back")
    time.sleep(2 * seconds)

    tell("\nwhat each client saw in the end")
    clients.end()
    promised = clients.rows(excused, *of_table)
    tell(f"\n{table(promised)}")
    return all(each.is_kept for each in promised)


def main() -> int:
    parser = argparse.ArgumentParser(description="A site of three hosts on this machine, and what its clients see.")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to look at each state")
    parser.add_argument("--no-spark", action="store_true", help="leave out the Spark cluster")
    given = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"make demo-site: {reason}")
    from benchmarks.packages import program

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: all that was started is ended
    base = Path(tempfile.mkdtemp(prefix="messagehub-site-"))
    with network(*NAMES) as made:
        site = DemoSite(base, made, program("etcd", "etcd-server"))
        try:
            is_good = show(site, given.seconds, with_spark=not given.no_spark)
        finally:
            site.close()
    if is_good:
        shutil.rmtree(base, ignore_errors=True)
    tell(
        "everything is as docs/howto/several-hosts.md promises" if is_good else f"a promise was broken: logs in {base}"
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
