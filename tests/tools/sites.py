"""A web server that misbehaves by path, on loopback, and names for it: for tests of fetch."""

import asyncio
import gzip
import json
import ssl
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache

INSIDE = "the page inside"


@cache
def bomb() -> bytes:
    """100 MB of nothing in 100 kB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(100)) + packer.flush()


def page(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    names = {header.partition(":")[0].lower() for header in headers}
    lines = [f"HTTP/1.1 {status}", *headers]
    if "content-type" not in names:
        lines.append("Content-Type: text/plain")
    if not names & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body


HTML = "Content-Type: text/html; charset=utf-8"
GZIP = "Content-Encoding: gzip"
FIXED: dict[str, bytes] = {
    "/ok": page(b"hello"),
    "/secret": page(INSIDE.encode()),
    "/html": page(
        b"<html><head><title>A &amp; B</title><style>p{}</style></head><body><h1>Head</h1><p>One <b>two</b>"
        b"<script>evil('<p>')</script><!-- <p>not this --></p><ul><li>first<li>second</ul>"
        b"<a href='https://example.com/x?a=1&amp;b=2'>link</a><pre>a\n  b</pre></body></html>",
        HTML,
    ),
    "/gzip": page(gzip.compress(b"packed " * 10), GZIP),
    "/gzips": page(gzip.compress(b"one ") + gzip.compress(b"two"), GZIP),
    "/deflate": page(zlib.compress(b"packed"), "Content-Encoding: deflate"),
    "/raw-deflate": page(zlib.compress(b"packed", wbits=-15), "Content-Encoding: deflate"),
    "/binary": page(b"\x89PNG\x00", "Content-Type: image/png"),
    "/latin": page("café".encode("latin-1"), "Content-Type: text/plain; charset=ISO-8859-1"),
    "/missing": page(b"no such page", status="404 Not Found"),
    "/twice": page(gzip.compress(gzip.compress(b"x")), "Content-Encoding: gzip, gzip"),
    "/half": page(gzip.compress(b"packed" * 1000)[:30], GZIP),
    "/no-gzip": page(b"plainly not", GZIP),
    "/short": page(b"12345", "Content-Length: 5000"),
    "/long": page(b"12345678901234567890", "Content-Length: 5"),
    "/two-lengths": page(b"12345", "Content-Length: 5", "Content-Length: 500"),
    "/ssh": b"SSH-2.0-OpenSSH_9.9\r\n",
    "/charset": page(b"hello", "Content-Type: text/plain; charset=zlib"),
    "/number": page(b"<p>&#" + b"9" * 10_000 + b"; after it", HTML),
    "/tags": page(b"<a href='" * 10_000 + b"<p>", HTML),
    "/comments": page(b"<!--" * 20_000, HTML),
    "/fresh": page(b"fresh", "Cache-Control: max-age=600"),
    "/no-store": page(b"never kept", "Cache-Control: no-store"),
    "/private": page(b"for one person", "Cache-Control: private, max-age=600"),
}
REDIRECTS = {
    "/to-ok": "/ok",
    "/to-loopback": "http://127.0.0.1:{port}/secret",
    "/to-metadata": "http://169.254.169.254/latest/meta-data/",
    "/to-file": "file:///etc/passwd",
    "/to-inside": "http://loop.test:{port}/secret",
    "/to-itself": "/to-itself",
    "/again": "/secret",
    "/to-mirror": "http://mirror.test:{port}/who",
    "/to-who": "/who",
    "/to-other-user": "http://eve:pw@site.test:{port}/who",
}


class Site:
    def __init__(self) -> None:
        self.port = 0
        self.hits: Counter[str] = Counter()
        self.heads: list[dict[str, str]] = []
        self.bodies: list[tuple[str, bytes]] = []  # with their methods
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()  # somebody left before the answer was over

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            self.hits[path] += 1
            self.asked.set()
            self.heads.append(headers)
            self.bodies.append((method, await reader.readexactly(int(headers.get("content-length", 0)))))
            if (
                path.startswith(("/late", "/engine/search?q=late")) and self.hits[path] == 1
            ):  # silent until the first who asks has left
                await reader.read()
                raise ConnectionResetError
            await self._answer(path, headers, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone.set()
        finally:
            writer.close()

    async def _answer(self, path: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        if (bare := path.partition("?")[0]) in FIXED:
            writer.write(FIXED[bare])
        elif path in REDIRECTS:
            location = REDIRECTS[path].format(port=self.port)
            writer.write(page(b"elsewhere", f"Location: {location}", status="302 Found"))
        elif path == "/bomb":
            writer.write(page(bomb(), GZIP))
        elif path == "/echo":
            writer.write(page(self.bodies[-1][1]))
        elif path == "/who":
            writer.write(page(headers.get("authorization", "nobody").encode()))
        elif path == "/etag":
            known = headers.get("if-none-match") == '"1"'
            tag = ('ETag: "1"', "Cache-Control: no-cache")
            writer.write(page(b"", *tag, status="304 Not Modified") if known else page(b"tagged", *tag))
        elif path.startswith("/late"):
            writer.write(page(b"after all"))
        elif path.startswith("/engine/search?q=flood"):
            await _endless_body(writer)
        elif path.startswith("/engine/search?"):
            found = {"title": f"after all, {path}", "url": "https://found.example/"}
            writer.write(page(json.dumps({"results": [found]}).encode()))
        elif path == "/favicon.ico":
            writer.write(page(b"", status="404 Not Found"))
        else:
            await ENDLESS[path](writer)


async def _endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(page(b"", "Transfer-Encoding: chunked"))
    while True:
        writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def _endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def _dripping(writer: asyncio.StreamWriter) -> None:
    writer.write(page(b"", "Content-Length: 100000"))
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def _silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


ENDLESS = {"/endless": _endless_body, "/endless-head": _endless_head, "/dripping": _dripping, "/silent": _silent}


@asynccontextmanager
async def site(tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    served = Site()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(served.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
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


class Names:
    """A resolver that the test wrote. A list of answers is given one by one: DNS that changes."""

    def __init__(self, **more: Sequence[Sequence[str]]) -> None:
        self.asked: list[str] = []
        self._answers: dict[str, list[Sequence[str]]] = {
            "site.test": [["127.0.0.1"]],
            "mirror.test": [["127.0.0.1"]],
            "loop.test": [["127.0.0.1"]],
            "mixed.test": [["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "10.0.0.7"]],
            "mapped.test": [["::ffff:127.0.0.1"]],
            "nonsense.test": [["not an address"]],
            "nowhere.test": [[]],
            "public.test": [["93.184.215.14"]],
            **{f"{name}.test": list(answers) for name, answers in more.items()},
        }

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        answers = self._answers[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]
