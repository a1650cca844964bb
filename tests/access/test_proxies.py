"""Behind a reverse proxy: who calls, under which path, and a real nginx set up as docs/howto/reverse-proxy.md says."""

import json
import os
import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from messagehub import MessageHub
from messagehub.admin import api
from messagehub.admin.confluent import paths as confluent_paths
from messagehub.admin.forwarding import TrustedProxies
from messagehub.errors import ConfigurationError
from messagehub.setting_checks import HTTP_PATHS
from messagehub.settings import Settings
from tests.access.test_http_rights import WebOfMany, certificate
from tests.debian import program_or_skip
from tests.integration.harness import ROOT, eventually
from tests.ports import own_ports

PAGE = ROOT / "docs" / "howto" / "reverse-proxy.md"


def block(language: str) -> str:
    """What the page shows in that language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


SETTINGS = block("toml").replace('http = "127.0.0.1:8081"', "")


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebOfMany]:
    """Set up as the page says; callers of this host may look without a token."""
    running = WebOfMany(tmp_path_factory.mktemp("proxied") / "proxied", settings=SETTINGS)
    running.register("there", {"type": "object"})
    yield running
    running.close()


@pytest.mark.parametrize(
    "header",
    ["X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded", "Via", "X-Real-IP", "CF-Connecting-IP"],
)
def test_without_a_token_who_comes_through_a_proxy_has_no_rights(web: WebOfMany, header: str) -> None:
    assert web.client.get("/subjects").status_code == 200
    web.client.get("/schemas/ids/1")  # so that it is answered from memory
    assert web.client.get("/schemas/ids/1").status_code == 200
    for value in ("127.0.0.1", "::1", "for=127.0.0.1", "https", "garbage", ""):
        for path in ("/subjects", "/schemas/ids/1", "/metrics", "/hub/subjects"):
            assert web.client.get(path, headers={header: value}).status_code == 401
    assert web.client.get("/healthz", headers={header: "127.0.0.1"}).status_code == 200
    token = {"authorization": f"Bearer {web.tokens['observe']}"}
    assert web.client.get("/subjects", headers={header: "127.0.0.1", **token}).status_code == 200


def test_a_path_with_the_prefix_came_through_the_proxy_even_without_a_header(web: WebOfMany) -> None:
    assert web.client.get("/hub/subjects").status_code == 401
    assert web.ask("GET", "/hub/subjects").json() == ["there"]
    assert web.client.get("/hub").json() == web.client.get("/hub/").json() == {}
    assert web.ask("GET", "/hubs/subjects").status_code == 404
    assert web.ask("GET", "/hub/hub/subjects").status_code == 404


def addresses(web: WebOfMany, *given: str) -> str:
    """The address that the audit log has for a refusal whose X-Forwarded-For headers are these."""
    headers = [("x-forwarded-for", one) for one in given]
    answer = web.client.get("/subjects", headers=[*headers, ("x-forwarded-proto", "https")])
    assert answer.status_code == 401
    (entry,) = [entry for entry in web.audit() if entry["request_id"] == answer.headers["x-request-id"]]
    return str(entry["address"])


def test_an_open_hub_is_not_open_to_who_comes_through_a_proxy(tmp_path: Path) -> None:
    web = WebOfMany(tmp_path / "open-proxied", "--http-open", settings="")
    try:
        assert web.client.post("/api/v1/channels/open", json={}).status_code == 200
        through = {"x-forwarded-for": "203.0.113.9"}
        assert web.client.post("/api/v1/channels/closed", json={}, headers=through).status_code == 401
        for token, status in ((web.tokens["admin"], 200), ("wrong", 401)):
            headers = through | {"authorization": f"Bearer {token}"}
            assert web.client.post("/api/v1/channels/closed", json={}, headers=headers).status_code == status
        assert addresses(web, "203.0.113.9") == "127.0.0.1", "no proxy is trusted here"
    finally:
        web.close()


def test_a_trusted_proxy_is_believed_where_a_request_comes_from(web: WebOfMany) -> None:
    assert addresses(web, "203.0.113.9") == "203.0.113.9"
    assert addresses(web, "1.1.1.1, 203.0.113.9") == "203.0.113.9", "what stands before it may be invented"
    assert addresses(web, "1.1.1.1", "203.0.113.9, 127.0.0.1") == "203.0.113.9"
    assert addresses(web, "[2001:db8::1]:4711") == "2001:db8::1"
    assert addresses(web, "nonsense") == "127.0.0.1"
    assert addresses(web, "") == "127.0.0.1"


def test_networks_and_mapped_addresses_are_recognised() -> None:
    proxies = TrustedProxies("10.1.0.0/16 ::1")
    assert [one in proxies for one in ("10.1.2.3", "::ffff:10.1.2.3", "::1", "10.2.0.1", "", "x")] == [
        *(True, True, True),
        *(False, False, False),
    ]
    assert "127.0.0.1" not in TrustedProxies("")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("http_trusted_proxies", "localhost"),
        ("http_trusted_proxies", "10.1.2.3/16"),
        ("http_trusted_proxies", "127.0.0.1, 127.0.0.2"),
        ("http_prefix", "hub"),
        ("http_prefix", "/hub/"),
        ("http_prefix", "/"),
        ("http_prefix", "/a/../b"),
        ("http_prefix", "/api"),
        ("http_prefix", "/subjects/x"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Settings.load(dir=tmp_path, **{name: value})


def test_no_prefix_can_hide_a_path_of_the_hub() -> None:
    endpoints = [*confluent_paths.ENDPOINTS, *api.ENDPOINTS]
    assert {endpoint.path.split("/")[1] for endpoint in endpoints} - {""} <= HTTP_PATHS


class Nginx:
    """nginx with the page's server block, on a port of its own."""

    def __init__(self, program: str, place: Path, web: WebOfMany) -> None:
        self.cert, key = certificate(place)
        (port,) = own_ports(1)
        server = block("nginx")
        for said, meant in (
            ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
            ("/etc/ssl/lab.pem", str(self.cert)),
            ("/etc/ssl/lab.key", str(key)),
            ("http://127.0.0.1:8081", web.url),
        ):
            assert server.count(said) == 1
            server = server.replace(said, meant)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "".join(f"{kind}_temp_path {place}/{kind};\n" for kind in kinds)
        head = f"daemon off;\npid {place}/nginx.pid;\nerror_log {place}/error.log;\nevents {{}}\n"
        user = "user root;\n" if os.geteuid() == 0 else ""
        configuration = place / "nginx.conf"
        configuration.write_text(f"{user}{head}http {{\naccess_log off;\n{places}{server}}}\n")
        self._process = subprocess.Popen([program, "-p", str(place), "-c", str(configuration)])
        self.url = f"https://localhost:{port}/hub"
        context = ssl.create_default_context(cafile=str(self.cert))
        transport = httpx.HTTPTransport(verify=context, local_address="127.0.0.2")
        self.client = httpx.Client(transport=transport, timeout=60)
        eventually(self._answers, timeout=60)

    def _answers(self) -> bool:
        assert self._process.poll() is None
        try:
            return self.client.get(f"{self.url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, path: str, token: str, method: str = "GET", body: object = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"}
        return self.client.request(method, self.url + path, json=body, headers=headers)

    def close(self) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory, web: WebOfMany) -> Iterator[Nginx]:
    running = Nginx(program_or_skip("nginx", "nginx-light"), tmp_path_factory.mktemp("nginx"), web)
    yield running
    running.close()


