"""The OpenAPI document, made from the same table as the routes."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import MEDIA_TYPE
from messagehub.version import __version__

_PARAMETER = re.compile(r"\{(\w+)\}")
_ERROR = {
    "type": "object",
    "properties": {"error_code": {"type": "integer"}, "message": {"type": "string"}},
    "required": ["error_code", "message"],
}


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "MessageHub", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": f"{endpoint.method.lower()}_{endpoint.handler.__name__}_{len(endpoint.path)}",
        "summary": (endpoint.handler.__doc__ or endpoint.handler.__name__.replace("_", " ")).splitlines()[0],
        "parameters": [
            *(_parameter(name, "path") for name in _PARAMETER.findall(endpoint.path)),
            *(_parameter(name, "query") for name in endpoint.query),
        ],
        "responses": _responses(endpoint),
    }
    if endpoint.body is not None:
        schema = msgspec.json.schema(endpoint.body)
        inlined = next(iter(schema["$defs"].values())) if "$defs" in schema else schema
        content = {"application/json": {"schema": _without_references(inlined, schema.get("$defs", {}))}}
        found["requestBody"] = {"required": True, "content": content}
    if endpoint.writes:
        found["security"] = [{"bearer": []}, {"basic": []}]
    return found


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    error = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Error"}}}}
    codes = {"400": "bad request", "404": "not found", "405": "method not allowed", "406": "not acceptable"}
    codes |= {"409": "conflict", "415": "unsupported media type", "422": "refused"}
    codes |= {"500": "the registry failed", "503": "no broker answers"}
    if endpoint.writes:
        codes["401"] = "the token is missing"
    return {"200": {"description": "done"}} | {code: {"description": text} | error for code, text in codes.items()}


def _without_references(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _without_references(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return {name: _without_references(value, definitions) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_without_references(value, definitions) for value in schema]
    return schema
