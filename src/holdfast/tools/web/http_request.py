"""The tools `http_get` and `http_request`: HTTP for APIs, under the same rules for addresses as `fetch`.

They are two, because after a crash a GET is simply made again and a POST is not. Keys are the program's: `headers`
are added here, for one origin alone, are in no journal, and are taken out of what comes back.
"""

import asyncio
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.errors import ConfigError, ToolFailed
from holdfast.tools.base import OUTPUT_BYTES_MAX, Tool, tool
from holdfast.tools.context import tool_context
from holdfast.tools.figures import show
from holdfast.tools.permissions.acts import Act, Whereabouts
from holdfast.tools.web.client import Fetched, FetchLimits, Outgoing, Resolver, Target, Web
from holdfast.tools.web.fetch import reaches, shown_url, summary, text_of

ANSWER_BYTES_MAX = 2 << 20
ANSWER_CHARS_MAX = 30_000
BODY_BYTES_MAX = 1 << 20
HEADERS_MAX = 50
HEADER_CHARS_MAX = 8_000
REQUESTS_MAX = 10
AT_ONCE_MAX = 5
TIME_S = 30.0
DEADLINE_MARGIN_S = 30.0
SECRET_CHARS_MIN = 8  # a shorter word of a header is none that could be hidden

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
# What the connection is made of, and what would make one request two.
_OURS = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "accept-encoding",
    }
)
_TOLD = ("location", "retry-after", "link", "etag", "last-modified", "allow", "www-authenticate")
_counts = {"running": 0, "asked": 0, "failed": 0}


@dataclass(frozen=True)
class HttpGet:
    """One GET or HEAD."""

    url: str
    method: Literal["GET", "HEAD"] = "GET"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HttpRequest:
    """One request that may change something. `json` is sent as JSON, `text` as it is: one of them, or none."""

    method: Literal["POST", "PUT", "PATCH", "DELETE"]
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    json: Any = None
    text: str | None = None


