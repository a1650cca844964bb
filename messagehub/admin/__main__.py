"""`python -m messagehub.admin`: the HTTP process. Started by `messagehub serve`, which hands it a bound socket."""

import argparse
import os
import signal
import socket
from pathlib import Path

import uvicorn

from messagehub.admin.app import create_app
from messagehub.hub import MessageHub

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="messagehub.admin")
    parser.add_argument("--fd", type=int, required=True, help="a bound listening socket")
    parser.add_argument("--dir", required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--token-file", type=Path, help="writes need its content; without it they are open")
    parser.add_argument("--log", default="warning")
    arguments = parser.parse_args()
    _end_with_parent()
    token = arguments.token_file.read_text().strip() if arguments.token_file else None
    hub = MessageHub(dir=arguments.dir, endpoint=arguments.endpoint)
    try:
        app = create_app(hub, token=token)
        config = uvicorn.Config(app, log_level=arguments.log.lower(), access_log=False, timeout_keep_alive=60)
        # Not `fd=`: uvicorn takes that for a unix socket, asyncio leaves TCP_NODELAY off, and answers wait 40 ms.
        uvicorn.Server(config).run(sockets=[socket.socket(fileno=arguments.fd)])
    finally:
        hub.close()


def _end_with_parent() -> None:
    """The kernel ends this process when `serve` dies, however it dies."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        raise SystemExit("messagehub.admin: its hub is gone")


if __name__ == "__main__":
    main()
