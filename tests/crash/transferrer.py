"""The process that gets killed while it imports a chat or deletes an owner: `python -m tests.crash.transferrer URL
WHAT`.
"""

import asyncio
import os
import sys
from pathlib import Path

from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from holdfast.transfer import delete_owner, import_chat
from tests.crash.slicer import SLICE


async def main(url: str, verb: str, about: str) -> None:
    async with open_store(url, StoreOptions()) as store:
        store.large_chats.slice = SLICE
        if verb == "import":
            await import_chat(store, Path(about))
        else:
            await delete_owner(store, about)
        os.write(1, b"done\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
