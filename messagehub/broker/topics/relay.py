"""Two sockets, and a thread in which libzmq carries messages from the one to the other."""

import threading

import zmq

from messagehub.broker.access.authentication import rebind
from messagehub.protocol.topic_frames import MAX_FRAME_BYTES
from messagehub.runtime.supervision import Supervisor

HIGH_WATER_MARK = 10_000
HEARTBEAT_MS = 2_000
SILENCE_MS = 10_000
Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


class Relay:
    """The sockets are the thread's once it has started; the other methods belong to the broker's thread."""

    def __init__(
        self, context: Context, name: str, sockets: tuple[Socket, Socket], supervisor: Supervisor, *, is_steered: bool
    ) -> None:
        self._name = name
        self._supervisor = supervisor
        self._thread: threading.Thread | None = None
        self._endpoints = ("", "")
        self._wait_seconds = 0.0
        self._must_cut = False
        self._is_leaving = threading.Event()
        self.incoming, self.outgoing = sockets
        self.outgoing.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self.outgoing.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self.outgoing.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
        self.outgoing.setsockopt(zmq.LINGER, 1000)
        self.incoming.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self.incoming.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._steered: Socket | None = None
        self._steering: Socket | None = None
        if is_steered:
            self._steered, self._steering = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
            self._steered.bind(f"inproc://{name}-steering")
            self._steering.connect(f"inproc://{name}-steering")

    def start(self, *endpoints: str, wait_seconds: float = 0.0) -> None:
        """`endpoints` are those of both sockets; an empty one stands for a socket that nobody connects to."""
        self._endpoints = (endpoints[0], endpoints[1])
        self._wait_seconds = wait_seconds
        self._thread = self._supervisor.start(f"messagehub-topics-{self._name}", self._run)

    def cut(self) -> None:
        self._must_cut = True
        self._pause()

    def leave(self) -> None:
        """Close the sockets of the broker's thread; the caller ends the context afterwards."""
        self._is_leaving.set()
        if self._steering is not None:
            self._steering.close(0)
        if self._thread is None:
            self._close_sockets()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _pause(self) -> None:
        """Have the thread call `_between`."""
        if self._steering is not None:
            self._steering.send(b"TERMINATE", zmq.NOBLOCK)

    def _run(self) -> None:
        try:
            self._is_leaving.wait(self._wait_seconds)
            self._wait_seconds = 0.0  # a thread that is started again does not wait
            while True:
                if self._steered is None:
                    zmq.proxy(self.incoming, self.outgoing)
                else:
                    zmq.proxy_steerable(self.incoming, self.outgoing, None, self._steered)
                    self._between()
        except zmq.ContextTerminated:
            self._close_sockets()

    def _between(self) -> None:
        """Do on the thread what only it may do with the sockets. Messages wait meanwhile."""
        if self._must_cut:
            self._must_cut = False
            for socket, endpoint in zip((self.incoming, self.outgoing), self._endpoints, strict=True):
                rebind(socket, endpoint)

    def _close_sockets(self) -> None:
        self.incoming.close(0)
        self.outgoing.close()
        if self._steered is not None:
            self._steered.close(0)
