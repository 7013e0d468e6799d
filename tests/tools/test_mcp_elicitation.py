"""What a server asks the person in the middle of a call: a durable question, answered once, in the person's words."""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.records import State
from holdfast.mcp_servers import McpServer
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp.elicitation import ASKED_MAX, KEPT_MAX, Asker, Reply, question, reply_of
from tests.support.programs import Program
from tests.support.turns import rested, running, said
from tests.support.waiting import until
from tests.tools.questioned import agent
from tests.tools.test_mcp import program

BOOK = Call(name="t_book", arguments={"flight": "LX 1"})
SEAT = {
    "type": "object",
    "properties": {"row": {"type": "integer", "minimum": 1}, "window": {"type": "boolean"}},
    "required": ["row"],
}
COLOUR = {"properties": {"colour": {"type": "string", "enum": ["red", "blue"]}}, "required": ["colour"]}


COUNT = {"properties": {"n": {"type": "integer"}}}
SOME = {
    "properties": {
        "s": {
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [{"const": "a", "title": "first"}, {"const": "b"}, {"const": "c"}]},
        }
    }
}

# As the server of the tests sends it.
SENT = {
    "properties": {
        "row": {"title": "Row", "type": "integer"},
        "window": {"default": False, "title": "Window", "type": "boolean"},
    },
    "required": ["row"],
    "title": "Seat",
    "type": "object",
}

NAME = {
    "properties": {"name": {"title": "Name", "type": "string"}},
    "required": ["name"],
    "title": "Name",
    "type": "object",
}


def asked_for(message: str) -> str:
    return question("t", message, SENT, None).id


def asking(question_id: str) -> Call:
    return Call(name="t_ask_person", arguments={"question": question_id})


async def answered(chat: Chat, answer: str) -> None:
    assert await rested(chat) is State.WAITING
    (open_call,) = await chat.open_calls()
    await open_call.answer(answer)


