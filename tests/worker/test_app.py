"""An app that several parts of a program have open at the same time."""

import asyncio

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.records import State
from holdfast.models.scripted import ScriptedModel


class SlowToClose(ScriptedModel):
    """As one that has connections of its own."""

    def __init__(self) -> None:
        super().__init__("Hello.")
        self.closing, self.closed = asyncio.Event(), asyncio.Event()

    async def aclose(self) -> None:
        self.closing.set()
        await self.closed.wait()


async def test_an_app_that_is_entered_while_its_last_user_leaves_is_open(store_url: str) -> None:
    app, model = App(store_url, agents=[Agent("a", "slow")]), SlowToClose()
    app.models._models["slow"] = model
    await app.__aenter__()
    leaving = asyncio.ensure_future(app.__aexit__())
    await model.closing.wait()
    entering = asyncio.ensure_future(app.__aenter__())
    await asyncio.sleep(0)
    model.closed.set()
    await asyncio.gather(leaving, entering)
    chat = await app.create("a")
    assert await chat.state() is State.IDLE
    await app.__aexit__()


def test_an_app_that_many_enter_at_once_can_be_used_in_one_event_loop_after_another(store_url: str) -> None:
    app = App(store_url, agents=[Agent("a", "scripted:Hello.")])

    async def use() -> None:
        async with app:
            await app.create("a")

    async def use_at_once() -> int:
        await asyncio.gather(use(), use(), use())
        async with app:
            return len(await app.chats())

    assert [asyncio.run(use_at_once()) for _ in range(3)] == [3, 6, 9]
