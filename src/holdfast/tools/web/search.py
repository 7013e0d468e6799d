"""The `web_search` tool: one question to a search engine, and its results as text: title, URL, what it says of them.

Three engines, one interface: a SearXNG of one's own by its URL, Brave and Tavily by their keys. What they answer
comes from pages that no one vouches for, and is marked so.
"""

import html
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec.structs import replace
from pydantic import Field

from holdfast.core.records import Frozen
from holdfast.errors import ConfigError, ToolFailed
from holdfast.tools.base import Tool, tool
from holdfast.tools.figures import show
from holdfast.tools.permissions.acts import Whereabouts
from holdfast.tools.web.client import FetchLimits, Resolver
from holdfast.tools.web.service import Service

SearchEngine = Literal["searxng", "brave", "tavily"]

ANSWER_BYTES_MAX = 2 << 20
RESULTS_MAX = 20
RESULTS = 8
QUERY_CHARS_MAX = 400  # what Brave and Tavily take
TITLE_CHARS_MAX = 200
URL_CHARS_MAX = 1_000
SNIPPET_CHARS_MAX = 600
TIME_S = 20.0
DEADLINE_MARGIN_S = 15.0

BRAVE_URL = "https://api.search.brave.com/res/v1/web"
TAVILY_URL = "https://api.tavily.com"
_VARIABLES: Mapping[SearchEngine, str] = {
    "searxng": "SEARXNG_URL",
    "brave": "BRAVE_API_KEY",
    "tavily": "TAVILY_API_KEY",
}
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")  # engines mark the words that were looked for
_counts = {"running": 0, "asked": 0, "failed": 0}


class Hit(Frozen):
    title: str
    url: str
    snippet: str = ""


def search_engine(environ: Mapping[str, str]) -> SearchEngine | None:
    """The first whose variable is set: SEARXNG_URL, BRAVE_API_KEY, TAVILY_API_KEY."""
    return next((engine for engine, variable in _VARIABLES.items() if environ.get(variable, "").strip()), None)


