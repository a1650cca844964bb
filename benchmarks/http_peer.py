"""The peer that everybody builds first: FastAPI on uvicorn (`python -m benchmarks.http_peer PORT`)."""

import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI()
RECORD = {
    "channel": "bench.c0",
    "shm_name": "/pylabhub_bench.c0",
    "schema_hash": "abc123",
    "schema_version": "1.0.0",
    "status": "active",
}


@app.get("/channels/{channel}")
async def discover(channel: str) -> dict[str, str]:
    return {**RECORD, "channel": channel}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
