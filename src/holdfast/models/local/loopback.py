"""One GET to a server of our own on this machine: whether it answers, and what it says of itself."""

import asyncio
from urllib.parse import urlsplit

BODY_BYTES_MAX = 4 << 20


async def get(url: str, key: str) -> bytes:
    """The body. Raises OSError, also for a status other than 200. The caller's deadline is the only one."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        lines = (
            f"GET {parts.path} HTTP/1.1",
            f"host: {parts.netloc}",
            f"authorization: Bearer {key}",
            "connection: close",
        )
        writer.write("\r\n".join((*lines, "", "")).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            raise ConnectionError(f"it answered with {status[0].decode() if status else 'what is no HTTP'}")
        body = bytearray()
        while len(body) < BODY_BYTES_MAX and (piece := await reader.read(65_536)):
            body += piece
        return bytes(body)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ConnectionError(f"its answer is no HTTP: {error}") from error
    finally:
        writer.transport.abort()
