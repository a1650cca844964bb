"""The OpenAPI document. FastAPI describes the parameters of typed routes, and all else comes from `Endpoint`."""

import copy
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import MEDIA_TYPE
from messagehub.version import __version__

_PARAMETER = re.compile(r"\{(\w+)\}")
_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_INTEGER = {"type": "integer"}
VERSION_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "latest"}]}
TYPES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("deleted", "deletedOnly", "deleted_only", "permanent", "force", "normalize", "verbose"), _FLAG),
    **dict.fromkeys(("latestOnly", "fetchMaxId", "defaultToGlobal"), _FLAG),
    **dict.fromkeys(("offset", "limit"), _INTEGER),
    "version": VERSION_SCHEMA,
    "key": {"type": "array", "items": _TEXT},
    "value": {"type": "array", "items": _TEXT},
}
SAID = {
    400: "the body is not JSON",
    401: "the token is missing or wrong",
    403: "no right to this",
    404: "not found",
    406: "not acceptable",
    408: "the body did not arrive in time",
    409: "conflict",
    415: "unsupported media type",
    422: "refused",
    429: "too many requests",
    500: "the registry failed",
    503: "no broker answers, or writes are not taken now",
}
ANY = (40101, 406, 422, 429, 500, 50001, 50002, 503)
"""Each `error_code` that every operation may answer with; a parameter that nobody asked for may be too long."""
WITH_ROLE = (40301,)
WITH_BODY = (400, 408, 415, 42209)


def document(plain: Iterable[Endpoint], typed: Iterable[APIRoute]) -> dict[str, Any]:
    """Return what is served under all these routes."""
    described: dict[str, Any] = get_openapi(
        title="MessageHub", version=__version__, routes=[_without_head(route) for route in typed]
    )
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in plain:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    described["paths"] = paths | described["paths"]
    described["components"] = {
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "basic": {"type": "http", "scheme": "basic"},
        },
    }
    return described


def _without_head(route: APIRoute) -> APIRoute:
    """Return the paths without HEAD, which is served wherever GET is."""
    described = copy.copy(route)
    described.methods = (route.methods or set()) - {"HEAD"}
    return described


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "operationId": operation_id(endpoint),
        "summary": summary(endpoint),
        "tags": ["Confluent Schema Registry"],
        "parameters": [
            *(_parameter(name, "path") for name in path_parameters(endpoint)),
            *(_parameter(name, "query") for name in endpoint.query),
        ],
        "responses": responses(endpoint),
        **body_and_security(endpoint),
    }


def body_and_security(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if endpoint.body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": _schema(endpoint.body)}}
    if endpoint.role is not None:
        found["security"] = [{"bearer": []}, {"basic": []}]
    return found


def operation_id(endpoint: Endpoint) -> str:
    return f"{endpoint.method.lower()}_{endpoint.handler.__name__}_{len(endpoint.path)}"


def summary(endpoint: Endpoint) -> str:
    return (endpoint.handler.__doc__ or endpoint.handler.__name__.replace("_", " ")).splitlines()[0]


def path_parameters(endpoint: Endpoint) -> list[str]:
    return _PARAMETER.findall(endpoint.path)


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": TYPES.get(name, _TEXT)}


def codes(endpoint: Endpoint) -> dict[int, list[int]]:
    """Return every status with which an operation may refuse, and what `error_code` then says."""
    listed = {
        *ANY,
        *endpoint.codes,
        *(WITH_ROLE if endpoint.role is not None else ()),
        *(WITH_BODY if endpoint.body is not None else ()),
    }
    found: dict[int, list[int]] = {}
    for code in sorted(listed):
        found.setdefault(code if code < 1000 else code // 100, []).append(code)
    return found


def responses(endpoint: Endpoint) -> dict[int | str, dict[str, Any]]:
    said: dict[int | str, dict[str, Any]] = {
        "200": {"description": "done", "content": {endpoint.media: _schema(endpoint.returns)}}
    }
    if endpoint.is_immutable:
        said["304"] = {"description": "not modified"}
    for status, listed in codes(endpoint).items():
        error = {
            "type": "object",
            "properties": {"error_code": {"enum": listed}, "message": {"type": "string"}},
            "required": ["error_code", "message"],
        }
        said[str(status)] = {"description": SAID[status], "content": {MEDIA_TYPE: {"schema": error}}}
    if endpoint.path == "/readyz":
        unready = {"anyOf": [_schema(endpoint.returns)["schema"], said["503"]["content"][MEDIA_TYPE]["schema"]]}
        said["503"] = {"description": "the status says why", "content": {MEDIA_TYPE: {"schema": unready}}}
    return said


def _schema(kind: Any) -> dict[str, Any]:
    if kind is Any:
        return {}
    schema = msgspec.json.schema(kind)
    return {"schema": _without_references(schema, schema.pop("$defs", {}))}


def _without_references(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _without_references(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return {name: _without_references(value, definitions) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_without_references(value, definitions) for value in schema]
    return schema
