"""The `fetch` tool: pages and files from the web, as text.

Who may be asked, and how long and how much, is `client.py`'s; this module makes text of what came.
"""

import asyncio
import http
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from holdfast.errors import ConfigError, ToolFailed
from holdfast.system.threads import Pool
from holdfast.tools.base import OUTPUT_BYTES_MAX, Tool, tool
from holdfast.tools.context import tool_context
from holdfast.tools.figures import show
from holdfast.tools.permissions.acts import Act, Reach, Whereabouts
from holdfast.tools.permissions.host_patterns import address_text
from holdfast.tools.web.cache import installed_cache
from holdfast.tools.web.client import (
    LOOKUPS_MAX,
    Fetched,
    FetchLimits,
    Resolver,
    Target,
    Web,
    lookup_threads,
)
from holdfast.tools.web.html_text import readable

FETCH_BYTES_MAX = 2 << 20
FETCH_S = 30.0
URLS_MAX = 10
AT_ONCE_MAX = 5
TEXT_CHARS_MAX = 50_000
TEXT_THREADS_MAX = 2
ERROR_CHARS_MAX = 1_000
DEADLINE_MARGIN_S = 30.0

_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/javascript", "application/x-yaml")
# Not whatever Python calls a codec: some of them unpack, and some take quadratic time.
_CHARSETS = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "us-ascii": "cp1252",
    "ascii": "cp1252",
    "iso-8859-1": "cp1252",
    "latin1": "cp1252",
    **{
        name: name
        for name in (
            *(f"windows-125{number}" for number in range(9)),
            *(f"iso-8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16)),
            *("utf-16", "shift_jis", "euc-jp", "iso-2022-jp", "euc-kr", "gb2312", "gbk", "gb18030", "big5"),
            *("koi8-r", "koi8-u"),
        )
    },
}
_counts = {"running": 0, "asked": 0, "failed": 0, "from_cache": 0}  # URLs
_readers = Pool("fetch-text", TEXT_THREADS_MAX)


