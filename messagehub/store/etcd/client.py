"""A client of etcd: one request, to whichever member answers, within a deadline.

Rule 1: every call has a deadline. A member that does not answer within a part of it is passed over for the next, and
the one that answered last is asked first.
Rule 2: a request may have been carried out although its answer never came. `TXN` is therefore sent again only if its
conditions make the second attempt fail where the first succeeded; whoever calls sees to that.
Rule 3: safe to use from several threads. It must not be used on both sides of a fork.
"""

import os
import threading
import time
from time import monotonic
from typing import Any

from messagehub.errors import StoreError
from messagehub.store.etcd import errors, messages
from messagehub.store.etcd.access import EtcdAccess, is_secure, target
from messagehub.store.etcd.messages import EtcdMethod

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is loaded: what matters is in the errors that we raise
import grpc

REQUEST_SECONDS = 5.0
ATTEMPT_SECONDS = 1.5
PAUSE_SECONDS = 0.05
_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),  # etcd hangs up on clients that ask more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


class EtcdClient:
    def __init__(self, access: EtcdAccess, *, request_seconds: float = REQUEST_SECONDS) -> None:
        self._access = access.checked()
        self._request_seconds = request_seconds
        self._attempt_seconds = min(ATTEMPT_SECONDS, request_seconds / len(access.endpoints))
        credentials = None
        if is_secure(access.endpoints[0]):
            credentials = grpc.ssl_channel_credentials(**access.certificates())
        self._password = access.password() if access.user else ""
        self._channels = [(url, _channel(url, credentials)) for url in access.endpoints]
        self._first = 0
        """Which member is asked first."""
        self._token = ""
        self._authenticating = threading.Lock()

    def close(self) -> None:
        for _, channel in self._channels:
            channel.close()

    def ask(self, method: EtcdMethod, request: Any) -> Any:
        """Return the response of the first member that gives one; raise a StoreError."""
        deadline = monotonic() + self._request_seconds
        seen: dict[str, str] = {}
        attempts = 0
        while (left := deadline - monotonic()) > 0 or not attempts:
            url, channel = self._channels[self._first % len(self._channels)]
            attempts += 1
            try:
                token = self._token or self._authenticate(channel, left)
                return _call(channel, method, request, token, min(left, self._attempt_seconds))
            except grpc.RpcError as failed:
                said = str(failed.details() or failed.code().name)
                if self._token and "invalid auth token" in said:  # of another run of etcd, or too old
                    self._token = ""
                    continue
                if (known := errors.of_reply(said, where=url)) is not None:
                    raise known from None
                if failed.code() in _DEFECTS:
                    raise StoreError(f"etcd at {url} refuses a request: {said}") from None
                seen[url] = said
                self._first += 1
                if attempts % len(self._channels) == 0:
                    time.sleep(min(PAUSE_SECONDS, max(deadline - monotonic(), 0.0)))
        raise errors.unavailable(seen)

    def stream(self, method: EtcdMethod, request: Any) -> Any:
        """Return the call of a stream of responses, to be iterated and cancelled; it fails as `grpc.RpcError`.

        It goes to the member that answered last; `pass_over` has the next one tried.
        """
        _, channel = self._channels[self._first % len(self._channels)]
        token = self._token or self._authenticate(channel, self._request_seconds)
        call = channel.unary_stream(method.path, method.request.SerializeToString, method.response.FromString)
        return call(request, metadata=_metadata(token))

    def pass_over(self) -> None:
        """Ask another member first from now on."""
        self._first += 1
        self._token = ""  # the next one may not know it

    def _authenticate(self, channel: Any, left: float) -> str:
        """Return a token for the user, or an empty one where there is no user."""
        if not self._access.user:
            return ""
        with self._authenticating:
            if not self._token:
                request = messages.AUTHENTICATE.request(name=self._access.user, password=self._password)
                answer = _call(channel, messages.AUTHENTICATE, request, "", min(left, self._attempt_seconds))
                self._token = str(answer.token)
            return self._token


_DEFECTS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OUT_OF_RANGE)


def _channel(url: str, credentials: Any) -> Any:
    if credentials is None:
        return grpc.insecure_channel(target(url), options=_OPTIONS)
    return grpc.secure_channel(target(url), credentials, options=_OPTIONS)


def _call(channel: Any, method: EtcdMethod, request: Any, token: str, timeout: float) -> Any:
    call = channel.unary_unary(method.path, method.request.SerializeToString, method.response.FromString)
    return call(request, timeout=timeout, metadata=_metadata(token))


def _metadata(token: str) -> list[tuple[str, str]]:
    return [("token", token)] if token else []
