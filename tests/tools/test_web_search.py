"""web_search: one interface to three engines, bounded results, and no key in anything that is told."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from holdfast.config import PermissionMode
from holdfast.core.records import Replay
from holdfast.errors import ConfigError, ToolFailed
from holdfast.tools.base import Tool
from holdfast.tools.context import ToolContext, enter
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.tools.web.search import RESULTS_MAX, SearchEngine, search_engine, web_search_tool
from tests.support.waiting import until
from tests.tools.engines import KEY, Engines, engines

ENGINES: tuple[SearchEngine, ...] = ("searxng", "brave", "tavily")


@pytest.fixture
async def served() -> AsyncIterator[Engines]:
    async with engines() as found:
        yield found


@pytest.fixture(autouse=True)
def no_keys_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SEARXNG_URL", "BRAVE_API_KEY", "TAVILY_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


def made(served: Engines, engine: SearchEngine = "searxng", **options: Any) -> Tool:
    key = None if engine == "searxng" else KEY
    return web_search_tool(engine, url=f"http://127.0.0.1:{served.port}", key=key, **options)


async def search(tool: Tool, query: str, rules: Sequence[str] = (), **more: Any) -> str:
    enter(ToolContext(rulebook=Rulebook(rules)))
    return str(await tool(**tool.validate(json.dumps({"query": query, **more}))))


async def refused(tool: Tool, query: str, **more: Any) -> str:
    with pytest.raises(ToolFailed) as caught:
        await search(tool, query, **more)
    return str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
async def test_each_engine_is_asked_in_its_own_way_and_answers_in_the_same(
    served: Engines, engine: SearchEngine
) -> None:
    found = await search(made(served, engine), "kelp rock", count=5)
    lines = found.split("\n")
    assert lines[:3] == ["1. Kelp & rock", "https://a.example/kelp", "A holdfast."]
    assert "2. Second\nhttps://b.example/2\n" in found
    assert "xxx…" in found, "a long text is cut"
    assert "javascript" not in found
    assert found.count("https://a.example/kelp") == 1
    assert "your key is [key]" in found if engine != "searxng" else True
    [(method, path, headers, body)] = served.asked
    match engine:
        case "searxng":
            assert (method, path) == ("GET", "/search?q=kelp+rock&format=json")
        case "brave":
            assert (method, path, headers["x-subscription-token"]) == ("GET", "/search?q=kelp+rock&count=5", KEY)
        case "tavily":
            assert (method, path, headers["authorization"]) == ("POST", "/search", f"Bearer {KEY}")
            assert body == {"query": "kelp rock", "max_results": 5}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("busy", "too many requests: try again in 7 s. It said: slow down, [key]"),
        ("busy-until", "try again after 2026-10-21 07:28:00 UTC"),
        ("busy-oddly \xb2", "try again later"),
        ("busy-oddly Fri, 31 Dec 9999 23:59:59 -1400", "try again later"),
        ("busy-oddly Wed, 21 Oct 999999999999 07:28:00 GMT", "try again later"),
        ("forbidden", "look at the key in BRAVE_API_KEY"),
        ("broken", "Brave Search answered 500. That is its own trouble: try again later"),
        ("page", "what is no JSON (text/html)"),
        ("flood", "more than 2,097,152 bytes"),
        ("inward", "none of the hosts that may be asked"),
    ],
)
async def test_what_an_engine_may_do_instead_is_told_in_words_without_the_key(
    served: Engines, query: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    tool = made(served, "brave")
    with caplog.at_level(logging.DEBUG):
        told = await refused(tool, query)
    assert said in told
    assert KEY not in told
    assert KEY not in caplog.text
    assert KEY not in repr(tool)


async def test_an_engine_that_hangs_is_given_up_at_its_time(served: Engines, expire: Callable[[float], None]) -> None:
    asking = asyncio.ensure_future(refused(made(served, time_s=999.0), "hang"))
    await until(lambda: served.asked)
    expire(999.0)
    assert "SearXNG was not asked, or did not answer: timed out after 999 s" in await asking


async def test_many_at_once_each_get_their_own_answer_and_leave_no_connection(served: Engines) -> None:
    before, tool = psutil.Process().num_fds(), made(served)
    found = await asyncio.gather(*(search(tool, f"kelp-{n}", count=20) for n in range(50)))
    assert [f"https://d.example/kelp-{n}\n" in f"{text}\n" for n, text in enumerate(found)] == [True] * 50
    await until(lambda: psutil.Process().num_fds() <= before)


async def test_a_cancelled_search_closes_its_connection(served: Engines) -> None:
    asking = asyncio.ensure_future(search(made(served), "hang"))
    await until(lambda: served.asked)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.wait_for(served.gone.wait(), 30)


async def test_nothing_found_says_so(served: Engines) -> None:
    assert "found nothing for 'nothing'" in await search(made(served), "nothing")


async def test_no_more_than_the_limit_is_asked_for(served: Engines) -> None:
    tool = made(served)
    for count in (0, RESULTS_MAX + 1):
        with pytest.raises(ToolFailed, match="do not fit"):
            await search(tool, "x", count=count)
    assert not served.asked


# --- who may be asked --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "mode", "ruling"),
    [
        ([], None, "allow"),
        ([], "ask", "ask"),
        ([], "read", "deny"),
        (["allow reach(127.0.0.1:*)"], "ask", "allow"),
        (["deny reach(127.0.0.0/8)"], None, "deny"),
    ],
)
def test_a_call_is_judged_by_whom_it_asks(rules: list[str], mode: PermissionMode | None, ruling: str) -> None:
    tool = web_search_tool("searxng", url="http://127.0.0.1:8888")
    acts = tool.acts_of({"query": "x", "count": 1})
    assert [str(act) for act in acts] == ["reach(127.0.0.1:8888)"]
    assert Rulebook(rules, mode).judge(acts, tool.whereabouts, tool.name).ruling == ruling


async def test_an_engine_inside_is_the_programs_own_word_and_a_deny_beats_it(served: Engines) -> None:
    assert "Kelp" in await search(made(served), "kelp")
    told = await refused(made(served), "kelp", rules=["deny reach(127.0.0.0/8)"])
    assert "deny" in told
    assert len(served.asked) == 1


def test_a_search_changes_nothing_and_is_simply_done_again() -> None:
    assert web_search_tool("searxng", url="http://127.0.0.1:8888").replay is Replay.PURE


# --- what is configured ------------------------------------------------------------------------------


def test_the_first_engine_that_the_environment_has_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search_engine({}) is None
    assert search_engine({"TAVILY_API_KEY": "k", "BRAVE_API_KEY": " "}) == "tavily"
    assert search_engine({"TAVILY_API_KEY": "k", "BRAVE_API_KEY": "k"}) == "brave"
    assert search_engine({"TAVILY_API_KEY": "k", "SEARXNG_URL": "http://x"}) == "searxng"
    monkeypatch.setenv("BRAVE_API_KEY", KEY)
    assert [str(act) for act in web_search_tool().acts_of({})] == ["reach(api.search.brave.com:443)"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "set one of SEARXNG_URL, BRAVE_API_KEY, TAVILY_API_KEY"),
        ({"engine": "google"}, "there is no search engine 'google'"),
        ({"engine": "brave"}, "brave needs its key: set BRAVE_API_KEY"),
        ({"engine": "searxng"}, "searxng needs its url: set SEARXNG_URL"),
        ({"engine": "searxng", "url": "file:///etc"}, "the URL of SearXNG is not one"),
        ({"engine": "searxng", "url": "http://ann:pw@host/"}, "holds a name or a password"),
        ({"engine": "brave", "key": "a\nb"}, "has characters no key has"),
    ],
)
def test_what_is_missing_is_said_when_the_tool_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        web_search_tool(**options)
