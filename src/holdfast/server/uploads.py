"""Files that clients send: onto the disk piece by piece, bounded in bytes, in time and in number. What a client does
not send to its end is gone with the request.
"""

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.errors import LimitReached, TooManyStreams
from holdfast.server.bodies import BODY_S
from holdfast.system import disk, threads

UPLOADS_MAX = 4  # at the same time: each may have its file on the disk
UPLOADS_PER_CLIENT_MAX = 1  # so that one keeps no other waiting
RATE_BYTES_S = 32 << 10  # a client that sends more slowly than that is told to go
PIECE_BYTES = 1 << 20  # what is written at once

_pool = threads.Pool("uploads", 1)


class Upload(NamedTuple):
    file: BinaryIO  # at its beginning
    digest: str


class Uploads:
    """Of one server."""

    def __init__(self, home: Path, bytes_max: int, deadline_s: float = BODY_S) -> None:
        self.home = home  # where they are kept meanwhile
        self._bytes_max = bytes_max
        self._deadline_s = deadline_s  # and longer for what is large
        self._count = 0
        self._of_client: Counter[str] = Counter()

    def figures(self) -> dict[str, Any]:
        return {"uploads": self._count, "uploads_max": UPLOADS_MAX, "upload_bytes_max": self._bytes_max}

    @contextlib.asynccontextmanager
    async def taken(self, request: Request, client: str) -> AsyncIterator[Upload]:
        """The whole of a request's body. Raises LimitReached, TooManyStreams, HTTPException for one that is too slow,
        ClientDisconnect, OSError.
        """
        self._check_size(int(request.headers.get("content-length", "0")))
        if self._count >= UPLOADS_MAX:
            raise TooManyStreams("uploads of this server", self._count, UPLOADS_MAX, "come back later")
        if self._of_client[client] >= UPLOADS_PER_CLIENT_MAX:
            held = self._of_client[client]
            raise TooManyStreams("uploads of one client", held, UPLOADS_PER_CLIENT_MAX, "wait for one of them")
        self._count += 1
        self._of_client[client] += 1
        try:
            with disk.nameless_file(self.home) as file:
                digest = await self._copied(request, file)
                file.seek(0)
                yield Upload(file, digest)
        finally:
            self._count -= 1
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]

    def _check_size(self, size: int) -> None:
        if size > self._bytes_max:
            advice = "raise `import_bytes_max`, or import it with the command"
            raise LimitReached("the file in bytes", size, self._bytes_max, advice)

    async def _copied(self, request: Request, file: BinaryIO) -> str:
        digest, size, began = hashlib.blake2b(digest_size=16), 0, asyncio.get_running_loop().time()
        pieces = bytearray()
        try:
            async with asyncio.timeout(self._deadline_s) as deadline:
                async for piece in request.stream():
                    size += len(piece)
                    self._check_size(size)
                    digest.update(piece)
                    pieces += piece
                    if len(pieces) >= PIECE_BYTES:
                        await self._written(file, bytes(pieces))
                        pieces.clear()
                    deadline.reschedule(began + self._deadline_s + size / RATE_BYTES_S)
        except TimeoutError as error:
            words = f"the file comes more slowly than {RATE_BYTES_S:,} bytes a second"
            raise HTTPException(408, words, {"Connection": "close"}) from error
        await self._written(file, bytes(pieces))
        return digest.hexdigest()

    @staticmethod
    async def _written(file: BinaryIO, data: bytes) -> None:
        """In a thread: a disk may be slow."""
        await _pool.run(lambda _: file.write(data))
