"""A FastAPI app that publishes to a topic and asks a service, without blocking its event loop.

uvicorn examples.fastapi_app:app          (a broker: `messagehub serve`; a worker: python examples/fastapi_app.py)
curl -X POST 'localhost:8000/orders/eu?quantity=2'
curl localhost:8000/prices/eu
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse

from messagehub import MessageHub
from messagehub.errors import AddressNotFound, BrokerRequired, InvalidName

PRICES = {"eu": 10, "us": 12}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with MessageHub() as hub:
        app.state.hub = hub
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(TimeoutError)
async def too_late(_: Request, error: TimeoutError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 504)


@app.post("/orders/{region}", status_code=202)
async def order(region: str, quantity: int, request: Request) -> dict[str, Any]:
    try:
        number = await request.app.state.hub.publish_async(f"orders.{region}", {"quantity": quantity}, timeout=2.0)
    except InvalidName as bad:
        raise HTTPException(422, bad.message) from bad
    return {"number": number}


@app.get("/prices/{region}")
async def price(region: str, request: Request) -> Any:
    try:
        found = await request.app.state.hub.request_async("service:prices", {"region": region}, timeout=2.0, retries=3)
    except (AddressNotFound, BrokerRequired) as missing:
        raise HTTPException(503, missing.message) from missing
    if found is None:
        raise HTTPException(404, f"there are no prices in {region!r}")
    return found


@app.get("/countdown")
async def countdown(request: Request) -> StreamingResponse:
    """Each partial result as it comes. When the browser leaves, the handler is cancelled."""

    async def lines() -> AsyncIterator[str]:
        async with request.app.state.hub.stream("service:countdown", 3, timeout=10.0) as numbers:
            async for number in numbers:
                yield f"{number}\n"

    return StreamingResponse(lines(), media_type="text/plain")


async def prices(message: Any, _: Any) -> dict[str, int] | None:
    price = PRICES.get(message.payload["region"])
    return None if price is None else {"price": price}


def count_down(message: Any, _: Any) -> Any:
    yield from range(message.payload, 0, -1)


def main() -> None:
    """The worker that the app asks."""
    with MessageHub() as hub:
        hub.serve("service:prices", prices, concurrency=100)
        hub.serve("service:countdown", count_down, concurrency=4)
        print("serving", flush=True)
        hub.run_forever()


if __name__ == "__main__":
    main()
