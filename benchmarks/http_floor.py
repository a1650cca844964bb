"""The floor of HTTP reads: a Starlette route and one Response (`python -m benchmarks.http_floor PORT FILE`)."""

import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PAYLOAD = Path(sys.argv[2]).read_bytes()


async def raw(_: Request) -> Response:
    return Response(PAYLOAD, media_type="application/vnd.schemaregistry.v1+json")


async def raw_after_body(request: Request) -> Response:
    """A lookup comes with a body, and whoever answers it has to read that."""
    await request.body()
    return await raw(request)


if __name__ == "__main__":
    routes = [Route("/schemas/ids/{id}", raw), Route("/subjects/{subject}", raw_after_body, methods=["POST"])]
    app = Starlette(routes=routes)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
