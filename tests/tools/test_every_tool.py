"""Every tool that holdfast ships, one row each (`every_tool.py`): cancelled before and in the middle, killed with its
worker, a gigabyte of output, a hundred at once. Each is bounded, and nothing is left behind.
"""

import asyncio
import json
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, get_type_hints

import psutil  # type: ignore[import-untyped]
import pytest

import holdfast
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.codec import storable
from holdfast.core.records import Cause, State
from holdfast.errors import ToolFailed
from holdfast.models.scripted import ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.system import processes
from holdfast.system.guard_process import VARIABLE, glance
from holdfast.tools.base import Tool, call_tool, output_text
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp.connection import Link
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.worker.guard import Guard
from holdfast.worker.tool_body import Body, SyncPool
from tests.support.programs import Program
from tests.support.system_calls import watched
from tests.support.turns import QUICK
from tests.support.waiting import eventually, until
from tests.tools.every_tool import TABLE, UNKNOWN, Kit, Orders, Row, results
from tests.tools.every_tool_program import with_sessions
from tests.tools.sites import Site, site

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="deaths are watched by pidfd, which Linux has")

BOUND_S = 30.0
CROWD_S = 240.0  # a hundred processes take two cores a while
GROWN_MB_MAX = 200
RESULT_BYTES_MAX = (1 << 20) + 2_000
MIDDLES = [row for row in TABLE if not isinstance(row.middle, str)]
CROWDS = [row for row in TABLE if not isinstance(row.many, str)]


def ids(row: Row) -> str:
    return row.name


# --- the table ---------------------------------------------------------------------------------------