def fetch_tool(
    *,
    name: str = "fetch",
    bytes_max: int = FETCH_BYTES_MAX,
    time_s: float = FETCH_S,
    text_chars_max: int = TEXT_CHARS_MAX,
    cache: bool = True,
    resolve: Resolver | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> Tool:
    """GET for public addresses on the ports 80 and 443.

    What is internal, or on another port, is fetched from where an allow of `Permissions` is written for it:
    `allow reach(wiki.corp:8080)`, `allow reach(10.1.0.0/16)`. `bytes_max`, unpacked, and `time_s`, redirects
    included, are for each URL; `text_chars_max` is what the model gets of it. `cache`: use the process's cache if one
    is installed (`webcache.install_cache`). `resolve` turns a name into all its addresses, in place of the system's
    resolver.
    """
    if text_chars_max <= 0:
        raise ConfigError("text_chars_max is above 0")
    web = Web(FetchLimits(bytes_max=bytes_max, time_s=time_s), resolve=resolve, ssl_context=ssl_context)
    fetcher = _Fetcher(web, text_chars_max, cache)
    waves = -(-URLS_MAX // AT_ONCE_MAX)
    made = tool(
        name=name,
        replay="pure",  # a GET changes nothing, by HTTP's own definition
        deadline_s=time_s * waves + DEADLINE_MARGIN_S,
        output_bytes_max=OUTPUT_BYTES_MAX,
        acts=_acts,
        untrusted=True,
    )(fetcher.fetch)
    return replace(made, whereabouts=Whereabouts(confined=True))


def _acts(arguments: dict[str, Any]) -> Sequence[Act]:
    return reaches(arguments["urls"][:URLS_MAX])


def reaches(urls: Iterable[str]) -> list[Act]:
    """Whom a call with these asks."""
    found: list[Act] = []
    for url in urls:
        with suppress(ToolFailed):  # one that is no URL fails in its place, and reaches nobody
            target = Target(url)
            found.append(Reach(address=address_text(target.host, target.port)))
    return found


class _Fetcher:
    def __init__(self, web: Web, text_chars_max: int, cache: bool) -> None:
        self._web = web
        self._text_chars_max = text_chars_max
        self._cache = cache

    async def _get(self, url: str) -> Fetched:
        _counts["running"] += 1
        try:
            return await self._web.get(url, installed_cache() if self._cache else None, tool_context().rulebook)
        except ToolFailed:
            _counts["failed"] += 1
            raise
        finally:
            _counts["running"] -= 1
            _counts["asked"] += 1

    async def fetch(self, urls: list[str], raw: bool = False) -> str:
        """Get one or several web pages (http or https) as readable text. With `raw`, HTML comes as its source."""
        if not 1 <= len(urls) <= URLS_MAX:
            raise ToolFailed(f"fetch takes 1 to {URLS_MAX} URLs at once")
        places = asyncio.Semaphore(AT_ONCE_MAX)
        answers = await asyncio.gather(*(self._one(url, raw, places) for url in urls))
        text = "\n\n".join(answer for _, answer in answers)
        if not any(fine for fine, _ in answers):
            raise ToolFailed(text)
        return text

    async def _one(self, url: str, raw: bool, places: asyncio.Semaphore) -> tuple[bool, str]:
        """One that fails says so in its place; the others still count."""
        async with places:
            try:
                fetched = await self._get(url)
                _counts["from_cache"] += fetched.cached
                text = await text_of(fetched, raw)
            except ToolFailed as error:
                return False, f"## {shown_url(url)}\nFailed: {error}"
        fine = fetched.status < 400
        most = self._text_chars_max if fine else ERROR_CHARS_MAX
        notes = [f"cut at {len(fetched.body):,} bytes"] if fetched.cut else []
        if len(text) > most:
            notes.append(f"{len(text) - most:,} characters left out")
            text = text[:most]
        end = f"\n[{'; '.join(notes)}]" if notes else ""
        return fine, f"## {fetched.url}\n{summary(fetched)}\n\n{text}{end}"


def shown_url(url: str) -> str:
    """Without a name and password."""
    try:
        return Target(url).shown
    except ToolFailed:
        return repr(url[:200]) if "@" not in url else "a URL"


def summary(fetched: Fetched) -> str:
    """Status, type and size, in a line."""
    try:
        status = f"{fetched.status} {http.HTTPStatus(fetched.status).phrase}"
    except ValueError:
        status = str(fetched.status)
    cached = ", from the cache" if fetched.cached else ""
    return f"{status}, {_kind(fetched) or 'no type'}, {len(fetched.body):,} bytes{cached}"


def _kind(fetched: Fetched) -> str:
    return fetched.content_type.partition(";")[0].strip().lower()[:100]


async def text_of(fetched: Fetched, raw: bool) -> str:
    """A large page takes a second of work: not on the event loop."""
    return await _readers.run(lambda _: _decoded_text(fetched, raw))


def _decoded_text(fetched: Fetched, raw: bool) -> str:
    kind = _kind(fetched)
    is_html = kind in ("text/html", "application/xhtml+xml") or (not kind and fetched.body[:200].lstrip()[:1] == b"<")
    is_text = is_html or kind.startswith(_TEXT_TYPES) or kind.endswith(("+json", "+xml"))
    if not is_text and (kind or b"\x00" in fetched.body):
        return f"[{len(fetched.body):,} bytes that are no text: not shown]"
    text = fetched.body.decode(_charset(fetched), "replace")
    if not is_html or raw:
        return text
    page = readable(text)
    return f"{page.title}\n\n{page.text}" if page.title else page.text


def _charset(fetched: Fetched) -> str:
    for part in fetched.content_type.lower().split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip() == "charset":
            return _CHARSETS.get(value.strip(" \"'"), "utf-8")
    head = fetched.body[:2_048].lower()
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    _, found, rest = head.partition(b"charset=")
    named = rest.lstrip(b"\"' ")[:20].decode("ascii", "replace") if found else ""
    return next((codec for name, codec in _CHARSETS.items() if named.startswith(name)), "utf-8")


show(
    "fetch",
    lambda: {
        **_counts,
        "lookup_threads": lookup_threads(),
        "lookup_threads_max": LOOKUPS_MAX,
        "text_threads": _readers.thread_count,
        "text_threads_max": TEXT_THREADS_MAX,
    },
)
