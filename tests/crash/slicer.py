"""The process that gets killed while it forks and deletes a chat in slices: `python -m tests.crash.slicer URL`.

The chat, "large", was made before. A line goes to standard output after each verb that was answered.
"""

import asyncio
import os
import sys

from holdfast.core.records import NewChat, Role
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import Key, StoreOptions
from holdfast.store.remnants import Slice
from tests.support.chats import assistant, user

SLICE = Slice(rows=4, bytes=1 << 20)
MESSAGES = 22
KEY = Key(principal="ada", key="fork")


def a_large_chat(chat_id: str = "large") -> NewChat:
    turns = [(user, assistant)[n % 2](f"message {n}", id=f"m{n}") for n in range(MESSAGES)]
    assert turns[1].role is Role.ASSISTANT
    return NewChat(id=chat_id, agent="agent", past=tuple(turns))


async def fork_and_delete(store: Store) -> None:
    await store.fork_chat("large", "copy", key=KEY)
    os.write(1, b"forked\n")
    await store.delete_chat("large")
    os.write(1, b"deleted\n")


async def main(url: str) -> None:
    async with open_store(url, StoreOptions()) as store:
        store.large_chats.slice = SLICE
        await fork_and_delete(store)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
