"""Hosts on one machine: each has a network, a hostname and a /dev/shm of its own. Takes root.

`make demo-site` and the storm over a site (tests/site/storm) use them.

The hosts are joined by a bridge in a network namespace of its own, so nothing of this machine's network changes.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

NETWORK = "10.213.77"
TOOLS = ("ip", "nsenter", "unshare")
STOP_SECONDS = 10.0


def why_not() -> str:
    """Return why no hosts can be made here, or an empty text."""
    if os.geteuid() != 0:
        return "hosts of their own take root: they are namespaces of the kernel"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt install iproute2 util-linux"
    tried = subprocess.run(["unshare", "-mun", "true"], capture_output=True, text=True, timeout=30, check=False)
    return f"no namespace can be made here: {tried.stderr.strip()}" if tried.returncode else ""


class Host:
    def __init__(
        self, name: str, address: str, holder: "subprocess.Popen[bytes]", link: str, network: "Network"
    ) -> None:
        self.name, self.address = name, address
        self.pid = holder.pid
        """A process on this host that lives as long as the host."""
        self._link, self._network = link, network

    def command(self, *command: str) -> list[str]:
        """Return the command that runs another one on this host."""
        return ["nsenter", "-t", str(self.pid), "-m", "-u", "-n", *command]

    def cut(self) -> None:
        """Take its cable out."""
        self._network.ip("link", "set", self._link, "down")

    def mend(self) -> None:
        self._network.ip("link", "set", self._link, "up")

    def refuse(self, other: "Host") -> None:
        """Send nothing to another host any more, and answer nothing that comes from it."""
        _run(*self.command("ip", "route", "replace", "blackhole", f"{other.address}/32"))

    def accept(self, other: "Host") -> None:
        _run(*self.command("ip", "route", "del", "blackhole", f"{other.address}/32"))

    def etcd(self, program: str, data: str, members: "list[Host]") -> list[str]:
        """Return the command of a member of etcd on this host; `members` are the hosts of all, this one included."""
        client, peer = f"http://{self.address}:2379", f"http://{self.address}:2380"
        cluster = ",".join(f"{host.name}=http://{host.address}:2380" for host in members)
        return [
            *(program, "--name", self.name, "--data-dir", data, "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster),
        ]

    def site_options(self, site: str, etcd: "list[Host]") -> list[str]:
        """Return the options of `messagehub serve` for a member of a site on this host."""
        urls = ",".join(f"http://{host.address}:2379" for host in etcd)
        return [
            *("--site", site, "--etcd", urls, "--site-endpoint", f"tcp://{self.address}:5575"),
            *("--gateway", f"{self.address}:5576", "--gateway-unencrypted"),
        ]


class Network:
    def __init__(self, names: tuple[str, ...], *, shm_size: str = "512m") -> None:
        self._ending = contextlib.ExitStack()
        try:
            self._switch = self._hold("switch", "true")
            self.ip("link", "add", "br0", "type", "bridge")
            self.ip("link", "set", "br0", "up")
            self.hosts = {name: self._host(number, name, shm_size) for number, name in enumerate(names, 1)}
        except BaseException:
            self.close()
            raise

    def ip(self, *arguments: str) -> None:
        _run("nsenter", "-t", str(self._switch.pid), "-n", "ip", *arguments)

    def close(self) -> None:
        self._ending.close()

    def _host(self, number: int, name: str, shm_size: str) -> Host:
        address, link = f"{NETWORK}.{number}", f"to-{number}"
        holder = self._hold(name, f"mount -t tmpfs -o size={shm_size} tmpfs /dev/shm && hostname {name}")
        self.ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        self.ip("link", "set", link, "master", "br0", "up")
        made = Host(name, address, holder, link, self)
        for arguments in (
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _run(*made.command("ip", *arguments))
        return made

    def _hold(self, name: str, setup: str) -> "subprocess.Popen[bytes]":
        """Start a process that keeps namespaces of its own until it ends, which it does with us."""
        script = f"{setup} && echo ready && exec cat"
        holder = subprocess.Popen(
            ["unshare", "-mun", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._ending.callback(_end, holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise SystemExit(f"host {name} cannot be made")
        return holder


@contextlib.contextmanager
def network(*names: str) -> Iterator[Network]:
    made = Network(names)
    try:
        yield made
    finally:
        made.close()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    stop(process)


def stop(process: "subprocess.Popen[bytes]", how: int = signal.SIGTERM) -> None:
    """End a process and those of its group, if it leads one."""
    target = -process.pid if process.poll() is None and os.getpgid(process.pid) == process.pid else process.pid
    deadline = time.monotonic() + STOP_SECONDS
    while process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, how if time.monotonic() < deadline else signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
