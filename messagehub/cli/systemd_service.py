"""`messagehub service`: the hub as a service of systemd, of one user or of the host."""

import os
import pwd
import socket
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from messagehub.cli.failures import HubCommand
from messagehub.cli.options import Dir, Json
from messagehub.cli.output import complain, echo, echo_json
from messagehub.cli.probe import hello_from
from messagehub.errors import ConfigurationError, HubError
from messagehub.runtime.supervision import Supervisor
from messagehub.settings import Settings

app = typer.Typer(
    name="service", help="Run the hub as a service of systemd.", no_args_is_help=True, rich_markup_mode=None
)

_UNIT = """\
[Unit]
Description=MessageHub: where data lives, what schema it has and who is alive
After=network.target

[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=1
WatchdogSec=60
TimeoutStartSec=90
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
{more}
[Install]
WantedBy={wanted_by}
"""
_OF_HOST = """\
User={user}
ProtectSystem=strict
ReadWritePaths={directory} /dev/shm
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
ProtectClock=yes
RestrictNamespaces=yes
CapabilityBoundingSet=
"""

ASKED_IN_TIME = 4
"""How many times the hub is asked in the time after which systemd ends it."""
_IN_UNIT = ("MESSAGEHUB_DIR", "MESSAGEHUB_DOMAIN")

Name = Annotated[str, typer.Option("--name", metavar="NAME", help="The name of the unit.")]
System = Annotated[
    str | None,
    typer.Option(
        "--system", metavar="USER", help="A service of the host that runs as this user. Default: one of yours."
    ),
]


