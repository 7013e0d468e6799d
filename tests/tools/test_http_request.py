"""http_get and http_request: APIs under the rules of fetch, keys that no model sees, and no doubt left unsaid."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.core.records import Cause, Replay
from holdfast.errors import ConfigError, OutcomeUnknown, ToolFailed
from holdfast.tools.context import ToolContext, enter
from holdfast.tools.permissions.acts import Reach
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.tools.web.http_request import ANSWER_CHARS_MAX, http_tools
from holdfast.worker.tool_body import Body
from tests.tools.hostile import FETCHES, table
from tests.tools.sites import INSIDE, Names, Site, site

RULES = Rulebook(["allow reach(site.test:*)", "allow reach(mirror.test:*)"])
KEY = "Bearer kept-from-the-model"


@pytest.fixture
async def served() -> AsyncIterator[Site]:
    async with site() as found:
        yield found


async def ask(*requests: dict[str, Any], **options: Any) -> str:
    given = {"resolve": Names(), "bytes_max": 100_000, **options}
    enter(ToolContext(rulebook=RULES))
    tools = {made.name: made for made in http_tools(**given)}
    made = tools["http_get" if requests[0].get("method", "GET") in ("GET", "HEAD") else "http_request"]
    return str(await made(**made.validate(json.dumps({"requests": requests}))))


def test_a_get_is_made_again_after_a_crash_and_nothing_else_is() -> None:
    assert [(made.name, made.replay) for made in http_tools()] == [
        ("http_get", Replay.PURE),
        ("http_request", Replay.UNSAFE),
    ]
    assert [made.name for made in http_tools(read_only=True)] == ["http_get"]


def test_what_a_call_reaches_is_judged_before_it() -> None:
    for made in http_tools():
        method = {} if made.name == "http_get" else {"method": "POST"}
        urls = ("https://a.test/x", "http://b.test:8080/y", "no url")
        asked = [{"url": url, **method} for url in urls]
        found = made.acts_of(made.validate(json.dumps({"requests": asked})))
        assert found == [Reach(address="a.test:443"), Reach(address="b.test:8080")]
        assert Rulebook(["deny reach(b.test:*)"]).judge(found).ruling == "deny"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_every_hostile_address_gets_what_the_table_of_fetch_says(served: Site, method: str) -> None:
    rows = []
    for case in FETCHES:
        if not any(word in case.got for word in ("internal", "not fetched", "port", "looks like", "not a URL")):
            continue
        try:
            got = await ask({"method": method, "url": case.url.format(port=served.port)})
        except ToolFailed as error:
            got = str(error)
        follows = method == "POST" and "/to-" in case.url
        rows.append(
            ("ok" if (follows or case.got in got) and INSIDE not in got else "WRONG", case.what, case.got, got)
        )
    assert len(rows) > 10
    assert all(verdict == "ok" for verdict, *_ in rows), "\n" + table(rows)
    assert served.hits["/secret"] == 0


async def test_bodies_and_headers_arrive_and_the_answer_comes_back(served: Site) -> None:
    url = f"http://site.test:{served.port}/ok"
    got = await ask({"method": "POST", "url": url, "json": {"a": [1, "ü"]}, "headers": {"X-One": "1"}})
    assert got == f"## POST {url}\n200 OK, text/plain, 5 bytes\n\nhello"
    await ask({"method": "PUT", "url": url, "text": "plain", "headers": {"content-type": "text/csv"}})
    await ask({"method": "DELETE", "url": url})
    await ask({"method": "HEAD", "url": f"http://site.test:{served.port}/gzip"})
    assert served.bodies == [("POST", '{"a":[1,"ü"]}'.encode()), ("PUT", b"plain"), ("DELETE", b""), ("HEAD", b"")]
    assert [head.get("content-type") for head in served.heads] == ["application/json", "text/csv", None, None]
    assert served.heads[0]["x-one"] == "1"


async def test_a_key_goes_to_its_origin_alone_and_into_no_answer(served: Site) -> None:
    base = f"http://site.test:{served.port}"
    headers = {base: {"Authorization": KEY}}
    got = await ask({"url": f"{base}/who"}, {"url": f"{base}/to-mirror"}, headers=headers)
    assert "kept-from" not in got
    assert "[authorization]" in got
    assert "nobody" in got  # at the end of the redirect
    mine = {"url": f"{base}/who", "headers": {"authorization": "mine"}}
    await ask(mine, headers=headers)
    assert served.heads[-1]["authorization"] == KEY, "the program's word counts"
    await ask({"url": f"http://mirror.test:{served.port}/who"}, headers=headers)
    assert "authorization" not in served.heads[-1]


async def test_only_the_hosts_that_are_meant_are_asked(served: Site) -> None:
    only = {"hosts": ["site.test"]}
    base = f"http://site.test:{served.port}"
    assert "hello" in await ask({"url": f"{base}/ok"}, **only)
    for url in (f"http://mirror.test:{served.port}/ok", f"{base}/to-mirror", "http://93.184.215.14/"):
        with pytest.raises(ToolFailed, match=r"is not asked: it is none of the hosts.*site\.test"):
            await ask({"url": url}, **only)
    assert "hello" in await ask({"url": f"{base}/ok"}, hosts=["*.test"])
    with pytest.raises(ToolFailed, match="is not asked"):
        await ask({"url": "http://nottest/"}, hosts=["*.test"])
    assert served.hits["/who"] == 0


async def test_a_redirect_of_a_post_is_told_and_not_followed(served: Site) -> None:
    got = await ask({"method": "POST", "url": f"http://site.test:{served.port}/to-ok", "text": "x"})
    assert "302 Found" in got
    assert "location: /ok" in got
    assert served.hits["/ok"] == 0


@pytest.mark.parametrize(
    "request_",
    [
        {"headers": {"Host": "other"}},
        {"headers": {"content-length": "5"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
        {"headers": {"x": "a\r\nhost: other"}},
        {"headers": {"x\r\ny": "a"}},
        {"headers": {"x y": "a"}},
        {"headers": {"Proxy-Authorization": "a"}},
        {"headers": {str(number): "" for number in range(51)}},
        {"json": {}, "text": ""},
        {"text": "x" * ((1 << 20) + 1)},
        {"method": "CONNECT"},
        {"method": "POST / HTTP/1.1\r\nx: "},
        {"url": "file:///etc/passwd"},
        {"url": "http://site.test/a b"},
    ],
)
async def test_one_wrong_request_keeps_all_of_them_from_being_sent(served: Site, request_: dict[str, Any]) -> None:
    fine = {"method": "POST", "url": f"http://site.test:{served.port}/ok"}
    with pytest.raises(ToolFailed):
        await ask(fine, {**fine, **request_})
    assert not served.hits


async def test_of_several_each_says_how_it_went(served: Site) -> None:
    base = f"http://site.test:{served.port}"
    got = await ask({"url": f"{base}/ok"}, {"url": f"{base}/missing"}, {"url": "http://127.0.0.1/"})
    assert [part.split("\n")[1][:20] for part in got.split("## GET ")[1:]] == [
        "200 OK, text/plain, ",
        "404 Not Found, text/",
        "Failed: not fetched:",
    ]
    with pytest.raises(ToolFailed, match="1 to 10"):
        await ask(*[{"url": f"{base}/ok"}] * 11)


async def test_a_post_without_an_answer_may_have_taken_effect_and_a_refused_one_has_not(served: Site) -> None:
    with pytest.raises(OutcomeUnknown, match="whether it took effect is not known"):
        await ask({"method": "POST", "url": f"http://site.test:{served.port}/short"})
    with pytest.raises(ToolFailed) as caught:
        await ask({"method": "POST", "url": "http://site.test:1/ok"})
    assert not isinstance(caught.value, OutcomeUnknown)


async def test_an_answer_without_end_is_cut(served: Site) -> None:
    for path in ("/endless", "/bomb"):
        got = await ask({"url": f"http://site.test:{served.port}{path}"})
        assert "cut at 100,000 bytes" in got
        assert len(got) < ANSWER_CHARS_MAX + 1_000


async def test_a_call_that_is_cancelled_in_the_middle_leaves_no_connection(served: Site) -> None:
    made = http_tools(resolve=Names())[0]
    context = ToolContext(rulebook=RULES)
    body = Body(made, "call_1", context, set())
    urls = [{"url": f"http://site.test:{served.port}/endless"}] * 3
    running = asyncio.ensure_future(body.run(json.dumps({"requests": urls}), asyncio.to_thread))
    await served.asked.wait()
    body.cancel(Cause.USER)
    assert await running is None
    await asyncio.wait_for(served.gone.wait(), 60)
    served.asked.clear()
    cancelled = Body(made, "call_2", context, set())
    assert await cancelled.run(json.dumps({"requests": urls}), asyncio.to_thread) is None
    assert not served.asked.is_set()


async def test_a_hundred_at_once_are_all_answered(served: Site) -> None:
    url = f"http://site.test:{served.port}/ok"
    answers = await asyncio.gather(*(ask({"url": url}) for _ in range(100)))
    assert all("hello" in answer for answer in answers)


@pytest.mark.parametrize("headers", [{"api.test": {"a": "b"}}, {"https://api.test": {"a": "b\nc"}}])
def test_headers_that_cannot_be_sent_are_refused_when_the_tool_is_made(headers: Any) -> None:
    with pytest.raises(ConfigError, match="headers"):
        http_tools(headers=headers)


async def test_a_rule_on_an_address_holds_for_every_name_that_leads_there(served: Site) -> None:
    for rule in ("deny reach(127.0.0.0/8)", "ask reach(127.0.0.1:*)"):
        enter(ToolContext(rulebook=Rulebook([rule, f"allow reach(site.test:{served.port})"])))
        made = http_tools(resolve=Names())[0]
        asked = made.validate(json.dumps({"requests": [{"url": f"http://site.test:{served.port}/ok"}]}))
        with pytest.raises(ToolFailed, match="and the rule `"):
            await made(**asked)


async def test_a_secret_is_taken_out_before_an_answer_is_cut(served: Site) -> None:
    """Cut in its midst it would be none that can be found."""
    secret = "kept-from-the-model"
    url = f"http://site.test:{served.port}/echo"
    got = await ask(
        {"method": "POST", "url": url, "text": "x" * (ANSWER_CHARS_MAX - 70) + secret * 20},
        headers={f"http://site.test:{served.port}": {"x-key": secret}},
    )
    assert "kept-from" not in got
