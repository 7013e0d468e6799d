"""A turn that three workers carry: two of them are killed with -9, one in the model's answer, one in a tool."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping

from holdfast.app import App
from holdfast.core.records import Snapshot, State
from tests.support.programs import Program
from tests.support.waiting import eventually
from tests.worker.carrier import ANSWER, QUESTION, made

CARRIER = "tests.worker.carrier"
WAIT_S = 60.0


async def carried(url: str, environ: Mapping[str, str], before_kill: Callable[[int], Awaitable[None]]) -> Snapshot:
    """The chat after the turn. `before_kill(life)` is awaited while a worker that is to be killed is where it is to
    die.
    """
    with contextlib.ExitStack() as lives:

        def launch(life: int) -> Program:
            program = lives.enter_context(Program(CARRIER, url, str(life), environ=environ))
            assert program.hear() == "ready"
            return program

        async with App(url, [made(0)]) as app:
            first = launch(1)
            chat = await app.create(made(0).name, QUESTION)
            await eventually(lambda: _is_answering(app, chat.id, step=1), WAIT_S)
            second = launch(2)
            await before_kill(1)
            first.process.kill()
            assert second.hear() == "booking"
            third = launch(3)
            await before_kill(2)
            second.process.kill()
            turn = await chat.turn(timeout_s=WAIT_S)
            assert turn.text == ANSWER
            third.say("go")
            third.finish()
            after = await chat.snapshot()
    assert (after.chat.state, after.chat.fence) == (State.IDLE, 3)
    return after


async def _is_answering(app: App, chat_id: str, step: int) -> bool:
    """Something of the response after so many is on its way to the readers."""
    if (await app.store.read_chat(chat_id)).chat.step != step:
        return False
    page = await app.store.read_journal(chat_id)
    while page.more:
        page = await app.store.read_journal(chat_id, page.cursor)
    return any(item.attempt is not None and b"rains" in item.body for item in page.items)
