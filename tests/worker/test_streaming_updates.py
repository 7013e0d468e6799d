"""`chat.stream()` and `chat.events()` on a real store, with a worker at work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from holdfast import Agent, App, Chat, ToolContext, WrongCursor, tool
from holdfast.events import (
    CallBegan,
    CallDone,
    CallProgress,
    Delta,
    Finished,
    Happened,
    MessageAdded,
    Paused,
    Responded,
    Restarted,
    TextAdded,
    TurnEnded,
    Update,
)
from holdfast.testing import Call, Fail, Hold, Say, ScriptedModel
from tests.support.fickle import FickleModel
from tests.support.screens import Screen, shown
from tests.support.turns import running


@tool(replay="pure")
async def look(context: ToolContext) -> str:
    """Look."""
    context.progress("half")
    return "seen"


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


async def kinds(updates: AsyncIterator[Update]) -> list[str]:
    return [type(update).__name__ async for update in updates]


async def until_said(chat: Chat, text: str) -> str:
    """The cursor of the update after which this is shown."""
    screen = Screen()
    async with aclosing(chat.stream()) as updates:  # type: ignore[type-var]
        async for update in updates:
            screen.take(update)
            if screen.text == text:
                cursor: str = update.cursor
                return cursor
    raise AssertionError(f"it rests, and shows {screen.text!r}")


async def test_a_turn_is_told_as_it_happens_and_ends_with_the_exact_text(store_url: str) -> None:
    model = ScriptedModel([Say(text="I look. "), Call(name="look")], [Say(text="It is "), Say(text="there.")])
    async with running(store_url, Agent("a", model, tools=[look])) as (app, _):
        chat = await app.create("a", "go")
        updates = [update async for update in chat.stream()]
        assert shown(updates) == "I look. It is there."
        last = updates[-1]
        assert isinstance(last, Finished)
        assert (last.turn.state, last.turn.answer, last.turn.number) == ("done", "It is there.", 1)
        (call,) = last.turn.calls
        assert (call.name, call.progress, call.result) == ("look", "half", "seen")
        happened = [type(update) for update in updates if isinstance(update, CallBegan | CallProgress | CallDone)]
        assert (happened[0], happened[-1]) == (CallBegan, CallDone)
        assert await kinds(chat.stream(after=last.cursor)) == [], "all was told"


async def test_a_stream_begins_with_the_last_turn_and_an_empty_cursor_with_the_chat(store_url: str) -> None:
    async with running(store_url, Agent("a", ScriptedModel("One.", "Two."))) as (app, _):
        chat = await app.create("a", "go")
        first = [update async for update in chat.stream()]
        await chat.send("and again")
        assert shown([update async for update in chat.stream()]) == "Two."
        assert {update.turn.number async for update in chat.stream()} == {2}
        rest = [update async for update in chat.stream(after=first[-1].cursor)]
        assert {update.turn.number for update in rest} == {2}, "behind the first turn comes the second"
        texts = [update.text async for update in chat.stream(after="", settled=True) if isinstance(update, TextAdded)]
        assert texts == ["One.", "Two."]


async def test_a_reader_that_comes_back_is_told_what_it_has_not_shown(store_url: str) -> None:
    model = ScriptedModel([Say(text="It rains"), Hold(name="rest"), Say(text=" in Bern.")])
    async with running(store_url, Agent("a", model)) as (app, _):
        chat = await app.create("a", "go")
        cursor = await until_said(chat, "It rains")
        model.resume("rest")
        elsewhere = App(store_url, agents=[Agent("a", model)])
        async with elsewhere:
            rest = [update async for update in elsewhere.chat(chat.id).stream(after=cursor)]
        assert "".join(update.text for update in rest if isinstance(update, TextAdded)) == " in Bern."
        assert rest[-1].turn.text == "It rains in Bern."
        assert [update.text async for update in chat.stream(settled=True) if isinstance(update, TextAdded)] == [
            "It rains in Bern."
        ]


async def test_an_attempt_that_says_something_else_takes_back_what_was_shown(store_url: str) -> None:
    lost: list[Any] = [[Say(text="It rains"), Hold(name="rest"), Fail(status=503)]]
    model = FickleModel(lambda n: lost if n == 1 else ["It snows."])
    async with running(store_url, Agent("a", model)) as (app, _):
        chat = await app.create("a", "go")
        cursor = await until_said(chat, "It rains")
        model.resume("rest")
        updates = [update async for update in chat.stream(after=cursor)]
        screen = Screen()
        screen.text = "It rains"
        for update in updates:
            screen.take(update)
        assert screen.text == updates[-1].turn.text == "It snows."
        assert screen.taken_back in (len("rains"), len("It rains")), "by whether it was there in time to compare"


async def test_a_stream_ends_where_a_person_is_asked_and_goes_on_after_the_answer(store_url: str) -> None:
    model = ScriptedModel([Say(text="I pay now. "), Call(name="pay")], "Paid.")
    async with running(store_url, Agent("a", model, tools=[pay])) as (app, _):
        chat = await app.create("a", "go")
        updates = [update async for update in chat.stream()]
        paused = updates[-1]
        assert isinstance(paused, Paused)
        assert [(call.name, call.kind) for call in paused.open] == [("pay", "approval")]
        assert await kinds(chat.stream(after=paused.cursor)) == [], "it still waits"
        await chat.approve(paused.open[0].id)
        rest = [update async for update in chat.stream(after=paused.cursor)]
        assert shown([*updates, *rest]) == "I pay now. Paid."
        assert rest[-1].turn.calls[0].result == "paid"


async def test_who_follows_is_told_of_the_next_turn(store_url: str) -> None:
    async with running(store_url, Agent("a", ScriptedModel("One.", "Two."))) as (app, _):
        chat = await app.create("a", "go")
        texts: list[str] = []
        async with asyncio.timeout(30.0), aclosing(chat.stream(follow=True)) as updates:  # type: ignore[type-var]
            async for update in updates:
                if isinstance(update, Responded):
                    texts.append(update.message.text)
                elif isinstance(update, Finished):
                    if update.turn.number == 2:
                        break
                    await chat.send("and again")
        assert texts == ["One.", "Two."]


async def test_events_are_values_to_match_on_with_their_bytes_beside_them(store_url: str) -> None:
    async with running(store_url, Agent("a", ScriptedModel("Well."))) as (app, _):
        chat = await app.create("a", "go")
        said: list[str] = []
        async for event in chat.events():
            match event.body:
                case MessageAdded(message=message):
                    said.append(message.text)
                case TurnEnded(turn=turn):
                    assert turn == 1
            assert isinstance(event.body, Delta) or event.raw.startswith(b'{"kind":')
        assert said == ["go", "Well."]
        update = await anext(aiter(chat.stream()))
        assert isinstance(update, Happened)
        after = [event.seq async for event in chat.events(update.cursor)]
        assert after == [3, 4, 5], "a cursor of an update is a place in the journal, too"
        assert not [update async for update in chat.stream(after="", settled=True) if isinstance(update, Restarted)]


async def test_a_cursor_of_another_chat_is_refused(store_url: str) -> None:
    async with running(store_url, Agent("a", ScriptedModel("Well.", "Well."))) as (app, _):
        one, other = await app.create("a", "go"), await app.create("a", "go")
        cursor = [update async for update in one.stream()][-1].cursor
        with pytest.raises(WrongCursor):
            await kinds(other.stream(after=cursor))
        with pytest.raises(WrongCursor):
            await kinds(one.stream(after=f"{cursor}x="))
