"""DBOS: a workflow whose model and tool are steps, as its guide has it."""

import asyncio
import sqlite3
from urllib.parse import urlsplit

from dbos import DBOS, SetWorkflowID
from workload import RESULT, TEXT, Workload

work = Workload()


@DBOS.step()
async def ask(chat: str, cycle: int) -> str:
    return TEXT if work.asked(chat, cycle) else ""


@DBOS.step()
async def weather(chat: str, cycle: int) -> str:
    return await work.tool(chat, cycle)


@DBOS.workflow()
async def turn(chat: str, cycles: int) -> int:
    said = 0
    for cycle in range(cycles):
        said += len(await ask(chat, cycle)) + len(await weather(chat, cycle))
    await ask(chat, cycles)
    return said


async def one(chat: str) -> None:
    with SetWorkflowID(chat):
        handle = await DBOS.start_workflow_async(turn, chat, work.cycles)
    said = await handle.get_result()
    if said != work.cycles * (len(TEXT) + len(RESULT)):
        raise SystemExit(f"{chat} said {said}")


async def main() -> None:
    if work.option == "wal":
        sqlite3.connect(urlsplit(work.database).path.removeprefix("/")).execute("PRAGMA journal_mode = WAL")
    DBOS(config={"name": "peers", "system_database_url": work.database, "log_level": "ERROR", "executor_id": "one"})
    DBOS.launch()
    await work.drive(one)
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())
