"""What the monitor of a ZeroMQ socket says.

Not `zmq.utils.monitor`: that imports asyncio and with it ssl, 40 ms in every process that starts.
"""

import struct

import zmq

_EVENT_AND_VALUE = struct.Struct("=hi")


def next_event(monitor: "zmq.Socket[bytes]") -> tuple[int, int]:
    """Wait for the next event and return it (`zmq.EVENT_*`) with its value."""
    event, value = _EVENT_AND_VALUE.unpack(monitor.recv_multipart()[0])
    return event, value