def web_search_tool(
    engine: SearchEngine | None = None,
    *,
    url: str | None = None,
    key: str | None = None,
    name: str = "web_search",
    time_s: float = TIME_S,
    resolve: Resolver | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> Tool:
    """Search the web by "searxng", "brave" or "tavily"; None: the first of these that the environment has.

    `url` and `key` are those of the engine; by default SEARXNG_URL, BRAVE_API_KEY and TAVILY_API_KEY of the
    environment. The URL is the program's own word, so a SearXNG may be an internal one. Whether it is asked at all is
    for `Permissions` to say: a call is `reach(HOST:PORT)` of the engine. Raises ConfigError where a key is missing.
    """
    chosen = engine or search_engine(os.environ)
    if chosen is None:
        raise ConfigError(f"web_search has no engine: set one of {', '.join(_VARIABLES.values())}, or name one")
    if chosen not in get_args(SearchEngine):
        raise ConfigError(f"there is no search engine {chosen!r}: {', '.join(get_args(SearchEngine))}")
    given = os.environ.get(_VARIABLES[chosen], "").strip()
    if chosen == "searxng":
        url = url or given
    else:
        key = key or given
    if not (url if chosen == "searxng" else key):
        what = "url" if chosen == "searxng" else "key"
        raise ConfigError(f"{chosen} needs its {what}: set {_VARIABLES[chosen]}, or give {what}=…")
    limits = FetchLimits(bytes_max=ANSWER_BYTES_MAX, time_s=time_s)
    searcher = _Searcher(_service(chosen, url, key or "", limits, resolve, ssl_context), _ENGINES[chosen])
    made = tool(
        name=name,
        replay="pure",  # a question changes nothing
        deadline_s=time_s + DEADLINE_MARGIN_S,
        acts=searcher.service.acts,
        untrusted=True,
    )(searcher.web_search)
    return replace(made, whereabouts=Whereabouts(root=None))


def _service(
    engine: SearchEngine,
    url: str | None,
    key: str,
    limits: FetchLimits,
    resolve: Resolver | None,
    ssl_context: ssl.SSLContext | None,
) -> Service:
    headers = {"accept": "application/json"}
    match engine:
        case "searxng":
            named, base = "SearXNG", url or ""
            advice = "it may not answer in JSON: let its settings.yml have `search: formats: [html, json]`"
            if key:
                headers["authorization"] = f"Bearer {key}"
        case "brave":
            named, base, headers = "Brave Search", url or BRAVE_URL, {**headers, "x-subscription-token": key}
            advice = f"look at the key in {_VARIABLES[engine]}, and at its plan"
        case "tavily":
            named, base, headers = "Tavily", url or TAVILY_URL, {**headers, "authorization": f"Bearer {key}"}
            advice = f"look at the key in {_VARIABLES[engine]}, and at its plan"
    return Service(
        named,
        base,
        limits=limits,
        headers=headers,
        key=key,
        key_advice=advice,
        resolve=resolve,
        ssl_context=ssl_context,
    )


class _Engine(Frozen):
    """How one engine is asked, and where its results are in what it answers."""

    path: str
    query: str
    found_at: tuple[str, ...]
    snippet: str
    more: Callable[[int], dict[str, Any]]
    posts: bool = False


_ENGINES: Mapping[SearchEngine, _Engine] = {
    "searxng": _Engine(
        path="/search", query="q", found_at=("results",), snippet="content", more=lambda _: {"format": "json"}
    ),
    "brave": _Engine(
        path="/search",
        query="q",
        found_at=("web", "results"),
        snippet="description",
        more=lambda count: {"count": count},
    ),
    "tavily": _Engine(
        path="/search",
        query="query",
        found_at=("results",),
        snippet="content",
        more=lambda count: {"max_results": count},
        posts=True,
    ),
}


class _Searcher:
    def __init__(self, service: Service, engine: _Engine) -> None:
        self.service = service
        self._engine = engine

    async def web_search(
        self,
        query: Annotated[str, Field(min_length=1, max_length=QUERY_CHARS_MAX, description="What to look for.")],
        count: Annotated[int, Field(ge=1, le=RESULTS_MAX, description="How many results, at most.")] = RESULTS,
    ) -> str:
        """Search the web. Each result has a title, a URL and what the search engine says of the page; to read a page,
        get its URL."""
        _counts["running"] += 1
        try:
            hits = await self._hits(query, count)
        except ToolFailed:
            _counts["failed"] += 1
            raise
        finally:
            _counts["running"] -= 1
            _counts["asked"] += 1
        if not hits:
            return f"{self.service.name} found nothing for {query!r}: try other words."
        return self.service.hidden("\n\n".join(_shown(number, hit) for number, hit in enumerate(hits, start=1)))

    async def _hits(self, query: str, count: int) -> list[Hit]:
        engine = self._engine
        parameters = {engine.query: query, **engine.more(count)}
        if engine.posts:
            answer = await self.service.post(engine.path, msgspec.json.encode(parameters), "application/json")
        else:
            answer = await self.service.get(engine.path, {name: str(value) for name, value in parameters.items()})
        found: Any = self.service.decoded(answer)
        for name in engine.found_at:
            found = found.get(name) if isinstance(found, dict) else None
        if found is None and engine.found_at[0] != "web":  # Brave leaves `web` out where it found nothing
            raise ToolFailed(f"{self.service.name} answered with JSON that holds no results: is its URL right?")
        return _hits_of(found if isinstance(found, list) else (), engine.snippet)[:count]


def _hits_of(found: Iterable[Any], snippet: str) -> list[Hit]:
    hits: dict[str, Hit] = {}
    for each in found:
        if len(hits) >= RESULTS_MAX:
            break
        url = each.get("url") if isinstance(each, dict) else None
        if not isinstance(url, str) or not url.startswith(("http://", "https://")) or len(url) > URL_CHARS_MAX:
            continue
        title = _plain(each.get("title"), TITLE_CHARS_MAX)
        hits.setdefault(url, Hit(title=title or url, url=url, snippet=_plain(each.get(snippet), SNIPPET_CHARS_MAX)))
    return list(hits.values())


def _plain(value: Any, chars_max: int) -> str:
    """In one line, without markup."""
    if not isinstance(value, str):
        return ""
    text = " ".join(html.unescape(_TAG.sub("", value[: 4 * chars_max])).split())
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def _shown(number: int, hit: Hit) -> str:
    url = "".join(char for char in hit.url if char > " ")
    return "\n".join(filter(None, (f"{number}. {hit.title}", url, hit.snippet)))


show("web_search", lambda: dict(_counts))
