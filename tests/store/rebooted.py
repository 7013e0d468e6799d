"""A program on a SQLite store under a boot id of its own: what a machine is after a reboot.

Usage: python -m tests.store.rebooted BOOT_ID_FILE URL TTL_MS. It opens the store, starts a worker with one agent and
says `ready`, or the name of the error that kept it from that. A line `stop` ends it cleanly.
"""

import asyncio
import os
import sys
import time

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.errors import HoldfastError
from holdfast.models.scripted import Hold, ScriptedModel
from holdfast.store.records import StoreOptions

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(url: str, ttl_ms: int) -> None:
    app = App(url, [Agent("a", ScriptedModel([Hold(name="gate")]))], options=StoreOptions(lease_ttl_ms=ttl_ms))
    began = time.monotonic()
    try:
        async with app, app.worker(poll_s=0.1):
            say(f"ready {time.monotonic() - began:.1f}")
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    except HoldfastError as error:
        say(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    boot_id, *rest = sys.argv[1:]
    if boot_id != "inside":
        # In a mount namespace of its own, where the kernel's file shows what ours says.
        script = f'mount --bind "$0" {BOOT_ID} && exec "$@"'
        again = [sys.executable, "-m", "tests.store.rebooted", "inside", *rest]
        os.execvp("unshare", ["unshare", "-m", "sh", "-c", script, boot_id, *again])
    asyncio.run(main(rest[0], int(rest[1])))