@app.command(cls=HubCommand)
def install(
    *,
    name: Name = "messagehub",
    system: System = None,
    show: Annotated[bool, typer.Option("--print", help="Print the unit and write nothing.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a unit of that name.")] = False,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Write a unit for systemd that runs `messagehub serve`, and say how to start it.

    The service is up when the hub is ready, restarts when it fails or does not answer for a minute, and reloads its
    settings with `systemctl reload`.
    One of the host may write only its directory and shared memory.
    """
    if system is not None and dir is None and not os.environ.get("MESSAGEHUB_DIR"):
        raise ConfigurationError(f"the default directory is yours, and not {system}'s: name the hub's with --dir")
    settings = Settings.load(dir=dir)
    directory = settings.dir
    unit = _unit(settings, system)
    if system is not None and (closed := _closed_to(system, Path(sys.executable))) is not None:
        raise ConfigurationError(
            f"{system} may not use {closed}, so the service could not start {sys.executable}: install messagehub where"
            f" {system} can read it, such as a virtual environment in /opt"
        )
    apart = sorted(name for name in os.environ if name.startswith("MESSAGEHUB_") and name not in _IN_UNIT)
    if apart:
        complain(f"the service does not see your environment: put {', '.join(apart)} into {directory}/messagehub.toml")
    if show:
        echo(unit.rstrip())
        return
    path = _path(name, system)
    if path.exists() and not replace and path.read_text() != unit:
        raise ConfigurationError(f"{path} exists and is another: --replace replaces it, --name takes another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(unit)
        if system is not None:
            _hand_over(directory, system)
    except PermissionError as error:
        raise ConfigurationError(
            f"{error.filename or path} cannot be written: a service of the host needs root"
        ) from None
    control = _control(system)
    following = f"{control} daemon-reload && {control} enable --now {name}"
    if as_json:
        echo_json({"unit": str(path), "dir": str(directory), "start": following})
    else:
        echo(f"{path} is written. To start it, now and with every {'boot' if system else 'login'}:\n  {following}")


@app.command(cls=HubCommand)
def uninstall(
    *,
    name: Name = "messagehub",
    system: Annotated[bool, typer.Option("--system", help="The service of the host. Default: yours.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the unit. The directory with its database stays."""
    path = _path(name, "root" if system else None)
    if not path.exists():
        raise ConfigurationError(f"there is no unit {path}")
    control = _control("root" if system else None)
    path.unlink()
    if as_json:
        echo_json({"unit": str(path), "stop": f"{control} disable --now {name}"})
    else:
        complain(f"if it still runs: {control} stop {name}; then {control} daemon-reload")
        echo(f"{path} is removed")


def notify_supervisor(state: str) -> None:
    """Tell systemd, where it started this process and waits to be told."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect("\0" + address[1:] if address.startswith("@") else address)
            notify.send(state.encode())
    except OSError as error:
        complain(f"messagehub: {state} could not be told to {address}: {error}")


class Watchdog:
    """Tells systemd that the hub works as long as it answers a client, in a thread of its own.

    A hub that is stopped, or whose loop hangs, answers nobody: systemd ends it after the unit's WatchdogSec and starts
    it again.
    """

    def __init__(self, settings: Settings, endpoint: str, supervisor: Supervisor) -> None:
        """Nothing is done where systemd did not ask this process for it."""
        self._settings = settings
        self._endpoint = endpoint
        self._has_ended = threading.Event()
        self._pause = _watchdog_seconds() / ASKED_IN_TIME
        if self._pause:
            supervisor.start("messagehub-watchdog", self._run)

    def close(self) -> None:
        """Say no more. A question that is under way ends with the process: nobody is there to answer it."""
        self._has_ended.set()

    def _run(self) -> None:
        while not self._has_ended.wait(self._pause):
            try:
                hello_from(self._endpoint, self._settings, timeout=self._pause)
            except HubError as error:
                if not self._has_ended.is_set():
                    complain(f"messagehub: the hub does not answer its watchdog: {error.message}")
            else:
                notify_supervisor("WATCHDOG=1")


def _watchdog_seconds() -> float:
    """Return how often systemd wants to hear of this process; 0 where it does not."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    wanted = os.environ.get("WATCHDOG_USEC", "")
    return int(wanted) / 1e6 if wanted.isdecimal() else 0.0


def _unit(settings: Settings, user: str | None) -> str:
    directory = settings.dir
    for text in (str(directory), sys.executable, settings.domain):
        if any(character in text for character in "\n\"'\\%$"):
            raise ConfigurationError(f"{text!r} holds a character that means something else in a unit of systemd")
    command = f'"{sys.executable}" -P -m messagehub serve --dir "{directory}"'
    domain = f"Environment=MESSAGEHUB_DOMAIN={settings.domain}\n" if settings.domain != "default" else ""
    if user is None:
        return _UNIT.format(command=command, more=domain, wanted_by="default.target")
    try:
        pwd.getpwnam(user)
    except (KeyError, ValueError):
        raise ConfigurationError(f"there is no user {user!r}") from None
    more = domain + _OF_HOST.format(user=user, directory=f'"{directory}"')
    return _UNIT.format(command=command, more=more, wanted_by="multi-user.target")


def _closed_to(user: str, program: Path) -> Path | None:
    """Return what keeps the user from running the program: a directory on the way to it, or the file itself."""
    found = pwd.getpwnam(user)
    groups = os.getgrouplist(user, found.pw_gid)
    if found.pw_uid == 0:
        return None
    for path in (program.absolute(), program.resolve()):
        for step in (*reversed(path.parents), path):
            status = step.stat()
            shift = 6 if status.st_uid == found.pw_uid else 3 if status.st_gid in groups else 0
            if not status.st_mode >> shift & 0o1:
                return step
    return None


def _path(name: str, user: str | None) -> Path:
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ConfigurationError(f"{name!r} is no name of a unit: letters, digits, - and _")
    if user is not None:
        return Path("/etc/systemd/system") / f"{name}.service"
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "systemd" / "user" / f"{name}.service"


def _hand_over(directory: Path, user: str) -> None:
    """Have the directory there, and the user's: the service may write nothing beside it."""
    import shutil

    if not directory.exists():
        directory.mkdir(mode=0o700, parents=True)
        shutil.chown(directory, user)


def _control(user: str | None) -> str:
    return "systemctl" if user is not None else "systemctl --user"
