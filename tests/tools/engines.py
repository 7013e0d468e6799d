"""Search engines at the wire, on loopback: they answer as SearXNG, Brave and Tavily do, or as the words say."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.tools.sites import page

KEY = "sk-very-secret-1234"
HITS = [
    {
        "title": "Kelp &amp; <strong>rock</strong>",
        "url": "https://a.example/kelp",
        "said": "A <strong>holdfast</strong>.",
    },
    {"title": "Second", "url": "https://b.example/2", "said": "x" * 5_000},
    {"title": "No URL", "url": "javascript:alert(1)", "said": "never shown"},
    {"title": "Again", "url": "https://a.example/kelp", "said": "the same page"},
    {"title": "Echo", "url": "https://c.example/", "said": f"your key is {KEY}"},
]


class Engines:
    def __init__(self) -> None:
        self.port = 0
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []  # method, path, headers, body
        self.gone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            data = await reader.readexactly(int(headers.get("content-length", 0)))
            body = json.loads(data) if data else None
            self.asked.append((method, path, headers, body))
            query = body["query"] if body else parse_qs(urlsplit(path).query)["q"][0]
            await self._answer(query, headers, body, reader, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone.set()
        finally:
            writer.close()

    async def _answer(
        self,
        query: str,
        headers: dict[str, str],
        body: Any,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        match query.split()[0]:
            case "hang":
                await reader.read()
                raise ConnectionResetError
            case "flood":
                writer.write(page(b"", "Content-Type: application/json", "Transfer-Encoding: chunked"))
                while True:
                    writer.write(b"3e8\r\n" + b" " * 1000 + b"\r\n")
                    await writer.drain()
            case "inward":
                writer.write(page(b"", "Location: http://169.254.169.254/latest/", status="302 Found"))
            case "busy":
                writer.write(page(f"slow down, {KEY}".encode(), "Retry-After: 7", status="429 Too Many Requests"))
            case "busy-until":
                date = "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT"
                writer.write(page(b"", date, status="429 Too Many Requests"))
            case "busy-oddly":
                at = f"Retry-After: {query.partition(' ')[2]}"
                writer.write(page(b"", at, status="429 Too Many Requests"))
            case "forbidden":
                writer.write(page(f"key {KEY} is unknown".encode(), status="403 Forbidden"))
            case "broken":
                writer.write(page(b"oops", status="500 Oops"))
            case "page":
                writer.write(page(b"<html>", "Content-Type: text/html"))
            case "nothing":
                writer.write(page(json.dumps({"results": [], "query": query}).encode()))
            case _:
                writer.write(page(json.dumps(self._found(headers, body, query)).encode()))

    def _found(self, headers: dict[str, str], body: Any, query: str) -> dict[str, Any]:
        hits = [*HITS, {"title": f"about {query}", "url": f"https://d.example/{query}", "said": ""}]
        if "x-subscription-token" in headers:
            return {"web": {"results": [_hit(hit, "description") for hit in hits]}}
        return {"results": [_hit(hit, "content") for hit in hits]}


def _hit(hit: dict[str, str], said: str) -> dict[str, str]:
    return {"title": hit["title"], "url": hit["url"], said: hit["said"]}


@asynccontextmanager
async def engines() -> AsyncIterator[Engines]:
    served = Engines()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(served.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        left = list(tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await server.wait_closed()
