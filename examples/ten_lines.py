"""The three draft requests from a plain REQ socket. `make run` in another terminal first."""

import json
import os

import zmq

directory = os.environ.get("MESSAGEHUB_DIR", os.path.expanduser("~/.local/state/messagehub"))
socket = zmq.Context().socket(zmq.REQ)
socket.setsockopt(zmq.RCVTIMEO, 5000)
socket.setsockopt(zmq.LINGER, 0)
socket.connect(os.environ.get("MESSAGEHUB_ENDPOINT", f"ipc://{directory}/broker.sock"))
for request in (
    {
        "type": "PRODUCER_REGISTER",
        "channel": "sensor_data",
        "schema_hash": "abc123",
        "schema_version": "1.0.0",
        "config": {"policy": "RingBuffer", "capacity": 10, "page_size": 4096},
    },
    {
        "type": "CONSUMER_REGISTER",
        "channel": "sensor_data",
        "consumer_id": "consumer_001",
        "expected_schema_hash": "abc123",
    },
    {"type": "DISCOVERY_REQUEST", "channel": "sensor_data"},
):
    socket.send_json(request)
    print(json.dumps(socket.recv_json(), indent=2))
