"""A worker with nothing to do costs nearly nothing: `make soak` measures how much, this is why."""

import asyncio
from itertools import count
from typing import Any

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.models.scripted import ScriptedModel
from tests.support.waiting import until

BEATS = 6  # of the watchdog, two a second
TIMERS_MAX = 24  # a poll, a sweep and a ping may fall into that time; 20 a second may not


async def test_while_nothing_happens_a_worker_is_woken_by_its_polls_and_sweeps_alone(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty wakes a second for deadlines, deltas and hints, with nothing to watch, flush or tell, were 1.5 % CPU."""
    loop = asyncio.get_running_loop()
    async with App(store_url, [Agent("a", ScriptedModel(after="echo"))]) as app, app.worker() as worker:
        assert worker.watchdog is not None
        chat = await app.create("a", "hello")
        await chat.text()  # everything has been at work once
        await until(lambda: not worker.running_chats)
        beats, quiet = count(1), asyncio.Event()
        beat, call_at = worker.watchdog._beat, loop.call_at
        set_for: list[float] = []

        def beating() -> None:
            beat()
            if next(beats) == BEATS:
                loop.call_soon_threadsafe(quiet.set)

        def counting(when: float, *arguments: Any, **more: Any) -> asyncio.TimerHandle:
            set_for.append(when - loop.time())
            return call_at(when, *arguments, **more)

        monkeypatch.setattr(worker.watchdog, "_beat", beating)
        monkeypatch.setattr(loop, "call_at", counting)
        await quiet.wait()
        monkeypatch.undo()
        assert len(set_for) < TIMERS_MAX, f"timers were set for {[round(s, 2) for s in set_for]} s"
