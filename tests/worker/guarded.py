"""A program with children under a guard. It says who they are, and then ends in the way it is told.

Usage: python -m tests.worker.guarded LOCK. Prints one line of JSON, then obeys lines:
`exit`, `segv`, `fork` (prints the pid of a forked child that lives on), `stop` (prints what the guard found),
`guard OLD` (prints the pid of the guard that came after OLD).
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

from holdfast.store.host_lock import HostLock
from holdfast.worker.guard import Guard

CHILDREN = {
    # Each prints the pid of the process that must not survive.
    "plain": "echo $$; exec sleep 1000",
    "deaf": "trap '' TERM; echo $$; exec sleep 1000",
    "orphan": "sleep 1000 & echo $!",  # the group's leader is gone at once
    "escapee": "setsid sh -c 'echo $$; exec sleep 1000' & exec sleep 1000",
}


def start(guard: Guard, script: str) -> int:
    child = subprocess.Popen(
        ["sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # It holds our own standard error: whoever reads that sees its end only when all are gone.
        start_new_session=True,
        env={**os.environ, **guard.environment},
    )
    guard.add(child.pid)
    assert child.stdout is not None
    return int(child.stdout.readline())


def main(path: str) -> None:
    lock = HostLock(path)
    guard = Guard(lock.fileno())
    guard.start()
    say(json.dumps({name: start(guard, script) for name, script in CHILDREN.items()} | {"guard": guard.pid}))
    for line in sys.stdin:
        match line.split():
            case ["exit"]:
                os._exit(3)
            case ["segv"]:
                ctypes.string_at(0)
            case ["fork"]:
                if pid := os.fork():
                    say(str(pid))
                else:
                    signal.pause()
            case ["guard", old]:
                while (new := guard.pid) in (None, int(old)):
                    time.sleep(0.005)
                say(str(new))
            case ["stop"]:
                guard.stop()
                lock.release()
                say(str(guard.found_at_stop))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
