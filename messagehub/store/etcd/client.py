"""A client of etcd: one request, to whichever member answers, within a deadline.

Rule 1: every call has a deadline. A member that does not answer within a part of it is passed over for the next, and
the one that answered last is asked first.
Rule 2: a request may have been carried out although its answer never came. `TXN` is therefore sent again only if its
conditions make the second attempt fail where the first succeeded; whoever calls sees to that.
Rule 3: safe to use from several threads. It must not be used on both sides of a fork.
Rule 4: what many wait for goes by connections of its own (`direct.py`): transactions of the leader, and the watch. A
call that does not go well there goes by grpcio.
"""

import contextlib
import logging
import math
import os
import ssl
import threading
import time
from collections.abc import Iterator
from time import monotonic
from typing import Any, Protocol

from messagehub.errors import StoreError
from messagehub.store.etcd import errors, messages
from messagehub.store.etcd.access import EtcdAccess, is_secure, target
from messagehub.store.etcd.direct import DirectConnection, NotPlain, tls_context
from messagehub.store.etcd.messages import EtcdMethod

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is loaded: what matters is in the errors that we raise
import grpc

log = logging.getLogger("messagehub.store")

REQUEST_SECONDS = 5.0
ATTEMPT_SECONDS = 1.5
PAUSE_SECONDS = 0.05
DIRECT_AGAIN_SECONDS = 5.0
"""For how long calls go by grpcio after one that did not go well."""
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
        self._tls = self._tls_context()
        self._direct: tuple[str, DirectConnection] | None = None
        self._using_direct = threading.Lock()
        self._direct_at = self._watch_directly_at = 0.0

    def close(self) -> None:
        with self._using_direct:
            self._end_direct()
        for _, channel in self._channels:
            channel.close()

    def commit(self, request: Any) -> Any:
        """Return the response to a transaction; raise a StoreError. By the quickest way to the member asked last."""
        deadline = monotonic() + self._request_seconds
        if monotonic() >= self._direct_at and self._using_direct.acquire(blocking=False):
            try:
                answer = self._ask_directly(messages.TXN, request)
            finally:
                self._using_direct.release()
            if answer is not None:
                return answer
        return self._ask(messages.TXN, request, deadline)

    def ask(self, method: EtcdMethod, request: Any) -> Any:
        """Return the response of the first member that gives one; raise a StoreError."""
        return self._ask(method, request, monotonic() + self._request_seconds)

    def _ask(self, method: EtcdMethod, request: Any, deadline: float) -> Any:
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

    def stream(self, method: EtcdMethod, request: Any) -> "EtcdStream":
        """Return a stream of responses, to be iterated and cancelled. It fails as `StreamBroken`.

        It goes to the member that answered last; `pass_over` has the next one tried.
        """
        url, channel = self._channels[self._first % len(self._channels)]
        try:
            token = self._token or self._authenticate(channel, self._request_seconds)
        except grpc.RpcError as failed:
            raise StreamBroken(failed) from None
        if monotonic() >= self._watch_directly_at:
            with contextlib.suppress(OSError, NotPlain):
                return _DirectStream(self, DirectConnection(url, self._tls), method, request, token)
            self._stream_failed()
        call = channel.unary_stream(method.path, method.request.SerializeToString, method.response.FromString)
        return _GrpcStream(call(request, metadata=_metadata(token)))

    def _stream_failed(self) -> None:
        """Take grpcio for streams, for a while: it knows why nothing came."""
        self._watch_directly_at = monotonic() + DIRECT_AGAIN_SECONDS

    def pass_over(self) -> None:
        """Ask another member first from now on."""
        self._first += 1
        self._token = ""  # the next one may not know it

    def _ask_directly(self, method: EtcdMethod, request: Any) -> Any:
        """Return the response; None if there was none: then grpcio is to ask."""
        url, channel = self._channels[self._first % len(self._channels)]
        if self._direct is not None and self._direct[0] != url:
            self._end_direct()
        try:
            token = self._token or self._authenticate(channel, self._attempt_seconds)
            if self._direct is None:
                self._direct = url, DirectConnection(url, self._tls)
            answer = self._direct[1].call(method.path, request.SerializeToString(), token, self._attempt_seconds)
            return method.response.FromString(answer) if answer is not None else None
        except TimeoutError:
            self._first += 1
        except (OSError, NotPlain) as why:
            log.debug("etcd at %s is asked by grpcio, because of %r", url, why)
        except grpc.RpcError:
            return None  # of authentication, which is tried again
        self._end_direct()
        self._direct_at = monotonic() + DIRECT_AGAIN_SECONDS
        return None

    def _end_direct(self) -> None:
        if self._direct is not None:
            self._direct[1].close()
            self._direct = None

    def _tls_context(self) -> ssl.SSLContext | None:
        if not is_secure(self._access.endpoints[0]):
            return None
        ca = self._access.certificates()["root_certificates"]
        cert, key = (str(path) if path else None for path in (self._access.cert, self._access.key))
        try:
            return tls_context(ca, cert, key)
        except (OSError, ValueError) as error:  # grpcio may know what to do with them
            log.debug("etcd is not asked directly: %s", error)
            self._direct_at = self._watch_directly_at = math.inf
            return None

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


class StreamBroken(Exception):
    """The responses have ended, for whatever reason."""


class EtcdStream(Protocol):
    def __iter__(self) -> Iterator[Any]: ...

    def cancel(self) -> None:
        """Have the iteration end, from any thread."""


class _GrpcStream:
    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._call
        except grpc.RpcError as failed:
            raise StreamBroken(failed) from None

    def cancel(self) -> None:
        self._call.cancel()


class _DirectStream:
    def __init__(
        self, client: EtcdClient, connection: DirectConnection, method: EtcdMethod, request: Any, token: str
    ) -> None:
        self._client, self._connection, self._is_cancelled = client, connection, False
        self._decoded = method.response.FromString
        self._messages = connection.messages(method.path, request.SerializeToString(), token)

    def __iter__(self) -> Iterator[Any]:
        try:
            for message in self._messages:
                yield self._decoded(message)
        except (OSError, NotPlain) as why:
            if not self._is_cancelled:
                self._client._stream_failed()
            raise StreamBroken(why) from None
        finally:
            self._connection.close()

    def cancel(self) -> None:
        self._is_cancelled = True
        self._connection.cancel()


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
