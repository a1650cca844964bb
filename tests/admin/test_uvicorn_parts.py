"""`admin/connections.py` stands on parts of uvicorn that no documentation promises: a version that changes them is
noticed here, before a connection is served by it."""

import ast
import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import uvicorn
from packaging.requirements import Requirement
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from messagehub.admin.connections import AnswerWriter, PatientProtocol

ROOT = Path(__file__).parents[2]
CYCLES = {"cycle", "running", "self.cycle"}
"""What our classes call the request that is being answered."""


def attributes(kind: type) -> list[tuple[str, str]]:
    """What the source of a class has before and after each dot."""
    tree = ast.parse(inspect.getsource(kind))
    return [(ast.unparse(node.value), node.attr) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]


def used() -> tuple[set[str], set[str]]:
    """The attributes that our protocol uses of itself, and that it and its writer use of a request."""
    of_connection = {name for of, name in attributes(PatientProtocol) if of == "self"}
    both = [*attributes(PatientProtocol), *attributes(AnswerWriter)]
    return of_connection, {name for of, name in both if of in CYCLES}


async def served() -> HttpToolsProtocol:
    """One of uvicorn's own connections, after it has served a request."""
    config = uvicorn.Config(PlainTextResponse("here"), log_config=None, lifespan="off")
    connection = HttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    server = await asyncio.get_running_loop().create_server(lambda: connection, "127.0.0.1", 0)
    async with server, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"here")
        writer.close()
    return connection


def test_the_installed_uvicorn_is_one_that_we_name_on_both_sides() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [Requirement(text) for text in project["optional-dependencies"]["admin"]]
    (bounds,) = [one.specifier for one in listed if one.name == "uvicorn"]
    assert {bound.operator for bound in bounds} == {">=", "<"}
    assert version("uvicorn") in bounds


def test_uvicorn_has_every_part_that_our_protocol_uses() -> None:
    of_connection, of_request = used()
    connection = asyncio.run(served())
    inherited = of_connection - vars(PatientProtocol).keys() - PatientProtocol.__annotations__.keys()
    assert inherited
    assert inherited - set(dir(connection)) == set()
    assert {"response_complete", "message_event", "keep_alive", "expected_content_length"} <= of_request
    assert isinstance(connection.cycle, RequestResponseCycle)
    assert of_request - set(dir(connection.cycle)) == set()
    assert httptools_impl.STATUS_LINE[431] == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


def test_our_writer_has_every_method_that_an_answer_of_uvicorn_is_written_with() -> None:
    called = {name for of, name in attributes(RequestResponseCycle) if of == "self.transport"}
    assert called == {"write", "close", "is_closing"}
    assert called <= vars(AnswerWriter).keys()


def test_every_method_that_we_replace_is_one_of_uvicorns_with_the_same_arguments() -> None:
    replaced = {name: member for name, member in vars(PatientProtocol).items() if inspect.isfunction(member)}
    public = {name: member for name, member in replaced.items() if not name.startswith("_")}
    assert len(public) > 10
    for name, ours in public.items():
        theirs = getattr(HttpToolsProtocol, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name
    private = replaced.keys() - public.keys()
    assert not private & set(dir(HttpToolsProtocol)), "a method of ours that uvicorn would call as its own"


def test_a_server_starts_and_stops_with_the_sockets_that_it_is_given() -> None:
    for name in ("startup", "shutdown"):
        assert list(inspect.signature(getattr(uvicorn.Server, name)).parameters) == ["self", "sockets"]