def http_tools(
    *,
    hosts: Iterable[str] | None = None,
    headers: Mapping[str, Mapping[str, str]] | None = None,
    read_only: bool = False,
    bytes_max: int = ANSWER_BYTES_MAX,
    time_s: float = TIME_S,
    resolve: Resolver | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> list[Tool]:
    """`http_get`, and unless `read_only` also `http_request`, for APIs.

    `hosts`: none but these are asked (`api.github.com`, `*.example.com`, `127.0.0.1:8000`); None: every public one.
    `headers`: by origin (`https://api.github.com`), what the tools add to requests to it, such as a key; no model
    sees them. Whom they may ask beside that, and what asks a person first, is for `Permissions` to say, as for
    `fetch_tool`: `allow reach(api.corp:8080)`, `ask reach(*)`.
    """
    limits = FetchLimits(bytes_max=bytes_max, time_s=time_s)
    web = Web(limits, resolve=resolve, ssl_context=ssl_context, only_hosts=hosts)
    client = _Client(web, _by_origin(headers or {}))
    deadline_s = time_s * -(-REQUESTS_MAX // AT_ONCE_MAX) + DEADLINE_MARGIN_S
    bounds: dict[str, Any] = {"deadline_s": deadline_s, "output_bytes_max": OUTPUT_BYTES_MAX}
    found: list[Tool] = [
        tool(replay="pure", acts=_acts, untrusted=True, **bounds)(client.http_get),
        tool(replay="unsafe", acts=_acts, untrusted=True, **bounds)(client.http_request),
    ]
    where = Whereabouts(confined=True)
    return [replace(made, whereabouts=where) for made in (found[:1] if read_only else found)]


def _acts(arguments: dict[str, Any]) -> Sequence[Act]:
    return reaches(request.url for request in arguments["requests"][:REQUESTS_MAX])


def _by_origin(headers: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str, int], dict[str, str]]:
    found = {}
    for origin, values in headers.items():
        try:
            target = Target(origin)
        except ToolFailed as error:
            raise ConfigError(f"headers are given by origin, such as https://host; {origin!r}: {error}") from None
        if problem := _problem(values):
            raise ConfigError(f"headers for {origin}: {problem}")
        found[target.origin] = {name.lower(): value for name, value in values.items()}
    return found


def _problem(headers: Mapping[str, str]) -> str | None:
    if len(headers) > HEADERS_MAX:
        return f"a request has at most {HEADERS_MAX} headers"
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or len(value) > HEADER_CHARS_MAX:
            return f"the header {name[:100]!r} is none: a name of letters and -, and one line of text"
        if name.lower() in _OURS or name.lower().startswith("proxy-"):
            return f"the header {name!r} is set by the connection itself"
    return None


class _Client:
    def __init__(self, web: Web, added: Mapping[tuple[str, str, int], Mapping[str, str]]) -> None:
        self._web = web
        self._added = added

    async def http_get(self, requests: list[HttpGet]) -> str:
        """Ask an HTTP API with GET or HEAD: up to 10 requests at once. Redirects are followed."""
        return await self._all([(each.url, each.method, each.headers, b"") for each in requests])

    async def http_request(self, requests: list[HttpRequest]) -> str:
        """Change something through an HTTP API with POST, PUT, PATCH or DELETE: up to 10 requests at once, in no
        order. Give `json` or `text` as the body. Redirects are not followed, the answer says where they lead."""
        return await self._all([(each.url, each.method, *_body(each)) for each in requests])

    async def _all(self, requests: Sequence[tuple[str, str, dict[str, str], bytes]]) -> str:
        if not 1 <= len(requests) <= REQUESTS_MAX:
            raise ToolFailed(f"give 1 to {REQUESTS_MAX} requests")
        outgoing = [(url, self._outgoing(url, method, headers, body)) for url, method, headers, body in requests]
        places = asyncio.Semaphore(AT_ONCE_MAX)
        answers = await asyncio.gather(*(self._one(url, each, places) for url, each in outgoing))
        failures = [error for _, error in answers if error is not None]
        text = "\n\n".join(text for text, _ in answers)
        if len(failures) == len(answers):
            unknown = next((error for error in failures if type(error) is not ToolFailed), failures[0])
            raise type(unknown)(text)
        return text

    def _outgoing(self, url: str, method: str, headers: Mapping[str, str], body: bytes) -> Outgoing:
        """All of them are judged before the first is sent."""
        target = Target(url)
        if problem := _problem(headers):
            raise ToolFailed(problem)
        if len(body) > BODY_BYTES_MAX:
            raise ToolFailed(f"the body has {len(body):,} bytes, the limit is {BODY_BYTES_MAX:,}")
        given = {name.lower(): value for name, value in headers.items()}
        merged = {
            "accept": "application/json, text/*;q=0.9, */*;q=0.5",
            **given,
            **self._added.get(target.origin, {}),
        }
        return Outgoing(method=method, headers=tuple(merged.items()), body=body)

    async def _one(self, url: str, outgoing: Outgoing, places: asyncio.Semaphore) -> tuple[str, ToolFailed | None]:
        async with places:
            _counts["running"] += 1
            try:
                fetched = await self._web.ask(url, outgoing, rulebook=tool_context().rulebook)
                text = await text_of(fetched, True)
            except ToolFailed as error:
                _counts["failed"] += 1
                return f"## {outgoing.method} {shown_url(url)}\nFailed: {self._hidden(str(error))}", error
            finally:
                _counts["running"] -= 1
                _counts["asked"] += 1
        notes = [f"cut at {len(fetched.body):,} bytes"] if fetched.cut else []
        text = self._hidden(text)  # before it is cut: a part of a secret is none that could be found
        if len(text) > ANSWER_CHARS_MAX:
            notes.append(f"{len(text) - ANSWER_CHARS_MAX:,} characters left out")
            text = text[:ANSWER_CHARS_MAX]
        end = f"\n[{'; '.join(notes)}]" if notes else ""
        return self._hidden(f"## {outgoing.method} {fetched.url}\n{_head(fetched)}\n\n{text}{end}"), None

    def _hidden(self, text: str) -> str:
        """Without what the program added: a server may send it back."""
        for headers in self._added.values():
            for name, value in headers.items():
                for word in (value, value.rpartition(" ")[2]):
                    if len(word) >= SECRET_CHARS_MIN:
                        text = text.replace(word, f"[{name}]")
        return text


def _body(request: HttpRequest) -> tuple[dict[str, str], bytes]:
    if request.json is not None and request.text is not None:
        raise ToolFailed("give json or text as the body, not both")
    named = {name.lower() for name in request.headers}
    if request.json is not None:
        kind, body = "application/json", msgspec.json.encode(request.json)
    elif request.text is not None:
        kind, body = "text/plain; charset=utf-8", request.text.encode("utf-8", "replace")
    else:
        return request.headers, b""
    return request.headers if "content-type" in named else {**request.headers, "content-type": kind}, body


def _head(fetched: Fetched) -> str:
    told = [f"{name}: {value[:500]}" for name, value in fetched.headers if name.lower() in _TOLD]
    return "\n".join([summary(fetched), *told[:20]])


show("http", lambda: dict(_counts))
