"""A program that opens a store at the same instant as others like it, and says how that ended.

Usage: python -m tests.store.starter URL. It says `ready`, waits for a line, opens the store, writes one chat.
"""

import asyncio
import os
import sys

from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from tests.support.chats import new_chat


async def main(url: str) -> None:
    store = open_store(url, StoreOptions())  # loads the driver
    say("ready")
    sys.stdin.readline()
    async with store:
        await store.create_chat(new_chat("hello", id=f"of-{os.getpid()}"))
        say(f"opened {store.stats()['store']}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
