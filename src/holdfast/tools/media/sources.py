"""Where a picture, a recording or a film comes from: a file below the root, or a URL, as a file that is open.

A path is confined as for the file tools, a URL is fetched as by `fetch`. What it is, its first bytes say, never its
name or what a server claims. Both are bounded in bytes.
"""

import asyncio
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.core.records import Frozen
from holdfast.errors import ToolFailed
from holdfast.system.threads import Pool
from holdfast.tools.context import tool_context
from holdfast.tools.files.pictures import media_type
from holdfast.tools.files.root import Root
from holdfast.tools.permissions.acts import Act, Read
from holdfast.tools.web.client import FetchLimits, Resolver, Web
from holdfast.tools.web.fetch import reaches

URL_BYTES_MAX = 32 << 20  # they pass through memory
FILE_BYTES_MAX = 4 << 30
FETCH_S = 120.0
AT_ONCE_MAX = 4  # others wait
HEAD_BYTES = 4_096

_BEGINNINGS = {
    b"ID3": "audio/mpeg",
    b"\xff\xfb": "audio/mpeg",
    b"\xff\xf3": "audio/mpeg",
    b"\xff\xf2": "audio/mpeg",
    b"fLaC": "audio/flac",
    b"\x1aE\xdf\xa3": "video/webm",
    b"FLV\x01": "video/x-flv",
}
_places: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = weakref.WeakKeyDictionary()


class Medium(Frozen):
    """An open file, that its opener closes."""

    file: int
    kind: str
    size: int
    name: str

    @property
    def family(self) -> str:
        """image, audio, video, application."""
        return self.kind.partition("/")[0]

    def bytes(self, most: int) -> bytes:
        """All of it. Raises ToolFailed if that is too much."""
        if self.size > most:
            raise ToolFailed(
                f"{self.name} has {self.size:,} bytes, and up to {most:,} can be sent: make it smaller first"
            )
        return os.pread(self.file, most, 0)


def kind_of(head: bytes) -> str | None:
    """Of a file that begins like this; None if it is neither picture, audio nor video."""
    if head[:4] == b"RIFF" and head[8:12] in (b"WAVE", b"AVI "):
        return "audio/wav" if head[8:12] == b"WAVE" else "video/x-msvideo"
    if head[:4] == b"OggS":
        return "video/ogg" if b"theora" in head[:HEAD_BYTES] else "audio/ogg"
    if head[4:8] == b"ftyp":
        return "audio/mp4" if head[8:12] in (b"M4A ", b"M4B ") else "video/mp4"
    found = next((kind for begins, kind in _BEGINNINGS.items() if head.startswith(begins)), None)
    return found or media_type(head)


def is_url(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


def acts_of(arguments: dict[str, Any]) -> Sequence[Act]:
    source = arguments["source"]
    return reaches([source]) if is_url(source) else [Read(path=source)]


def place() -> asyncio.Semaphore:
    """For one call that works on something large: a few do so at once."""
    loop = asyncio.get_running_loop()
    return _places.setdefault(loop, asyncio.Semaphore(AT_ONCE_MAX))


class Sources:
    def __init__(self, root: str | os.PathLike[str], resolve: Resolver | None) -> None:
        self.root = Root(root)
        self._web = Web(FetchLimits(bytes_max=URL_BYTES_MAX, time_s=FETCH_S), resolve=resolve, ssl_context=None)

    async def opened(self, source: str) -> Medium:
        """Raises ToolFailed. To be closed: `closing(…)`."""
        if is_url(source):
            fetched = await self._web.get(source, rulebook=tool_context().rulebook)
            if fetched.status >= 400:
                raise ToolFailed(f"{fetched.url} answered {fetched.status}")
            if fetched.cut:
                raise ToolFailed(f"{fetched.url} has more than {URL_BYTES_MAX:,} bytes, which is the limit")
            name = fetched.url.partition("?")[0].rpartition("/")[2][-80:] or "a file"
            return await off_the_loop(lambda: _kept(fetched.body, name))
        return await off_the_loop(lambda: self._from_root(source))

    def _from_root(self, path: str) -> Medium:
        with self.root.place(path) as where, where.opened() as (file, found):
            if found.st_size > FILE_BYTES_MAX:
                raise ToolFailed(f"{where.shown} has {found.st_size:,} bytes, the limit is {FILE_BYTES_MAX:,}")
            return _medium(os.dup(file), found.st_size, where.shown)


@contextmanager
def closing(medium: Medium) -> Iterator[Medium]:
    try:
        yield medium
    finally:
        os.close(medium.file)


async def off_the_loop(work: Callable[[], Medium]) -> Medium:
    """In a thread that ends with it. What it opened and no caller waits for any more is closed."""
    files = Pool("media-files", 1)
    mutex, left = threading.Lock(), False
    opened: list[Medium] = []

    def run(_: object) -> Medium:
        made = work()
        with mutex:
            opened.append(made)
            if left:
                os.close(made.file)
        return made

    try:
        return await files.run(run)
    except asyncio.CancelledError:
        with mutex:
            left = True
            for made in opened:
                os.close(made.file)
        raise
    finally:
        files.stop()


def _kept(body: bytes, name: str) -> Medium:
    """In a file without a name: gone when it is closed, or its process is."""
    with tempfile.TemporaryFile() as file:
        file.write(body)
        file.flush()
        return _medium(os.dup(file.fileno()), len(body), name)


def _medium(file: int, size: int, name: str) -> Medium:
    kind = kind_of(os.pread(file, HEAD_BYTES, 0))
    if kind is None:
        os.close(file)
        raise ToolFailed(f"{name} is neither a picture nor audio nor video that is known here")
    return Medium(file=file, kind=kind, size=size, name=name)
