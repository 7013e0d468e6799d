"""A program that opens a store as somebody for whom permissions count, and says how that ended, as JSON.

Usage: python -m tests.store.unprivileged URL. Run by root it becomes `nobody` first, after importing everything:
the environment it runs from may be one that `nobody` cannot read.
"""

import asyncio
import encodings.idna  # noqa: F401  imported lazily by some library calls, when it would be too late
import json
import os
import pwd
import sys

import holdfast.store.sqlite.store  # noqa: F401  as above
from holdfast.errors import HoldfastError
from holdfast.store import open_store
from holdfast.store.base import StoreOptions
from tests.support.chats import new_chat


async def attempt(url: str) -> dict[str, str]:
    try:
        async with open_store(url, StoreOptions(deadline_s=5)) as store:
            await store.create_chat(new_chat())
    except HoldfastError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": "", "message": ""}


if __name__ == "__main__":
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)
    json.dump(asyncio.run(attempt(sys.argv[1])), sys.stdout)
