"""An app that several parts of a program have open at the same time."""

import asyncio

from holdfast.app import App
from holdfast.core.records import State
from holdfast.models.scripted import ScriptedModel
from holdfast.worker.agents import Agent


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
