"""Whoever waits for a chat in their own program is never left waiting: not by a chat that goes, not by its store."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from holdfast import Agent, App, Chat
from holdfast.errors import NotFound, OutputInvalid, StoreClosed, TurnFailed
from holdfast.events import Event
from holdfast.testing import Hold, ScriptedModel
from tests.support.waiting import until


async def _events(chat: Chat) -> list[Event]:
    return [event async for event in chat.events()]


WAITS: dict[str, Callable[[Chat], Awaitable[object]]] = {
    "wait": lambda chat: chat.wait(),
    "text": lambda chat: chat.text(),
    "output": lambda chat: chat.output(),
    "events": _events,
}


@pytest.mark.parametrize("how", WAITS)
async def test_a_store_that_is_closed_meanwhile_is_an_error_at_once(store_url: str, how: str) -> None:
    app = App(store_url, agents=[Agent("a", "scripted", output=dict)])
    async with app:
        chat = await app.create("a", "hello")  # nobody drives it: it runs for as long as one likes
        waiting = asyncio.ensure_future(WAITS[how](chat))
        await until(lambda: app.store.bell.waiter_count > 0)
    async with asyncio.timeout(10.0):
        with pytest.raises(StoreClosed):
            await waiting


@pytest.mark.parametrize("how", WAITS)
async def test_a_chat_that_is_deleted_meanwhile_ends_the_wait(store_url: str, how: str) -> None:
    """Only a chat at rest is deleted, so who looks in between still sees how it ended."""
    model = ScriptedModel([Hold(name="here")])
    app = App(store_url, agents=[Agent("a", model, output=dict)])
    async with app.worker(poll_s=0.1):
        chat = await app.create("a", "hello")
        await model.reached("here")
        waiting = asyncio.ensure_future(WAITS[how](chat))
        await until(lambda: app.store.bell.waiter_count > 2)
        await chat.stop()
        await chat.wait(10.0)
        await chat.delete()
        async with asyncio.timeout(10.0):
            with suppress(NotFound, TurnFailed, OutputInvalid):
                await waiting
        with pytest.raises(NotFound):
            async with asyncio.timeout(10.0):
                await WAITS[how](chat)
