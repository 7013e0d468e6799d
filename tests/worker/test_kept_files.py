"""Files of messages and results on their way through a turn: kept once, whole for the model, left out when full."""

import base64
from collections.abc import Sequence

from holdfast import File, Text, ToolOutput
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.journal import MessageAdded
from holdfast.core.kept_files import SCHEME, digest_of, files_in, kept_digest
from holdfast.core.limits import Limits
from holdfast.core.records import Message, Role, State, ToolResult
from holdfast.hooks import Hook, RunContext
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.tools.base import Tool, tool
from tests.support.rows import read_rows
from tests.support.turns import entries, rested, running

SEEN, SHOT = bytes(range(256)) * 40, bytes(reversed(range(256))) * 40


def image(data: bytes) -> File:
    return File(media_type="image/png", uri=f"data:image/png;base64,{base64.b64encode(data).decode()}")


def seeing() -> Message:
    return Message(id="seen", role=Role.USER, parts=(Text(text="see"), image(SEEN)))


def uris(messages: Sequence[Message]) -> list[str]:
    return [file.uri for message in messages for file in files_in(message.parts)]


def screenshot() -> Tool:
    @tool(replay="pure")
    async def screenshot() -> ToolOutput:
        return ToolOutput(text="the screen", files=(image(SHOT), image(SHOT)))

    return screenshot


async def test_the_model_sees_the_bytes_and_the_journal_has_their_names(store_url: str) -> None:
    model = ScriptedModel([Call(name="screenshot")], "Two of a kind.", "Still.")
    hooked: list[ToolResult] = []

    async def after_tool(result: ToolResult, _: RunContext) -> None:
        hooked.append(result)

    agent = Agent("a", model, tools=[screenshot()], hooks=[Hook("after_tool", after_tool)])
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", seeing())
        assert await rested(chat) is State.IDLE
        shown = [image(SEEN).uri, image(SHOT).uri, image(SHOT).uri]
        assert [uris(request.messages) for request in model.requests] == [shown[:1], shown]
        assert uris(await chat.messages()) == shown
        assert [file.uri for result in hooked for file in result.files] == shown[1:]
        kept = [
            file
            for entry in await entries(chat)
            if isinstance(entry, MessageAdded)
            for file in files_in(entry.message.parts)
        ]
        assert [kept_digest(file) for file in kept] == [digest_of(SEEN), digest_of(SHOT), digest_of(SHOT)]
        assert [await chat.read_file(file) for file in kept] == [SEEN, SHOT, SHOT]
        assert await chat.read_file(image(SEEN)) == SEEN
        assert all(len(row.body) < 2_000 for row in await chat.history())
    files = [table for rows in read_rows(store_url).values() for table, _ in rows if table == "files"]
    assert len(files) == 2

    # Another process, which has nothing of it in its memory.
    async with running(store_url, agent) as (app, _):
        await app.chat(chat.id).send("and now?")
        assert await rested(app.chat(chat.id)) is State.IDLE
        assert uris(model.requests[-1].messages) == shown


async def test_what_was_said_in_one_chat_can_be_what_another_begins_with(store_url: str) -> None:
    model = ScriptedModel("I see.", "I see it, too.")
    async with running(store_url, Agent("a", model)) as (app, _):
        first = await app.create("a", seeing())
        await rested(first)
        second = await app.create("a", "go on", past=await first.messages())
        await rested(second)
        await first.delete()
        assert uris(await second.messages()) == [image(SEEN).uri]
        assert uris(model.requests[-1].messages) == [image(SEEN).uri]


async def test_a_chat_that_is_full_of_files_goes_on_without_the_next_one(store_url: str) -> None:
    model = ScriptedModel([Call(name="screenshot")], "Nothing to see.")
    options = StoreOptions(limits=Limits(chat_files_bytes_max=len(SEEN)))
    agent = Agent("a", model, tools=[screenshot()])
    async with App(store_url, agents=[agent], options=options) as app, app.worker(poll_s=0.5):
        chat = await app.create("a", seeing())
        assert await rested(chat) is State.IDLE
        (result,) = [part for m in await chat.messages() for part in m.parts if isinstance(part, ToolResult)]
        assert result.files == ()
        assert result.content.startswith("the screen\n[2 files left out: ")


async def test_a_tool_cannot_show_what_only_another_chat_holds(store_url: str) -> None:
    @tool(replay="pure")
    async def peek() -> ToolOutput:
        return ToolOutput(text="look", files=(File(media_type="image/png", uri=SCHEME + digest_of(SEEN)),))

    model = ScriptedModel([Call(name="peek")], "Nothing to see.")
    agents = [Agent("seer", ScriptedModel("I see.")), Agent("a", model, tools=[peek])]
    async with App(store_url, agents=agents) as app, app.worker(poll_s=0.5):
        assert await rested(await app.create("seer", seeing())) is State.IDLE
        chat = await app.create("a", "look")
        assert await rested(chat) is State.IDLE
        assert uris(model.requests[-1].messages) == []
        (result,) = [part for m in await chat.messages() for part in m.parts if isinstance(part, ToolResult)]
        assert result.content.startswith("look\n[1 files left out: ")
        assert "does not hold" in result.content
