"""A storm over a site: parts of three hosts and three members of etcd are killed, paused and cut off, several at once.

What is struck is mended after a while; the order is fixed by a seed, the moments are not. The storm starts again what
it killed, and a hub that did not find etcd, as systemd would.
"""

import contextlib
import heapq
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.namespaces import Host, Network, stop
from tests import preloaded
from tests.faults.chaos.history import History, Writer
from tests.faults.chaos.storm import command_line, descendants
from tests.integration.harness import PATIENCE_SECONDS, ROOT, Message, Peer, eventually
from tests.site.storm.roles import ROLES

HUBS = ("anna", "bert", "cleo")
ETCDS = ("etcd1", "etcd2", "etcd3")
SITE = "storm"
SETTINGS = {"host_lease_seconds": 3, "beacon_seconds": 0.2, "heartbeat_seconds": 1.0, "stall_seconds": 8.0}
PAUSE_SECONDS = (0.2, 4.0)
"""More than the lease of a leader, and than that of a host."""
AWAY_SECONDS = (0.0, 4.0)
AGAIN_SECONDS = 0.5
STRIKE_SECONDS = (0.1, 0.8)
START_SECONDS = 60.0
ANSWER_SECONDS = 5.0

Strike = tuple[str, str, str]
"""What is struck, on which host, and how."""


class Program:
    """A process on a host that is to run all the time."""

    def __init__(self, host: Host, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.host, self.log = host, log
        self._command, self._environment = command, environment
        self.start()

    def start(self) -> None:
        self.starts_at = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            if self._command[0] == sys.executable:
                self.process: subprocess.Popen[Any] = preloaded.Popen(
                    self._command, stdout=log, stderr=log, env=self._environment, cwd=ROOT, namespaces_of=self.host.pid
                )
            else:
                command = self.host.command(
                    "setpriv", "--pdeathsig", "KILL", *self._command
                )  # a killed run leaves none
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        """Return what it has logged since it was started."""
        with self.log.open("rb") as log:
            log.seek(self.starts_at)
            return log.read().decode(errors="replace")

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)


