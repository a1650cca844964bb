"""Open consoles without browsers: `python -m benchmarks.console_visitors FILE` repeats what real pages asked for.

A browser's own work, drawing above all, is no cost of the hub's, and twenty of them would take the whole machine. So
pages are recorded in Chromium (`record`), and each visitor repeats one of them: the same paths at the same moments,
with the headers that a browser sends, over one connection for requests and one for each event stream, which stays open.

The process answers each number on its stdin, as soon as so many consoles are open, with `open NUMBER`.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Request

SETTLE_SECONDS, RECORD_SECONDS = 4.0, 8.0
OPEN_SECONDS = 20.0
_AFTER = re.compile(r"(?<=history\?after=)[\d.]+")


class Recording(msgspec.Struct):
    """What a page asks for in RECORD_SECONDS once it is loaded: when, and for what; and the streams it holds open."""

    view: str
    requests: list[tuple[float, str]]
    streams: list[str]


class Visit(msgspec.Struct):
    url: str
    token: str
    recordings: list[Recording]


def record(browser: "Browser", url: str, token: str, views: Sequence[str]) -> list[Recording]:
    """Open each view in a page of its own, and note what it asks for: all at the same time."""
    opened = []
    for view in views:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.goto(f"{url}/console/")
        page.evaluate("token => sessionStorage.setItem('messagehub-token', token)", token)
        asked: list[tuple[float, bool, str]] = []

        def note(request: "Request", asked: list[tuple[float, bool, str]] = asked) -> None:
            path = request.url.removeprefix(url)
            if not path.startswith("/console/"):
                asked.append((time.monotonic(), "event-stream" in request.headers.get("accept", ""), path))

        page.on("request", note)
        page.goto(f"{url}/console/#/{view}")
        asked.clear()  # what the view before it asked for
        page.reload()
        opened.append((view, context, page, asked))
    opened[-1][2].wait_for_timeout(SETTLE_SECONDS * 1000)
    began = time.monotonic()
    opened[-1][2].wait_for_timeout(RECORD_SECONDS * 1000)
    found = [
        Recording(
            view,
            [(at - began, path) for at, is_stream, path in asked if not is_stream and at >= began],
            sorted({path for _, is_stream, path in asked if is_stream}),
        )
        for view, _, _, asked in opened
    ]
    for _, context, _, _ in opened:
        context.close()
    return found


class Visitor:
    """One open console."""

    def __init__(self, visit: Visit, recording: Recording) -> None:
        place = urlsplit(visit.url)
        self._host, self._port = place.hostname, place.port
        self._recording = recording
        self._head = (
            f"HTTP/1.1\r\nhost: {place.netloc}\r\nauthorization: Bearer {visit.token}\r\n"
            "accept-encoding: gzip, deflate, br, zstd\r\naccept-language: en-US\r\nuser-agent: Mozilla/5.0\r\n"
            f"referer: {visit.url}/console/\r\nsec-fetch-site: same-origin\r\n"
        )
        self.answered = 0

    async def run(self, is_open: asyncio.Event, delay: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for path in self._recording.streams:
                tasks.create_task(self._follow(path))
            tasks.create_task(self._repeat(is_open, delay))

    async def _follow(self, path: str) -> None:
        reader, writer = await self._ask(path, "accept: text/event-stream\r\n")
        try:
            while await reader.read(65536):
                pass
            raise ConnectionError(f"{path} ended")
        finally:
            writer.close()

    async def _repeat(self, is_open: asyncio.Event, delay: float) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        loop = asyncio.get_running_loop()
        try:
            round_at = loop.time() + delay
            while True:
                for offset, path in self._recording.requests:
                    await asyncio.sleep(round_at + offset - loop.time())
                    asked = _AFTER.sub(f"{time.time() - 2:.3f}", path)
                    writer.write(f"GET {asked} {self._head}accept: */*\r\n\r\n".encode())
                    await _answer(reader, asked)
                    self.answered += 1
                    is_open.set()
                round_at += RECORD_SECONDS
        finally:
            writer.close()

    async def _ask(self, path: str, more: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(f"GET {path} {self._head}{more}\r\n".encode())
        status = await reader.readline()
        if b" 200 " not in status:
            raise ConnectionError(f"{path}: {status!r}")
        return reader, writer


async def _answer(reader: asyncio.StreamReader, path: str) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head[:20]:
        raise ConnectionError(f"{path}: {head[:200]!r}")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    if length is not None:
        await reader.readexactly(int(length[1]))
        return
    while size := int((await reader.readline()).strip() or b"0", 16):
        await reader.readexactly(size + 2)
    await reader.readline()


async def _serve(visit: Visit) -> None:
    """Have so many consoles open as the last line of stdin says."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    running: list[asyncio.Task[Any]] = []
    while line := await lines.readline():
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        count = int(line)
        opened = [asyncio.Event() for _ in range(count)]
        running = [
            loop.create_task(Visitor(visit, visit.recordings[n % len(visit.recordings)]).run(opened[n], n / 7 % 1))
            for n in range(count)
        ]
        waiting = asyncio.gather(*(each.wait() for each in opened))
        done, _ = await asyncio.wait([waiting, *running], timeout=OPEN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {waiting}:
            task.result()  # raises what ended it
        if waiting not in done:
            raise TimeoutError(f"{count} consoles were not open in {OPEN_SECONDS} s")
        print(f"open {count}", flush=True)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_serve(msgspec.convert(json.loads(Path(sys.argv[1]).read_text()), Visit)))
