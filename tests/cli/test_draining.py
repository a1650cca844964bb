"""A hub that takes no writes over HTTP says so wherever somebody looks."""

import httpx

from tests.cli.program import Program, until


def test_draining_shows_in_status_doctor_health_and_metrics(alone: Program) -> None:
    alone.configure()
    with alone.start("serve", "--http", "127.0.0.1:0") as broker:
        broker.says("ready:")
        url = alone.call_json("status")["http"]
        token = (alone.dir / "http.token").read_text().strip()
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60) as client:

            def answers() -> bool:
                try:
                    return client.get("/healthz").status_code == 200
                except httpx.TransportError:
                    return False

            until(answers, "HTTP answers")
            assert client.post("/api/v1/drain").json() == {"draining": True}
            assert alone.call_json("status")["draining"] is True
            assert "DELETE /api/v1/drain" in alone.call("status").stdout
            found = alone.call_json("doctor", code=1)["findings"]
            (finding,) = [one for one in found if "draining" in one["message"]]
            assert (finding["check"], finding["severity"]) == ("http", "warning")
            assert f"{url}/api/v1/drain" in finding["fix"]
            assert client.get("/healthz").json() == {"status": "healthy", "draining": True}
            assert "messagehub_http_draining 1\n" in client.get("/metrics").text

            client.delete("/api/v1/drain")
            assert alone.call_json("status")["draining"] is False
            assert "draining" not in alone.call("status").stdout
            assert "draining" not in alone.call("doctor").stdout
            assert "messagehub_http_draining 0\n" in client.get("/metrics").text
        assert broker.end() == 0


def test_without_http_nobody_knows_of_draining(hub: Program) -> None:
    assert hub.call_json("status")["draining"] is None