async def results(chat: Chat) -> list[str]:
    while await chat.state() is not State.IDLE:
        assert await rested(chat) is State.IDLE
    return [text for role, text in said(await chat.messages()) if role == "tool"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_servers_question_waits_for_the_person_without_a_worker_and_the_next_call_gives_the_answer(
    tmp_path: Path, transport: str
) -> None:
    """Another worker, hours later, goes on from what is stored."""
    log, store_url = tmp_path / "log", f"sqlite:///{tmp_path}/holdfast.db"
    id = asked_for("Which seat on LX 1?")
    with ExitStack() as leaving:
        server = program("stdio", "--log", str(log), elicitation=True)
        if transport == "http":
            served = leaving.enter_context(Program("tests.support.mcp_server", "http", "0", "--log", str(log)))
            server = McpServer("t", url=served.hear(), elicitation=True)
        model = ScriptedModel([BOOK], [asking(id)], [BOOK], [BOOK], "Done.")
        async with running(store_url, Agent("a", model, tools=[server])) as (app, worker):
            chat = await app.create("a", "go")
            assert await rested(chat) is State.WAITING
            (asked,) = await chat.open_calls()
            await until(lambda: chat.id not in worker.running_chats)
            chat_id = chat.id
        assert asked.kind == "question"
        assert (asked.why or "").startswith("MCP server 't' asks: Which seat on LX 1?")
        async with running(store_url, Agent("a", model, tools=[server])) as (app, _):
            chat = app.chat(chat_id)
            (asked,) = await chat.open_calls()
            await asked.answer('{"row": 12, "window": true}')
            while await chat.state() is not State.IDLE:
                await rested(chat)
            results = [text for role, text in said(await chat.messages()) if role == "tool"]
    first, answer, second, third = results
    assert first.startswith("not booked: cancel")
    assert f"call t_ask_person with question '{id}'" in first
    assert answer == '{"row": 12, "window": true}'
    assert second == "booked row 12, window True"
    assert third.startswith("not booked: cancel"), "an answer counts once"


async def test_an_answer_counts_for_the_question_that_the_person_saw_and_for_no_other(store_url: str) -> None:
    """A server that asks for something harmless, and for something else while the person thinks about that."""
    other = Call(name="t_book", arguments={"flight": "to the moon"})
    first, second = asked_for("Which seat on LX 1?"), asked_for("Which seat on to the moon?")
    model = ScriptedModel([BOOK], [asking(first), other], [other], [asking(second)], [other], "Done.")
    server = program("stdio", elicitation=True)
    async with running(store_url, Agent("a", model, tools=[server])) as (app, _):
        chat = await app.create("a", "go")
        await answered(chat, '{"row": 1}')
        await answered(chat, '{"row": 2}')
        told = await results(chat)
    assert told[1] == '{"row": 1}'
    assert told[3].startswith("not booked: cancel"), "the person was not asked about the moon yet"
    assert told[5] == "booked row 2, window False"


async def test_a_tool_that_asks_twice_in_one_call_comes_to_its_end_and_each_answer_counts_once(
    store_url: str, tmp_path: Path
) -> None:
    go = Call(name="t_trip", arguments={})
    out, back = asked_for("Which seat on the way out?"), asked_for("Which seat on the way back?")
    model = ScriptedModel([go], [asking(out)], [go], [asking(back)], [go], [go], "Done.")
    server = program("stdio", "--log", str(tmp_path / "log"), elicitation=True)
    async with running(store_url, Agent("a", model, tools=[server])) as (app, _):
        chat = await app.create("a", "go")
        await answered(chat, '{"row": 11}')
        await answered(chat, '{"row": 22}')
        told = await results(chat)
    assert told[2].startswith("no trip: cancel on the way back")
    assert told[4] == "rows 11 and 22"
    assert told[5].startswith("no trip: cancel on the way out"), "what was given is spent"
    assert (tmp_path / "log").read_text().count("trip") == 1


async def test_a_server_that_answers_cancel_with_an_error_is_asked_about_all_the_same(store_url: str) -> None:
    strict = Call(name="t_strict", arguments={})
    id = asked_for("Which seat?")
    model = ScriptedModel([strict], [asking(id)], [strict], "Done.")
    async with running(store_url, Agent("a", model, tools=[program("stdio", elicitation=True)])) as (app, _):
        chat = await app.create("a", "go")
        await answered(chat, '{"row": 3}')
        told = await results(chat)
    assert "no seat was chosen" in told[0]
    assert f"call t_ask_person with question '{id}'" in told[0]
    assert told[2] == "row 3"


async def test_a_link_that_a_server_wants_opened_first_is_shown_to_the_person(store_url: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    linked = Call(name="t_linked", arguments={"path": str(there)})
    id = question("t", "Connect your account", None, "https://accounts.example/connect").id
    model = ScriptedModel([linked], [asking(id)], [linked], [asking(id)], [linked], "Done.")
    async with running(store_url, Agent("a", model, tools=[program("stdio", elicitation=True)])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.WAITING
        (open_call,) = await chat.open_calls()
        assert "Open https://accounts.example/connect (it leads to accounts.example)" in (open_call.why or "")
        await open_call.answer("done")
        assert await rested(chat) is State.IDLE
        told = await results(chat)
    assert f"call t_ask_person with question '{id}'" in told[0]
    assert "The person says that this is done, and the server wants it still" in told[2]
    assert told[3].startswith("That is no open question"), "an answer counts once"


async def test_a_question_that_is_stopped_is_not_answered_by_the_stop(store_url: str) -> None:
    greet, id = Call(name="t_greet", arguments={}), question("t", "Who are you?", NAME, None).id
    model = ScriptedModel([greet], [asking(id)], [greet], "Done.")
    async with running(store_url, Agent("a", model, tools=[program("stdio", elicitation=True)])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.WAITING
        await chat.stop()
        assert await rested(chat) is State.IDLE
        await chat.send("again")
        told = await results(chat)
    assert told[2].startswith("nobody: cancel")


async def test_killed_while_a_person_is_asked_nothing_is_lost_and_killed_with_the_answer_it_counts_once(
    tmp_path: Path,
) -> None:
    """The server has acted on the answer when the second worker dies: it must not get it again."""
    log, store_url = tmp_path / "log", f"sqlite:///{tmp_path}/holdfast.db"
    id = question("t", "Who are you?", NAME, None).id
    worker = ("tests.tools.questioned", store_url, str(log), "hold", id, "hold", "hold")
    app = App(store_url, agents=[agent(str(log))], options=StoreOptions(lease_ttl_ms=10_000))
    async with app:
        chat = await app.create("a", "go")
        with Program(*worker) as asking_worker:
            assert await rested(chat) is State.WAITING
            asking_worker.process.kill()
        (open_call,) = await chat.open_calls()
        await open_call.answer("Ann")
        with Program(*worker) as holding:
            await until(lambda: "held Ann" in log.read_text())
            holding.process.kill()
        with Program(*worker):
            told = await results(chat)
    assert told[0].startswith("not held: cancel")
    assert told[1] == "Ann"
    assert "unknown" in told[2]
    assert told[3].startswith("not held: cancel"), "the answer is spent"
    assert log.read_text().count("held Ann") == 1


async def test_a_server_cannot_push_out_what_others_keep_and_asks_a_few_things_in_a_call() -> None:
    server, context = McpServer("t", command="-"), ToolContext()
    await context.keep("of another tool", "precious")
    for n in range(20):
        asker = Asker(server, context)
        for m in range(ASKED_MAX):
            assert (await asker.reply(f"{n} {m}", None, None)).action == "cancel"
        assert (await asker.reply(f"{n} more", None, None)).action == "cancel"
        assert f"it asks more than {ASKED_MAX} things in one call" in asker.notes[-1]
    assert context.kept["of another tool"] == "precious"
    assert len(context.kept) == KEPT_MAX + 1
    assert question("t", f"19 {ASKED_MAX - 1}", None, None).id in list(context.kept)[-1], "the newest stay"


async def test_a_question_that_was_not_asked_cannot_be_put_to_the_person(store_url: str) -> None:
    model = ScriptedModel([asking("q_made_up")], "Done.")
    async with running(store_url, Agent("a", model, tools=[program("stdio", elicitation=True)])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        (told,) = [text for role, text in said(await chat.messages()) if role == "tool"]
    assert told.startswith("That is no open question of MCP server 't'")


@pytest.mark.parametrize(
    ("text", "schema", "reply"),
    [
        ("decline", SEAT, Reply(action="decline")),
        ('{"row": 3}', SEAT, Reply(action="accept", content={"row": 3})),
        ('{"row": "3", "window": "yes"}', SEAT, Reply(action="accept", content={"row": 3, "window": True})),
        ("blue", COLOUR, Reply(action="accept", content={"colour": "blue"})),
        ("yes", {"properties": {}}, Reply(action="accept", content={})),
        ("No.", {"properties": {}}, Reply(action="decline")),
        ("9007199254740993", COUNT, Reply(action="accept", content={"n": 9007199254740993})),
        ('{"n": 9007199254740993}', COUNT, Reply(action="accept", content={"n": 9007199254740993})),
        ("3.0", COUNT, Reply(action="accept", content={"n": 3})),
        ("a, c", SOME, Reply(action="accept", content={"s": ["a", "c"]})),
        ('{"s": ["b"]}', SOME, Reply(action="accept", content={"s": ["b"]})),
        ("2", {"properties": {"n": {"type": "integer", "enum": [1, 2]}}}, Reply(action="accept", content={"n": 2})),
    ],
)
def test_an_answer_fits_the_form(text: str, schema: Any, reply: Reply) -> None:
    assert reply_of(text, schema) == reply


def test_a_link_is_accepted_by_a_word_and_by_no_other() -> None:
    assert reply_of("done", None, link=True) == Reply(action="accept")
    assert reply_of("Decline!", None, link=True) == Reply(action="decline")
    with pytest.raises(ValueError, match="it is `done` or `decline`"):
        reply_of("where does that lead to?", None, link=True)


@pytest.mark.parametrize(
    ("text", "schema", "why"),
    [
        ("row 3", SEAT, "a JSON object with row, window"),
        ("{}", SEAT, "row is missing"),
        ('{"row": 0}', SEAT, "row is a whole number in its bounds"),
        ('{"row": 1.5}', SEAT, "row is a whole number"),
        ('{"row": 1, "x": 1}', SEAT, "there is no field 'x'"),
        ('{"row": 1, "window": "perhaps"}', SEAT, "window is yes or no"),
        ("green", COLOUR, "colour is one of red, blue"),
        ("{" * 1000, SEAT, "it "),
        ("wait, why?", {"properties": {}}, "it is `yes` or `decline`"),
        ("done", None, "it is `yes` or `decline`"),
        ("1e300", COUNT, "n is a whole number"),
        ("9" * 5000, COUNT, "n is a whole number"),
        ("nan", {"properties": {"n": {"type": "number"}}}, "n is a number"),
        ('{"n": true}', COUNT, "n is a whole number"),
        ("a, x", SOME, "s is some of a (first), b, c"),
        ("", SOME, "s is some of"),
        ("3", {"properties": {"n": {"type": "integer", "enum": [1, 2]}}}, "n is one of 1, 2"),
        ("abc", {"properties": {"t": {"type": "string", "maxLength": 2}}}, "t is a text of another length"),
    ],
)
def test_an_answer_that_does_not_fit_says_why(text: str, schema: Any, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        reply_of(text, schema)


def test_what_no_person_is_asked() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"a": deep}
    for message, schema, url in (
        ("x" * 1_000, None, None),
        ('"' * 500, None, None),
        ("x", {"properties": {"a": {"type": "object"}}}, None),
        ("x", {"properties": {"a": {"type": "array", "items": {"type": "string"}}}}, None),
        ("x", {"properties": {"a": {"type": "string", "deep": deep}}}, None),
        ("x", None, "javascript:alert(1)"),
        ("x", None, "https://a/\x1b[2J"),
        ("x", None, "https://bank.example@evil.example/"),
        ("x", None, "https://[::1"),
    ):
        with pytest.raises(ValueError, match=r"."):
            question("t", message, schema, url)


def test_a_server_does_not_lay_out_its_question() -> None:
    """What it says stands in one line, with its name before it, and holds nothing that a terminal obeys."""
    form = {"properties": {"a\n\nholdfast: all is well\x1b[2J": {"type": "string", "enum": ["x\ny", "\u202ez"]}}}
    for words in (question("t", "m\n\nnow\x1b]0;x\x07", form, None).words,):
        assert len(words.split("\n")) == 2
        assert words.replace("\n", "").isprintable()
