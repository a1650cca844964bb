"""`messagehub request` and `messagehub services`, with a worker in this process."""

import json
from typing import Any

from messagehub import MessageHub
from messagehub.services.context import ServiceContext, ServiceMessage
from tests.cli.program import Program, until


def shout(message: ServiceMessage, context: ServiceContext) -> Any:
    payload = message.payload
    if payload == b"headers":
        return message.headers
    if isinstance(payload, dict):
        for item in payload["stream"]:
            context.stream(item)
        return "end"
    return payload.upper() if isinstance(payload, bytes) else payload


def test_a_request_prints_its_reply(hub: Program) -> None:
    with MessageHub(dir=hub.dir) as worker, worker.serve("service:shout", shout):
        assert hub.run("request", "service:shout", "hello").stdout == "HELLO\n"
        assert hub.call_json("request", "service:shout", stdin="from stdin") == {
            "kind": "text",
            "payload": "FROM STDIN",
        }
        assert hub.call_json("request", "service:shout", "headers", "-H", "a=1") == {
            "kind": "json",
            "payload": {"a": "1"},
        }
        assert hub.call("request", "service:shout", "[1]", "--format", "json").stdout == "[1]\n"
        asked = ("request", "service:shout", '{"stream": [1, 2]}', "--format", "json", "--stream")
        assert hub.call(*asked).stdout == '1\n2\n"end"\n'
        lines = [json.loads(line) for line in hub.call(*asked, "--json").stdout.splitlines()]
        assert [(line["payload"], line["is_reply"]) for line in lines] == [(1, False), (2, False), ("end", True)]
        assert hub.call("request", "service:shout", "x", "--no-reply").stdout == ""


def test_services_and_their_workers_are_listed_and_an_empty_pool_removed(hub: Program) -> None:
    assert "no services yet" in hub.call("services").stdout
    with MessageHub(dir=hub.dir) as worker:
        pool = worker.serve("pool:crew", shout, strategy="least_busy", concurrency=3)
        worker.serve("name:one", shout)
        listed = {one["address"]: one for one in hub.json("services")}
        assert listed.keys() == {"pool:crew", "name:one"}
        (shown,) = listed["pool:crew"]["workers"]
        assert (shown["worker_id"], shown["concurrency"], shown["status"]) == (pool.worker_id, 3, "active")
        text = hub.call("services", "pool:").stdout
        assert "least_busy" in text
        assert "name:one" not in text
        hub.call("services", "remove-pool", "pool:crew", code=1)
        pool.close()
        assert "pool:crew" in hub.call("services").stdout
        hub.call("services", "remove-pool", "pool:crew")
        assert "pool:crew" not in hub.call("services").stdout


def test_what_could_not_be_delivered_is_listed(hub: Program) -> None:
    assert "no dead letters" in hub.call("services", "dead-letters").stdout
    failed = hub.call_json("request", "service:gone", "kept", "--no-reply", "--retries", "1", code=1)
    assert failed["error"]["code"] == "SERVICE_NOT_FOUND"
    listed = until(lambda: hub.call_json("services", "dead-letters")["letters"], "a dead letter")
    assert [(one["address"], one["attempts"], one["payload_base64"]) for one in listed] == [
        ("service:gone", 2, "a2VwdA==")
    ]
    assert "SERVICE_NOT_FOUND" in hub.call("services", "dead-letters", "service:gone").stdout
    assert hub.call_json("services", "dead-letters", "service:other")["kept"] == 1


def test_what_could_not_be_delivered_is_sent_again(hub: Program) -> None:
    hub.call("request", "service:away", "kept", "--no-reply", "--header", "trace=7", code=1)
    until(lambda: hub.call_json("services", "dead-letters", "service:away")["letters"], "a dead letter")
    again = hub.call("services", "resend", "service:away", code=1)
    assert again.stdout == "0 sent, 1 failed, 0 without a payload, 0 left\n"
    assert "service:away" in again.stderr
    until(lambda: hub.call_json("services", "dead-letters", "service:away")["letters"], "it is a dead letter again")
    seen: list[tuple[bytes, dict[str, object]]] = []
    with (
        MessageHub(dir=hub.dir) as client,
        client.serve("service:away", lambda message, _: seen.append((message.payload, message.headers))),
    ):
        assert hub.call_json("services", "resend", "service:away") == {
            "sent": 1,
            "without_payload": 0,
            "left": 0,
            "failed": [],
        }
        assert until(lambda: seen, "it came") == [(b"kept", {"trace": "7"})]
    assert hub.call_json("services", "dead-letters", "service:away")["letters"] == []


def test_one_letter_is_sent_again_by_its_number(hub: Program) -> None:
    for payload in ("first", "second"):
        hub.call("request", "service:numbered", payload, "--no-reply", code=1)
    letters = until(
        lambda: len(found := hub.call_json("services", "dead-letters", "service:numbered")["letters"]) == 2 and found,
        "two dead letters",
    )
    seen: list[bytes] = []
    with MessageHub(dir=hub.dir) as client, client.serve("service:numbered", lambda m, _: seen.append(m.payload)):
        assert hub.call_json("services", "resend", "--number", str(letters[1]["number"]))["sent"] == 1
        assert until(lambda: seen, "it came") == [b"second"]
        gone = hub.call("services", "resend", "--number", str(letters[1]["number"]))
        assert "not there any more" in gone.stderr
    (left,) = hub.call_json("services", "dead-letters", "service:numbered")["letters"]
    assert left["number"] == letters[0]["number"]


def test_wrong_use_and_no_broker_are_told_apart(hub: Program, alone: Program) -> None:
    assert "lists who serves" in hub.call("request", "name:gone", "x", code=1).stderr
    assert "must be id:" in hub.call("request", "gone", "x", code=1).stderr
    hub.call("request", "name:gone", "x", "--stream", "--no-reply", code=2)
    hub.call("request", "name:gone", "{", "--format", "json", code=2)
    alone.call("request", "name:gone", "x", code=3)
    alone.call("services", code=3)