@pytest.mark.timeout(600)  # the package may have to be installed
def test_outsiders_of_a_real_nginx_need_a_token_and_are_known_by_their_address(web: WebOfMany, nginx: Nginx) -> None:
    refused = nginx.client.get(f"{nginx.url}/subjects")
    assert refused.status_code == 401
    forged = nginx.client.get(f"{nginx.url}/subjects", headers={"x-forwarded-for": "127.0.0.1"})
    assert forged.status_code == 401
    entries = {entry["request_id"]: entry for entry in web.audit()}
    for answer in (refused, forged):
        assert entries[answer.headers["x-request-id"]]["address"] == "127.0.0.2"
    assert nginx.ask("/subjects", web.tokens["observe"]).status_code == 200
    assert web.client.get("/subjects").status_code == 200, "whoever is on the host itself may look"


@pytest.mark.timeout(600)
def test_subjects_with_slashes_pass_a_real_nginx(web: WebOfMany, nginx: Nginx) -> None:
    body = {"schema": '{"type": "object"}', "schemaType": "JSON"}
    made = nginx.ask("/subjects/orders%2Feu%20%25/versions", web.token, "POST", body)
    assert made.status_code == 200, made.text
    assert "orders/eu %" in web.ask("GET", "/subjects").json()
    assert nginx.ask("/subjects/orders%2Feu%20%25/versions/latest", web.token).json()["subject"] == "orders/eu %"
    settings = {"url": nginx.url, "ssl.ca.location": str(nginx.cert), "basic.auth.user.info": f"me:{web.token}"}
    with SchemaRegistryClient(settings) as client:
        number = client.register_schema("through/nginx", Schema('{"type": "object"}', "JSON"))
        assert client.get_schema(number).schema_str == '{"type": "object"}'
        assert client.get_latest_version("through/nginx").version == 1


@pytest.mark.timeout(600)
def test_documents_and_pages_lead_back_through_a_real_nginx(web: WebOfMany, nginx: Nginx) -> None:
    docs = f"{nginx.url}/docs"
    files = [urljoin(docs, one) for one in re.findall(r'(?:href|src)="([^"]+)"', nginx.client.get(docs).text)]
    assert [nginx.client.get(one).status_code for one in files] == [200, 200, 200]
    (link,) = re.findall(r'url: "([^"]+)"', nginx.client.get(files[-1]).text)
    described = nginx.client.get(urljoin(docs, link))
    assert described.json()["servers"] == [{"url": "/hub"}]
    server = urljoin(str(described.url), described.json()["servers"][0]["url"])
    assert nginx.client.get(f"{server}/schemas/types").status_code == 200
    assert "servers" not in web.client.get("/openapi.json").json()
    for number in range(3):
        web.ask("POST", f"/api/v1/channels/paged.c{number}", {})
    first = nginx.ask("/api/v1/channels?prefix=paged.&limit=2", web.token)
    following = urljoin(str(first.url), first.links["next"]["url"]).removeprefix(nginx.url)
    assert [one["channel"] for one in nginx.ask(following, web.token).json()] == ["paged.c2"]


@pytest.mark.timeout(600)
def test_events_pass_a_real_nginx_at_once(web: WebOfMany, nginx: Nginx) -> None:
    headers = {"authorization": f"Bearer {web.token}"}
    with (
        MessageHub(dir=web.directory) as hub,
        nginx.client.stream("GET", f"{nginx.url}/api/v1/events?prefix=channel/seen/", headers=headers) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        hub.create_channel("seen")
        seen = next(line for line in lines if line.startswith("data: "))
        assert json.loads(seen[6:])["type"] == "CHANNEL_DECLARED"
