"""A program that opens a store as somebody for whom permissions count, and says how that ended, as JSON.

Usage: python -m tests.store.unprivileged URL. Root is not bound by permissions because of two capabilities; run by
root, it drops them first, and then owns its files like anybody else.
"""

import asyncio
import ctypes
import json
import os
import sys

from holdfast.errors import HoldfastError
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from tests.support.chats import new_chat

CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


def heed_permissions() -> None:
    """For this thread and those it starts: see capabilities(7)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same for capabilities above 31
    if libc.capget(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    sets[0] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    if libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


async def attempt(url: str) -> dict[str, str]:
    try:
        async with open_store(url, StoreOptions(deadline_s=60)) as store:
            await store.create_chat(new_chat())
    except HoldfastError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": "", "message": ""}


if __name__ == "__main__":
    if os.getuid() == 0:
        heed_permissions()
    json.dump(asyncio.run(attempt(sys.argv[1])), sys.stdout)