def test_every_tool_that_is_exported_has_a_row_and_its_replay_class(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    made = {name for name in holdfast.__all__ if makes_tools(getattr(holdfast, name))}
    assert made == kit.makers
    replay = {row.tool: row.replay for row in TABLE}
    assert {name: str(tool.replay) for name, tool in kit.tools.items()} | {"t_echo": "unsafe"} == replay


def makes_tools(thing: Any) -> bool:
    if thing is holdfast.tool:
        return True
    return isinstance(thing, FunctionType) and get_type_hints(thing).get("return") in (Tool, list[Tool])


def test_every_other_test_that_the_table_names_is_there() -> None:
    told = [each for row in TABLE for each in (row.middle, row.killed, row.flood, row.many) if isinstance(each, str)]
    for path, _, name in (each.partition("::") for each in told if "::" in each):
        assert hasattr(import_module(path.removesuffix(".py").replace("/", ".")), name), name


# --- one call of it ----------------------------------------------------------------------------------


@dataclass
class Bench:
    """The tools without a worker: bodies, under a guard."""

    kit: Kit
    site: Site
    guard: Guard
    pool: SyncPool
    link: Link
    entered: set[str]

    async def tool(self, row: Row) -> Tool:
        if row.tool != "t_echo":
            return self.kit.tools[row.tool]
        await self.link.settled()
        return self.link.tools[row.tool]

    def body(self, made: Tool, call_id: str) -> Body:
        context = ToolContext(call_id=call_id, chat_id="c", children=self.guard, rulebook=Rulebook([self.kit.reach]))
        return Body(made, call_id, context, self.entered)

    async def session(self, row: Row) -> str:
        given = json.dumps(self.kit.arguments({"command": row.session, "wait_s": 60}))
        returned = await self.body(self.kit.tools["start_session"], "before").run(given, self.pool.run)
        assert returned is not None
        return returned.content.partition("\n")[0]

    async def in_the_middle(self, row: Row, held: set[tuple[str, str]]) -> None:
        """Whatever a call of this tool waits for, it waits for it now."""
        await until(lambda: row.name in self.entered, BOUND_S)
        if row.held_at is not None:
            await until(lambda: row.held_at in held, BOUND_S)
        elif row.begun.startswith("/"):
            await until(lambda: self.site.hits[row.begun], BOUND_S)
        elif row.begun:
            await until((self.kit.folder / row.begun).exists, BOUND_S)
        elif row.label:
            await until(lambda: self.guard.group_count, BOUND_S)
        elif row.tool == "t_echo":
            await until(lambda: self.link.figures()["calls_open"], BOUND_S)

    def held(self) -> tuple[int, int, int]:
        """Files, threads but those that wait for work, and processes."""
        process = psutil.Process()
        return process.num_fds(), threading.active_count() - self.pool.thread_count, len(process.children())


@pytest.fixture
async def bench(tmp_path: Path, guard: Guard, pool: SyncPool) -> AsyncIterator[Bench]:
    async with site() as served:
        kit = Kit(tmp_path, served.port)
        link = Link(kit.server, guard, pool.run)
        try:
            yield Bench(kit, served, guard, pool, link, set())
        finally:
            await link.close()


async def test_a_call_that_is_cancelled_before_it_began_asks_nothing_of_the_system(bench: Bench) -> None:
    for row in TABLE:
        tool = await bench.tool(row)
        calls = [each for each in (row.middle, row.many, row.flood) if not isinstance(each, str)]
        given = json.dumps(bench.kit.arguments(calls[0]))
        body = bench.body(tool, row.name)
        body.cancel(Cause.USER)
        children = bench.guard.group_count
        with watched() as watch:
            assert await body.run(given, bench.pool.run) is None
            with pytest.raises(ToolFailed, match="cancelled"):
                await call_tool(tool, given, body.context, bench.pool.run)
            if tool.context_parameter is not None and not tool.is_async:  # a thread that comes to it late
                with pytest.raises(ToolFailed, match="cancelled"):
                    tool(**tool.validate(given), context=body.context)
            assert watch.calls == [], row.name
        assert bench.guard.group_count == children, row.name
    assert not bench.entered
    assert not bench.site.hits
    assert not list(bench.kit.folder.glob("*.begun"))


@pytest.mark.parametrize("row", MIDDLES, ids=ids)
async def test_a_call_that_is_cancelled_in_the_middle_ends_and_leaves_nothing(row: Row, bench: Bench) -> None:
    assert not isinstance(row.middle, str)
    tool = await bench.tool(row)
    await processes.run(["true"], children=bench.guard, deadline_s=BOUND_S, bytes_max=100)  # the starter stays
    before = bench.held()
    session = await bench.session(row) if row.session else ""
    given = json.dumps(bench.kit.arguments(row.middle, session=session))
    body = bench.body(tool, row.name)
    with watched(*filter(None, [row.held_at])) as watch:
        work = asyncio.ensure_future(body.run(given, bench.pool.run))
        await bench.in_the_middle(row, watch.held)
        body.cancel(Cause.USER)
        assert await work is None
        assert not body.abandoned, "it ended within the time that a cancelled body has"
        done = len(watch.calls)
        watch.let_go()
        await until(lambda: bench.pool.abandoned == 0, BOUND_S)
        later = {name for kind, name in watch.calls[done:] if kind == "open"}
        assert later <= {row.held_at[1] if row.held_at else ""}, "it went on to other files"
    if row.session:
        await bench.body(bench.kit.tools["end_session"], "after").run(
            json.dumps({"session": session}), bench.pool.run
        )
    await until(lambda: not processes._endings and bench.guard.group_count == (row.tool == "t_echo"), BOUND_S)
    await until(lambda: all(now <= then for now, then in zip(bench.held(), before, strict=True)), BOUND_S)
    assert bench.kit.litter() == []
    for path in ("write/written.txt", "edit/edited.txt", "patch/patched.txt"):  # whole or not at all
        file = bench.kit.root / path
        assert not file.exists() or file.read_text() in ("old\n", "new\n")


# --- with its worker ---------------------------------------------------------------------------------


@pytest.mark.timeout(240)
async def test_killed_with_its_worker_each_leaves_nothing_and_comes_to_what_its_class_says(
    store_url: str, tmp_path: Path
) -> None:
    """All of them at once, each in the middle: then the kill, then a worker that takes the chat over."""
    async with site() as served:
        kit = Kit(tmp_path, served.port, search_s=0.5)  # for the second time
        arguments = ["cut-off", store_url, str(tmp_path), str(served.port)]
        with Program("tests.tools.every_tool_program", *arguments) as program:
            told = json.loads(await asyncio.to_thread(program.hear))
            await until(lambda: all(served.hits[row.begun] for row in MIDDLES if row.begun.startswith("/")), BOUND_S)
            assert told["running"] == sorted(row.tool for row in MIDDLES)
            program.process.kill()
        mark = f"{VARIABLE}={told['mark']}".encode()
        await until(lambda: not [seen for seen in glance() if not seen.dead and seen.carries(mark)], BOUND_S)
        assert len(kit.litter()) == 3, "of the three that were about to give a file its name"
        for path in ("edit/edited.txt", "patch/patched.txt"):
            assert (kit.root / path).read_text() == "old\n"
        async with app_of(store_url, kit, Orders()) as app:
            chat = app.chat(told["chat"])
            await eventually(lambda: at_rest(chat), BOUND_S)
            found = results(await chat.messages())[-len(MIDDLES) :]
    assert {row.name: row.killed in result.content for row, result in zip(MIDDLES, found, strict=True)} == {
        row.name: True for row in MIDDLES
    }, [result.content[:200] for result in found]
    assert {row.name for row in MIDDLES if row.killed == UNKNOWN} == {
        row.name for row in MIDDLES if row.replay == "unsafe"
    }
    assert (kit.root / "write/written.txt").read_text() == "new\n"
    for folder in ("edit", "patch"):  # the next writer there tidies up, as the rerun did in its own folder
        kit.tools["write_file"](path=f"{folder}/next.txt", content="next\n")
    assert kit.litter() == []


async def at_rest(chat: Chat) -> bool:
    return await chat.state() in (State.IDLE, State.FAILED)


@asynccontextmanager
async def app_of(url: str, kit: Kit, orders: Orders) -> AsyncIterator[App]:
    child = Agent("child", ScriptedModel("I am a child."))
    app = App(
        url,
        agents=[kit.agent(orders, parallel_calls=100), child],
        retry=QUICK,
        options=StoreOptions(lease_ttl_ms=10_000),
    )
    async with app, app.worker(poll_s=0.5):
        yield app


# --- a gigabyte --------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
async def test_a_gigabyte_takes_bounded_memory_and_leaves_a_bounded_result(tmp_path: Path) -> None:
    async with site() as served:
        arguments = ["flooded", f"sqlite:///{tmp_path}/holdfast.db", str(tmp_path), str(served.port)]
        with Program("tests.tools.every_tool_program", *arguments) as program:
            told = json.loads(await asyncio.to_thread(program.hear))
            await asyncio.to_thread(program.finish)
    floods = {row.name: row for row in TABLE if not isinstance(row.flood, str)}
    assert {name: row.cut in told[name]["said"] for name, row in floods.items()} == dict.fromkeys(floods, True), told
    assert {name: row for name, row in told.items() if row["result_bytes"] > RESULT_BYTES_MAX} == {}
    assert sum(row["grown_mb"] for row in told.values()) < GROWN_MB_MAX, told
    assert sum(path.stat().st_size for path in tmp_path.glob("holdfast.db*")) < 32 << 20


@pytest.mark.parametrize("piece", ["a", "é", "a\x00", "\ud800", "€a"])
def test_a_long_result_is_cut_without_a_copy_of_it(piece: str) -> None:
    text, most = piece * 4_000_000, 1_001
    size = len(storable(piece).encode()) * 4_000_000
    tracemalloc.start()
    try:
        cut = output_text(text, most)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000
    assert f"[… {size - most:,} bytes left out …]" in cut
    assert cut.startswith(storable(piece))
    assert cut.endswith(storable(piece))
    assert len(cut.encode()) < most + 100


# --- a hundred ---------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
async def test_a_hundred_at_once_all_end_each_with_its_own_result_and_leave_nothing(tmp_path: Path) -> None:
    before, orders, missing = psutil.Process().num_fds(), Orders(), {}
    async with site() as served:
        kit = Kit(tmp_path, served.port)
        kit.add_crowd()
        async with app_of(f"sqlite:///{tmp_path}/holdfast.db", kit, orders) as app:
            for row in CROWDS:
                chat = await app.create("all")
                [session] = await with_sessions(kit, chat, orders, [row])
                missing[row.name] = await without_their_own(kit, row, chat, orders, session)
                assert processes.running_children() <= 20, "the server, and sessions that go on"
        assert missing == {row.name: [] for row in CROWDS}
        await until(lambda: not processes._endings and not processes.running_children(), BOUND_S)
        assert kit.litter() == []
    await until(lambda: psutil.Process().num_fds() <= before + 8, BOUND_S)  # the starter stays, and its like


async def without_their_own(kit: Kit, row: Row, chat: Chat, orders: Orders, session: str) -> list[str]:
    """Those of so many calls in one step whose result is not what they asked for."""
    assert not isinstance(row.many, str)
    known = len(results(await chat.messages()))
    orders.calls = [(row.tool, kit.arguments(row.many, session=session, n=n)) for n in range(row.count)]
    await chat.send("go")
    if await chat.wait(CROWD_S) is State.WAITING:
        assert len((await chat.snapshot()).open_calls) == row.count
        await chat.stop()
    await eventually(lambda: at_rest(chat), CROWD_S)
    wanted = [row.own.replace("#", f"{n:03}") for n in range(row.count)]
    found = results(await chat.messages())[known:]
    return [result.content for own, result in zip(wanted, found, strict=True) if own not in result.content]
