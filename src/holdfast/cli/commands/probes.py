"""What `holdfast doctor` tries out instead of reading it: tool servers, models, the disk, the clock.

Each try is bounded in time and leaves nothing behind: a program that was started is ended, also by its guard if this
process is killed. It never raises for what it finds.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.app import App
from holdfast.cli.commands.findings import Finding
from holdfast.cli.words import ago, line
from holdfast.core.deadlines import ModelDeadlines
from holdfast.core.records import Message, Role, Text
from holdfast.core.retry import RetryPolicy
from holdfast.errors import HoldfastError, ModelCallFailed
from holdfast.ids import new_id
from holdfast.mcp_servers import McpServer
from holdfast.models.base import Request, Settings
from holdfast.models.calls import Caller, Completed
from holdfast.models.resolve import DEFAULTS
from holdfast.redaction import Secrets
from holdfast.store.contract import Store
from holdfast.system.clock import SystemClock
from holdfast.system.threads import Pool
from holdfast.tools.mcp.connection import Link, LoginPlace
from holdfast.worker.guard import Guard

SERVER_S = 20.0  # for one tool server: to start, or to be reached, and to list its tools
MODEL_S = 30.0  # for one call of one model
SYNC_S = 10.0
SYNC_SLOW_S = 0.25  # every commit waits for one
CLOCK_MS = 2_000  # what two clocks may differ by
TOOLS_SHOWN_MAX = 40
NOISE_TOKENS = 16  # of an answer that only has to come
ASKED = "Say ok."


# --- tool servers ---------------------------------------------------------------------------------------


async def try_servers(servers: Sequence[McpServer], home: str) -> list[Finding]:
    """All at once, each within its time, with the logins of this home."""
    if not servers:
        return []
    threads = Pool("doctor", 2)
    guard = Guard()
    await threads.run(lambda _: guard.start())
    try:
        return [
            found
            for each in await asyncio.gather(*(_try_server(one, guard, home) for one in servers))
            for found in each
        ]
    finally:
        await asyncio.shield(threads.run(lambda _: guard.stop()))
        threads.stop()


async def _try_server(server: McpServer, guard: Guard, home: str) -> list[Finding]:
    async def at_once(work: Callable[[], Any]) -> Any:
        return work()

    bounded = replace(server, connect_s=min(server.connect_s, SERVER_S), list_s=min(server.list_s, SERVER_S))
    link = Link(bounded, guard, at_once, LoginPlace(home, Secrets()))
    began = time.monotonic()
    try:
        async with asyncio.timeout(SERVER_S):
            await link.settled()
    except TimeoutError:
        return [_no_server(server, f"it was not there within {SERVER_S:g} s")]
    except HoldfastError as error:
        return [_no_server(server, str(error))]
    else:
        if link.needs_login:
            return [_no_login(server, link.last_error or "")]
        if link.state != "ready":
            return [_no_server(server, link.last_error or "it cannot be reached")]
        return _listed(server, link, time.monotonic() - began)
    finally:
        await link.close()


def _no_server(server: McpServer, why: str) -> Finding:
    place = "its command, args and env" if server.command else "its url and headers"
    return Finding(
        what="server",
        code="tool_server_unavailable",
        detail=f"{server.name} ({line(server.place, 100)}): {line(why, 500)}",
        advice=f"check {place} in [mcp.{server.name}], or where the agent has it; chats go on without its tools",
        wrong=True,
    )


def _no_login(server: McpServer, why: str) -> Finding:
    return Finding(
        what="server",
        code="tool_server_needs_login",
        detail=f"{server.name} ({line(server.place, 100)}): {line(why, 500)}",
        advice=f"holdfast mcp login {server.name}; chats go on without its tools",
        wrong=True,
    )


def _listed(server: McpServer, link: Link, took_s: float) -> list[Finding]:
    names = sorted(name.removeprefix(server.prefix) for name in link.tools)
    shown = ", ".join(line(name, 64) for name in names[:TOOLS_SHOWN_MAX])
    more = f" and {len(names) - TOOLS_SHOWN_MAX} more" if len(names) > TOOLS_SHOWN_MAX else ""
    how_many = f"{len(names)} tool{'' if len(names) == 1 else 's'}"
    detail = f"{server.name} ({server.transport}, {took_s:.1f} s), {how_many}: {shown or 'none'}{more}"
    found = [Finding(what="server", code="ok", detail=detail)]
    if missing := [name for name in server.tools or () if name not in names]:
        words = f"{server.name} has no {', '.join(line(name, 64) for name in missing)}, which `tools` names"
        found.append(Finding(what="server", code="tool_missing", detail=words, advice="correct `tools`", wrong=True))
    return found


# --- models ---------------------------------------------------------------------------------------------


async def call_models(app: App | None, environ: Iterable[str]) -> list[Finding]:
    """One short real call of each model: those of the agents, and that of each key that is set."""
    if app is None:
        return []
    agents = app.agents.values()
    named = [model for agent in agents for model in (agent.model, *agent.fallbacks) if isinstance(model, str)]
    keyed = [model for variable, model in DEFAULTS.items() if variable in environ]
    names = [name for name in dict.fromkeys((*named, *keyed)) if not name.startswith("scripted")]
    try:
        return list(await asyncio.gather(*(_call_model(app, name) for name in names)))
    finally:
        await app.models.aclose()


async def _call_model(app: App, name: str) -> Finding:
    deadlines = ModelDeadlines(connect_s=MODEL_S, first_byte_s=MODEL_S, silence_s=MODEL_S, call_s=MODEL_S)
    message = Message(id=new_id("msg"), role=Role.USER, parts=(Text(text=ASKED),))
    request = Request(messages=[message], settings=Settings(max_tokens=NOISE_TOKENS), deadlines=deadlines)
    began = time.monotonic()
    try:
        model = app.models.get(name)
        async with asyncio.timeout(MODEL_S + 1.0):
            done = await Caller(policy=RetryPolicy(attempts_max=1)).call([model], request)
    except TimeoutError:
        return Finding(what="call", code="timeout", detail=f"{name}: no answer within {MODEL_S:g} s", wrong=True)
    except ModelCallFailed as error:
        detail = app.secrets.taken_out(str(error.errors[-1]))
        return Finding(what="call", code=error.code, detail=line(detail, 500), advice=error.advice, wrong=True)
    except HoldfastError as error:
        return Finding(what="call", code="model_unusable", detail=str(error), wrong=True)
    said = line(done.message.text, 40) if isinstance(done, Completed) and done.message is not None else ""
    words = f"{name} answered in {time.monotonic() - began:.1f} s: {said or 'without a word'}"
    return Finding(what="call", code="ok", detail=words)


# --- the disk -------------------------------------------------------------------------------------------


async def try_sync(folder: str, too_long_s: float) -> Finding:
    """Commits wait for the disk to have what was written: how long does it take here?"""
    threads = Pool("doctor-disk", 1)
    try:
        async with asyncio.timeout(SYNC_S):
            took_s = await threads.run(lambda _: _synced(folder))
    except TimeoutError:
        detail = f"{folder}: a write of 4 kB was not on the disk after {SYNC_S:g} s"
        return Finding(what="disk", code="disk_stuck", detail=detail, advice=_DISK, wrong=True)
    except OSError as error:
        detail = f"{folder}: {error.strerror or error}"
        return Finding(what="disk", code="disk_not_synced", detail=detail, advice=_DISK, wrong=True)
    finally:
        threads.stop()
    words = f"a write is on the disk after {1000 * took_s:.1f} ms"
    if took_s > too_long_s:
        words += f", longer than a store operation may take ({too_long_s:g} s, store_deadline_s)"
        return Finding(what="disk", code="disk_slow", detail=words, advice=_DISK, wrong=True)
    if took_s > SYNC_SLOW_S:
        return Finding(what="disk", code="disk_slow", detail=f"{words}, and every commit waits so long", advice=_DISK)
    return Finding(what="disk", code="ok", detail=words)


_DISK = "is the disk busy, failing, or on a network? --home and --database name another place"


def _synced(folder: str) -> float:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(os.urandom(4096))
        file.flush()
        began = time.monotonic()
        os.fsync(file.fileno())
        return time.monotonic() - began


# --- the clock ------------------------------------------------------------------------------------------


class ClockLook:
    """From its making on: does the wall clock go as time does, and as the database's?"""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._wall_ms, self._boot_ms = self._clock.wall_ms(), self._clock.boot_ms()

    async def judge(self, store: Store) -> Finding:
        """Of an open store. Raises HoldfastError."""
        ahead_ms = store.now_ms() - self._clock.wall_ms()
        stepped_ms = (self._clock.wall_ms() - self._wall_ms) - (self._clock.boot_ms() - self._boot_ms)
        newest_ms = max((lease.renewed_at for lease in await store.list_workers()), default=0)
        if abs(stepped_ms) > CLOCK_MS:
            words = f"the wall clock was set by {stepped_ms / 1000:+.1f} s while doctor looked"
            return Finding(what="clock", code="clock_stepped", detail=words, advice=_CLOCK, wrong=True)
        if abs(ahead_ms) > CLOCK_MS:
            words = f"the database's clock is {ahead_ms / 1000:+.1f} s from this machine's"
            return Finding(what="clock", code="clock_differs", detail=words, advice=_CLOCK, wrong=True)
        if newest_ms > store.now_ms() + CLOCK_MS:
            late_s = (newest_ms - store.now_ms()) / 1000
            words = f"the database has entries that are {late_s:.1f} s ahead of the clock: it was set back"
            return Finding(what="clock", code="clock_behind", detail=words, advice=_CLOCK, wrong=True)
        heard = f", newest entry {ago(newest_ms)}" if newest_ms else ""
        return Finding(what="clock", code="ok", detail=f"{abs(ahead_ms)} ms from the database's{heard}")


_CLOCK = "let NTP keep it (timedatectl); leases and retries do not need it, instants that people chose do"