class SiteStorm:
    def __init__(self, directory: Path, network: Network, etcd: str, seed: int) -> None:
        self.directory, self.hosts = directory, network.hosts
        self.history = History(directory / "history")
        self._etcd = etcd
        self._chance = random.Random(seed)
        self._log = Writer(self.history.next_file("storm"), "storm")
        self._log.note("seed", seed=seed)
        self._programs: dict[tuple[str, str], Program] = {}
        """By what it is and the name of its host."""
        self._busy: set[tuple[str, str]] = set()
        """What is struck at the moment; nobody strikes it again before it is mended."""
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._is_raging = False

    # -- beginning -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start everything; return when all hosts see a leader, and each client has got something done."""
        etcds = [self.hosts[name] for name in ETCDS]
        for host in etcds:
            # In the memory of its host: a loaded disk makes etcd miss its own deadlines.
            self._start("etcd", host, host.etcd(self._etcd, "/dev/shm/etcd", etcds))
        for name in HUBS:
            host, directory = self.hosts[name], self.hub_directory(name)
            directory.mkdir(mode=0o700)
            lines = [f"{key} = {value}" for key, value in SETTINGS.items()]
            (directory / "messagehub.toml").write_text("\n".join(lines) + "\n")
            command = [sys.executable, "-m", "messagehub", "serve", "--dir", str(directory), "--no-http"]
            self._start("hub", host, [*command, *host.site_options(SITE, etcds)])
        self.until(self.is_one_site, START_SECONDS)
        for name in HUBS:
            for role in ROLES:
                self.start_client(role, name)

    def start_client(self, role: str, name: str) -> None:
        host = self.hosts[name]
        path = self.history.next_file(role)
        command = [sys.executable, "-m", "tests.site.storm.roles", role, str(self.hub_directory(name)), str(path)]
        self._start(role, host, [*command, ",".join(HUBS)])

    def hub_directory(self, name: str) -> Path:
        return self.directory / name

    def until(self, condition: Callable[[], object], timeout: float) -> None:
        """Wait, and keep everything running meanwhile."""

        def met() -> object:
            self._tend()
            return condition()

        eventually(met, timeout=timeout)

    def is_one_site(self) -> bool:
        """Return whether all hubs follow one leader, are healthy, and know each other's gateway and topics."""
        leaders = set()
        for name in HUBS:
            seen = self.ask_hosts(name)
            listed = {each["host"]: each for each in seen["hosts"]} if seen else {}
            leaders.add(next((host for host, each in listed.items() if each.get("is_leader")), None))
            if listed.keys() != set(HUBS) or any(
                each["health"] != "healthy" or not each["gateway"] or not each["topics"] for each in listed.values()
            ):
                return False
        return len(leaders) == 1 and None not in leaders

    def ask_hosts(self, name: str) -> Message | None:
        """Return what the hub of a host says of the site."""
        return self._ask(name, {"type": "HOST_LIST_REQUEST"})

    def _ask(self, name: str, message: Message) -> Message | None:
        """Return what a hub answers, if it does. Its socket is in the file system, which all hosts share."""
        try:
            endpoint = json.loads((self.hub_directory(name) / "broker.json").read_text())["endpoint"]
        except FileNotFoundError:
            return None
        try:
            with Peer(endpoint) as peer:
                answer = peer.ask(message, timeout=ANSWER_SECONDS)
        except AssertionError:
            return None
        if answer["type"] == "ERROR":
            self._log.note("no answer", on=name, asked=message["type"], said=answer["message"])
            assert answer["retryable"], answer
            return None
        return answer

    # -- the storm -----------------------------------------------------------------------------------------

    def rage(self, seconds: float) -> int:
        """Strike for so long, and return how often. Each kind of strike comes once before any comes again."""
        deadline = time.monotonic() + seconds
        kinds: list[Strike] = []
        strikes = 0
        while time.monotonic() < deadline:
            self._wait(self._chance.uniform(*STRIKE_SECONDS))
            kinds = kinds or self._shuffled()
            what, name, how = kinds.pop()
            if (what, name) in self._busy:
                continue
            self._log.note("strike", target=what, on=name, how=how)
            self._strike(what, name, how)
            strikes += 1
        return strikes

    def calm(self) -> None:
        """Mend everything that is struck at the moment."""
        while self._due:
            _, _, mend = heapq.heappop(self._due)
            mend()
        self._log.note("calm")

    def _shuffled(self) -> list[Strike]:
        every: list[Strike] = [("leader", "", "kill"), ("leader", "", "pause"), ("leader", "", "cut")]
        for name in HUBS:
            every += [("hub", name, how) for how in ("kill", "pause", "stop")]
            every += [("link", name, how) for how in ("cut", "refuse")]
            every += [("gateway", name, how) for how in ("kill", "pause")]
            every += [(role, name, self._chance.choice(("kill", "pause"))) for role in ROLES]
        for name in ETCDS:
            every += [("etcd", name, how) for how in ("kill", "pause")]
            every += [("link", name, "cut")]
        self._chance.shuffle(every)
        return every

    def _strike(self, what: str, name: str, how: str) -> None:
        if what == "leader":
            leader = next(filter(None, map(self._leader, HUBS)), HUBS[0])
            what, name = ("link" if how == "cut" else "hub"), leader
            if (what, name) in self._busy:
                return
            self._log.note("leader", on=name)
        self._busy.add((what, name))
        if what == "link":
            self._strike_link(name, how)
        elif what == "gateway":
            self._strike_gateway(name, how)
        elif how == "pause":
            program = self._programs[what, name]
            program.signal(signal.SIGSTOP)
            self._mend(what, name, PAUSE_SECONDS, lambda: program.signal(signal.SIGCONT))
        else:
            program = self._programs[what, name]
            if how == "stop":
                program.signal(signal.SIGTERM)
            else:
                program.kill()
            start = program.start if what in ("hub", "etcd") else lambda: self.start_client(what, name)
            self._mend(what, name, AWAY_SECONDS, lambda: self._start_again(what, program, start))

    def _start_again(self, what: str, program: Program, start: Callable[[], None]) -> None:
        try:
            code = program.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{program.log.name} does not stop: {program.said()[-3000:]}") from None
        said = program.said()
        is_ended = code in (0, -signal.SIGKILL) or (what == "hub" and self._did_not_start(code, said))
        assert is_ended, f"{program.log.name} ended with {code}: {said[-3000:]}"
        start()

    def _did_not_start(self, code: int, said: str) -> bool:
        """Return whether a hub ended as it may before it is ready: asked to stop, or without its etcd."""
        return " ready: " not in said and (code == -signal.SIGTERM or (code == 1 and "etcd" in said))

    def _strike_link(self, name: str, how: str) -> None:
        host = self.hosts[name]
        if how == "cut":
            host.cut()
            self._mend("link", name, PAUSE_SECONDS, host.mend)
            return
        other = self.hosts[self._chance.choice([each for each in HUBS if each != name])]
        host.refuse(other)
        self._mend("link", name, PAUSE_SECONDS, lambda: host.accept(other))

    def _strike_gateway(self, name: str, how: str) -> None:
        found = [pid for pid in descendants(self._programs["hub", name].pid) if "cluster.gateway" in command_line(pid)]
        mends = []
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
                mends.append(pid)

        def go_on() -> None:
            for pid in mends:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        self._mend("gateway", name, PAUSE_SECONDS, go_on)

    def _leader(self, name: str) -> str | None:
        if ("hub", name) in self._busy or ("link", name) in self._busy:
            return None
        seen = self.ask_hosts(name)
        return next((each["host"] for each in seen["hosts"] if each.get("is_leader")), None) if seen else None

    def _mend(self, what: str, name: str, within: tuple[float, float], mend: Callable[[], None]) -> None:
        def done() -> None:
            mend()
            self._busy.discard((what, name))
            self._log.note("mended", target=what, on=name)

        heapq.heappush(self._due, (time.monotonic() + self._chance.uniform(*within), next(self._order), done))

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
            self._tend()
            time.sleep(0.02)

    def _tend(self) -> None:
        """Fail if somebody has ended by its own judgement; start a hub again that did not find its etcd."""
        for (what, name), program in list(self._programs.items()):
            if (what, name) in self._busy or program.process.poll() is None:
                continue
            said = program.said()
            if what == "hub" and self._did_not_start(program.process.returncode, said):
                self._log.note("not started", on=name, said=said[-500:])
                time.sleep(AGAIN_SECONDS)
                program.start()
                continue
            raise AssertionError(f"{what} on {name} ended with {program.process.returncode}: {said[-3000:]}")

    # -- ending --------------------------------------------------------------------------------------------

    def run(self, role: str, name: str) -> None:
        """Run a client that ends by itself."""
        self.start_client(role, name)
        client = self._programs.pop((role, name))
        code = client.process.wait(PATIENCE_SECONDS + self.history_seconds())
        assert code == 0, client.said()[-3000:]

    def history_seconds(self) -> float:
        """Return more than it takes to read all that was registered."""
        return sum(path.stat().st_size for path in self.history.directory.glob("*-write.jsonl")) / 20_000

    def stop_clients(self) -> None:
        for key in [key for key in self._programs if key[0] in ROLES]:
            self._programs.pop(key).kill()

    def members(self) -> list[str]:
        """Return who is registered, by what any of the hubs says."""
        found: list[str] = []
        for name in HUBS:
            seen = self._ask(name, {"type": "CHANNEL_LIST_REQUEST", "prefix": "ring."}) or {"channels": [f"{name}?"]}
            found += map(str, seen["channels"])
        return found

    def stop_hubs(self) -> None:
        """Ask all hubs to stop, and fail if one does not do so cleanly."""
        hubs = [self._programs.pop(("hub", name)) for name in HUBS]
        for hub in hubs:
            hub.signal(signal.SIGTERM)
        for hub in hubs:
            code = hub.process.wait(PATIENCE_SECONDS)
            assert code == 0, f"a stopped hub ended with {code}: {hub.said()[-3000:]}"

    def stop_etcd(self) -> None:
        for name in ETCDS:
            self._programs.pop(("etcd", name)).kill()

    def ask_everybody(self) -> None:
        """Have clients write where they are to their complaints."""
        for (what, _), program in self._programs.items():
            if what in ROLES:
                program.signal(signal.SIGUSR1)
        time.sleep(1.0)

    def keep(self, place: Path) -> None:
        shutil.copytree(self.directory, place, ignore=shutil.ignore_patterns("*.sock"), dirs_exist_ok=True)

    def close(self) -> None:
        self._due.clear()
        for program in self._programs.values():
            with contextlib.suppress(ProcessLookupError):
                program.signal(signal.SIGCONT)
            if program.process.poll() is None:
                stop(program.process, signal.SIGKILL)
        self._log.close()

    def _start(self, what: str, host: Host, command: list[str]) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MESSAGEHUB_")}
        environment["PYTHONPATH"] = str(ROOT)
        log = self.directory / f"{host.name}-{what}.log"
        self._programs[what, host.name] = Program(host, command, log, environment)
