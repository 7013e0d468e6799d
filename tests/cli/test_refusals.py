"""A provider's refusal at the terminal: told once, with what to do; every attempt of it for who asks."""

import asyncio
import json
from functools import partial

from tests.cli.conftest import Desk, Done
from tests.support.chat_server import ChatServer
from tests.support.speakers import Anthropic

WORDS = "invalid x-api-key"
ADVICE = "the key in ANTHROPIC_API_KEY is not accepted: set ANTHROPIC_API_KEY to one that is valid at 127.0.0.1"
KEY = "sk-ant-of-another-day-0123456789"


async def at(desk: Desk, *arguments: str) -> Done:
    return await asyncio.to_thread(partial(desk.run, *arguments))


async def test_a_refusal_is_told_once_with_the_variable_to_set(desk: Desk) -> None:
    async with ChatServer(Anthropic().refusing(401, "authentication_error", WORDS)) as server:
        desk.environ |= {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.root}
        done = await at(desk, "run", "hello")
        loud = await at(desk, "run", "hello", "--verbose")
        told = json.loads((await at(desk, "run", "hello", "--json")).out.splitlines()[-1])
        show = await at(desk, "chats", "show", "last")
        shown = await at(desk, "chats", "show", "last", "-v")
        why = await at(desk, "chats", "why", "last")
        tail = await at(desk, "chats", "tail", "last", "--verbose")
    assert (done.code, done.out) == (1, "")
    assert done.err.count(WORDS) == 1
    assert done.err.count(ADVICE) == 1
    assert "attempt 1" not in done.err
    assert loud.err.count("attempt 1, anthropic:claude-sonnet-5-5: authentication (anthropic, status 401)") == 1
    assert told["error"]["advice"].startswith(ADVICE)
    assert WORDS in told["error"]["chain"][0]
    assert (show.out.count(WORDS), show.out.count(ADVICE)) == (1, 1)
    assert "attempt 1" in shown.out
    assert ADVICE in why.out
    assert "attempt 1" in tail.out
    everything = "".join(each.out + each.err for each in (done, loud, show, shown, why, tail))
    assert KEY not in everything + json.dumps(told)


def test_a_key_that_is_not_set_is_named_before_anything_is_asked(desk: Desk) -> None:
    done = desk.run("run", "hello", "--model", "google:gemini-3.8-flash")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("needs a key: set the environment variable GOOGLE_API_KEY or GEMINI_API_KEY") == 1
    told = desk.run("run", "hello", "--model", "google:gemini-3.8-flash", "--json")
    assert told.code == 1
    (line,) = [json.loads(line) for line in told.out.splitlines()]
    assert (line["kind"], line["exit"], line["error"]["code"]) == ("error", 1, "config")


def test_the_causes_of_any_error_are_told_to_who_asks(desk: Desk) -> None:
    database = "postgresql://ann:hunter2-hunter2@127.0.0.1:9/none"
    short = desk.run("chats", "list", "--database", database)
    long = desk.run("chats", "list", "--database", database, "--verbose")
    told = json.loads(desk.run("chats", "list", "--database", database, "--json").out)
    assert (short.code, long.code) == (1, 1)
    assert "because of" not in short.err
    assert "holdfast:   because of " in long.err
    assert told["error"]["chain"]
    assert "hunter2" not in long.err + short.err + json.dumps(told)
