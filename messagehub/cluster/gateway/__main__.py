"""The gateway's process. Started by `messagehub serve`, which tells it where to serve, and ends with it."""

import argparse
import logging
import os
import resource
import signal
from pathlib import Path
from typing import Any

from messagehub.runtime.child_process import end_with_parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="messagehub.cluster.gateway")
    parser.add_argument("--parent", type=int, required=True, help="the process of the hub: this one ends with it")
    parser.add_argument("--ready-fd", type=int, required=True, help="a pipe that is told the port when this serves")
    parser.add_argument("--location", required=True, help="where to serve, as Flight names it")
    parser.add_argument("--settings", required=True, help="as JSON: those of the hub")
    parser.add_argument("--token-file", type=Path, required=True, help="its content lets in whoever runs the hub")
    parser.add_argument("--secret-file", type=Path, required=True, help="what hubs of the site sign tokens with")
    arguments = parser.parse_args()
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # they are for the hub, which starts this process again where it must
    end_with_parent(arguments.parent, "messagehub.cluster.gateway")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _serve(arguments)


def _serve(arguments: argparse.Namespace) -> None:
    # Not above: they take a while, in which this process would outlive its hub and keep its address.
    from messagehub.cluster.gateway.callers import MIDDLEWARE, GatewayCallers
    from messagehub.cluster.gateway.server import GatewayServer
    from messagehub.runtime.logs import set_up
    from messagehub.runtime.signals import ended_by_signal
    from messagehub.security.audit import AuditLog
    from messagehub.security.credentials import AccessFile, OwnerToken
    from messagehub.security.known_tokens import KnownTokens
    from messagehub.security.private_files import read_private
    from messagehub.settings import Settings
    from messagehub.shm.channel_directory.location import directory_of
    from messagehub.shm.identity import host

    settings = Settings.from_json(arguments.settings)
    set_up(settings.log, settings.log_format)
    audit = (
        AuditLog(settings.dir / "audit-gateway.log", max_bytes=settings.audit_bytes)
        if settings.audit is not False
        else None
    )
    callers = GatewayCallers(
        KnownTokens(AccessFile(settings.access_path), OwnerToken(arguments.token_file)),
        secret=read_private(arguments.secret_file).decode().strip(),
        host=host(),
        requests_per_second=settings.requests_per_second,
        audit=audit,
    )
    options: dict[str, Any] = {"middleware": {MIDDLEWARE: callers}}
    if settings.http_cert:
        chain, key = Path(settings.http_cert).read_bytes(), Path(settings.http_key).read_bytes()
        options["tls_certificates"] = [(chain, key)]
    server = GatewayServer(directory_of(settings), arguments.location, **options)
    os.write(arguments.ready_fd, f"{server.port}\n".encode())
    os.close(arguments.ready_fd)
    logging.getLogger("messagehub.gateway").info("the gateway serves at port %d, pid %d", server.port, os.getpid())
    with ended_by_signal():
        # Streams of rings never end by themselves. Whoever reads one goes on at the gateway that comes next.
        os._exit(0)


if __name__ == "__main__":
    main()
