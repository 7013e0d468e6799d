"""A worker in a process of its own, whose chat calls every tool.

    python -m tests.tools.every_tool_program cut-off URL FOLDER PORT     every call stands in the middle
    python -m tests.tools.every_tool_program flooded URL FOLDER PORT     each would get a gigabyte

It tells one line of JSON: that it is so far, or what each took. The first ends when its input does.
"""

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.app import App
from holdfast.chat import Chat
from holdfast.worker.worker import Worker
from tests.support.system_calls import watched
from tests.support.waiting import until
from tests.tools.every_tool import TABLE, Arguments, Kit, Orders, Row, results

WAIT_S = 60.0


async def asked(chat: Chat, orders: Orders, calls: list[tuple[str, Arguments]]) -> list[str]:
    """One turn; what its calls came to."""
    known = len(results(await chat.messages()))
    orders.calls = calls
    turn = await (await chat.send("go")).turn()
    assert turn.state == "done", turn
    return [result.content for result in results(await chat.messages())[known:]]


async def with_sessions(kit: Kit, chat: Chat, orders: Orders, rows: list[Row]) -> list[str]:
    """The id of a session for each row that is about one."""
    if not any(row.session for row in rows):
        return [""] * len(rows)
    commands = [kit.arguments({"command": row.session, "wait_s": 60}) for row in rows if row.session]
    told = await asked(chat, orders, [("start_session", command) for command in commands])
    ids = iter([text.partition("\n")[0] for text in told])
    return [next(ids) if row.session else "" for row in rows]


async def cut_off(kit: Kit, chat: Chat, orders: Orders, worker: Worker) -> Any:
    rows = [row for row in TABLE if not isinstance(row.middle, str)]
    sessions = await with_sessions(kit, chat, orders, rows)
    await asked(chat, orders, [(row.tool, kit.arguments(row.warm)) for row in rows if row.warm is not None])
    places = [row.held_at or row.before for row in rows if row.held_at or row.before]
    with watched(*filter(None, places)) as watch:
        orders.calls = [
            (row.tool, kit.arguments(row.middle, session=session))
            for row, session in zip(rows, sessions, strict=True)
            if not isinstance(row.middle, str)
        ]
        await chat.send("go")
        await until(lambda: watch.held.issuperset(places), WAIT_S)
        files = [kit.folder / row.begun for row in rows if row.begun and not row.begun.startswith("/")]
        await until(lambda: all(file.exists() for file in files), WAIT_S)
        assert worker.guard is not None
        say(
            {
                "chat": chat.id,
                "mark": worker.guard.mark,
                "running": sorted(running.tool for running in worker.running_tools()),
            }
        )
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()


async def flooded(kit: Kit, chat: Chat, orders: Orders, _: Worker) -> None:
    kit.add_gigabytes()
    await asked(chat, orders, [("shell", {"command": "echo warm"}), ("list_files", {})])
    told = {}
    for row in TABLE:
        if not isinstance(row.flood, str):
            began_s, before = time.monotonic(), peak_kb()
            [content] = await asked(chat, orders, [(row.tool, kit.arguments(row.flood))])
            told[row.name] = {
                "result_bytes": len(content.encode()),
                "grown_mb": (peak_kb() - before) >> 10,
                "seconds": round(time.monotonic() - began_s, 2),
                "said": content[-200:],
            }
    say(told)


def peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def say(told: object) -> None:
    sys.stdout.write(f"{json.dumps(told)}\n")
    sys.stdout.flush()


async def main(what: str, url: str, folder: str, port: str) -> None:
    kit, orders = Kit(Path(folder), int(port)), Orders()
    app = App(url, [kit.agent(orders, parallel_calls=100)])
    async with app, app.worker(poll_s=0.5) as worker:
        chat = await app.create("all")
        await {"cut-off": cut_off, "flooded": flooded}[what](kit, chat, orders, worker)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
