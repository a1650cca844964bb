"""`python -m messagehub.admin`: the HTTP process. Started by `messagehub serve`, which hands it a bound socket."""

import argparse
import logging
import os
import resource
import signal
import socket
from pathlib import Path

from messagehub.runtime.child_process import end_with_parent

STOP_SECONDS = 4
"""How long requests may take to finish when the hub stops, which waits a little longer."""
ACCEPT_SECONDS = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(prog="messagehub.admin")
    parser.add_argument("--parent", type=int, required=True, help="the process of the hub: this one ends with it")
    parser.add_argument("--fd", type=int, required=True, help="a bound listening socket")
    parser.add_argument("--ready-fd", type=int, required=True, help="a pipe that is told when this process serves")
    parser.add_argument("--settings", required=True, help="as JSON: those of the hub, with its endpoint")
    parser.add_argument("--draining", action="store_true", help="take no writes, as the process before")
    parser.add_argument("--token-file", type=Path, help="its content lets in whoever runs the hub; none: everybody")
    arguments = parser.parse_args()
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # they are for the hub, which starts this process again where it must
    end_with_parent(arguments.parent, "messagehub.admin")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # 1024, where many begin, are fewer than we let connect
    _serve(arguments)


def _serve(arguments: argparse.Namespace) -> None:
    # Not above: they take a second, in which this process would outlive its hub and keep its address.
    import asyncio

    import uvicorn

    from messagehub.admin.app import create_app
    from messagehub.admin.authentication import HttpAuthentication
    from messagehub.admin.connections import PatientProtocol
    from messagehub.hub import MessageHub
    from messagehub.runtime.logs import set_client_level, set_up
    from messagehub.security.audit import AuditLog
    from messagehub.security.credentials import AccessFile, OwnerToken
    from messagehub.settings import Settings
    from registry.access import Rights

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            os.write(arguments.ready_fd, b"1")
            os.close(arguments.ready_fd)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Let callers that were accepted become connections first: asyncio would drop them with the server."""
            loop = asyncio.get_running_loop()
            for listening in sockets or []:
                loop.remove_reader(listening)
            await asyncio.sleep(ACCEPT_SECONDS)
            await super().shutdown(sockets)

    settings = Settings.from_json(arguments.settings)
    set_up(settings.log, settings.log_format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # that it starts and stops, the hub says
    token = OwnerToken(arguments.token_file) if arguments.token_file else None
    hub = MessageHub(settings)
    set_client_level(settings.log)  # what the hub was started with counts for more than MESSAGEHUB_LOG
    audit = (
        AuditLog(settings.dir / "audit-http.log", max_bytes=settings.audit_bytes)
        if settings.audit is not False
        else None
    )
    callers = HttpAuthentication(
        AccessFile(settings.access_path),
        token=token,
        anonymous=Rights.parse((settings.http_anonymous or "").split()),
        origins=settings.http_cors,
        requests_per_second=settings.requests_per_second,
        audit=audit,
    )
    try:
        app = create_app(hub, callers, is_tls=bool(settings.http_cert), is_draining=arguments.draining)
        logging.getLogger("messagehub.http").info("the HTTP process serves, pid %d", os.getpid())
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # whoever calls could choose the address that limits are counted by
            http=PatientProtocol,
            loop="asyncio",
            timeout_keep_alive=60,
            timeout_graceful_shutdown=STOP_SECONDS,
            ws="none",
            ssl_certfile=settings.http_cert or None,
            ssl_keyfile=settings.http_key or None,
        )
        # Not `fd=`: uvicorn takes that for a unix socket, asyncio leaves TCP_NODELAY off, and answers wait 40 ms.
        Server(config).run(sockets=[socket.socket(fileno=arguments.fd)])
    finally:
        hub.close()


if __name__ == "__main__":
    main()
