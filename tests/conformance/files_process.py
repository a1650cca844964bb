"""A process that uses the directory of channels without a broker, one request at a time, until it is killed."""

import base64
import contextlib
import json
import pickle
import subprocess
import sys
from typing import Any

import msgspec

from messagehub.discovery.via_directory import ViaFiles
from messagehub.errors import HubError
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.identity import ProcessIdentity
from registry import commands
from tests import preloaded
from tests.integration.harness import PATIENCE_SECONDS, ROOT, clean_environment

PREFIX = "pylabhub_"


def plain(value: Any) -> Any:
    """As JSON."""
    return msgspec.to_builtins(value)


def answer_of(ask: Any) -> Any:
    """The reply or the refusal, as JSON."""
    try:
        return plain(ask())
    except HubError as refused:
        return {"type": "ERROR", "code": refused.code, "message": refused.message, "details": plain(refused.details)}


class FilesProcess:
    """Its registrations end when it is killed, and only then."""

    def __init__(self, domain: str) -> None:
        self._popen = preloaded.Popen(
            [sys.executable, "-m", "tests.conformance.files_process", domain],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean_environment(),
        )
        identity = ProcessIdentity.of(self._popen.pid)
        assert identity is not None
        self.identity = identity

    def ask(self, command: commands.Command) -> Any:
        """Reply or refusal as JSON."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(base64.b64encode(pickle.dumps(command)).decode() + "\n")
        self._popen.stdin.flush()
        return json.loads(self._popen.stdout.readline())

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait(PATIENCE_SECONDS)
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _serve(domain: str) -> None:
    files = ViaFiles(Directory(domain), shm_prefix=PREFIX)
    for line in sys.stdin:
        command = pickle.loads(base64.b64decode(line))  # also what no broker would decode
        print(json.dumps(answer_of(lambda command=command: files.ask(command, timeout=PATIENCE_SECONDS))), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
