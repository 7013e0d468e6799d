"""The raw limit: a cycle is two one-row commits, durable, by the drivers that holdfast uses, and nothing else.

Of many chats at once, SQLite takes a row of each in one commit, and PostgreSQL has a connection for each.
"""

import asyncio

import apsw
import psycopg
from workload import RESULT, TEXT, Workload

work = Workload()


async def main() -> None:
    if work.database.startswith("sqlite"):
        sqlite()
    else:
        await postgres()


def sqlite() -> None:
    database = apsw.Connection(work.database.removeprefix("sqlite:///"))
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE lines (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")
    for first in range(0, len(work.chats), work.at_once):
        chats = work.chats[first : first + work.at_once]
        for cycle in range(work.cycles):
            for kind, text in (("model", TEXT), ("tool", RESULT)):
                for chat in chats:
                    work.note(kind, chat, cycle)
                with database:
                    database.executemany("INSERT INTO lines (text) VALUES (?)", [(text,)] * len(chats))


async def postgres() -> None:
    first = await psycopg.AsyncConnection.connect(work.database, autocommit=True)
    await first.execute("CREATE TABLE lines (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text TEXT NOT NULL)")
    idle = [first]
    for _ in range(work.at_once - 1):
        idle.append(await psycopg.AsyncConnection.connect(work.database, autocommit=True))

    async def one(chat: str) -> None:
        database = idle.pop()
        for cycle in range(work.cycles):
            for kind, text in (("model", TEXT), ("tool", RESULT)):
                work.note(kind, chat, cycle)
                await database.execute("INSERT INTO lines (text) VALUES (%s)", (text,))
        idle.append(database)

    await work.drive(one)
    for connection in idle:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
