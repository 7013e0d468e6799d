"""The parent process of one test PostgreSQL. It stops the server when the test run is gone.

pytest can be killed with SIGKILL, and then runs no cleanup. So the server is not pytest's child but this
script's, and the test run holds this script's standard input open: end of file means that nobody is left who
wants the server. The script then stops it and removes its directory. If this script is itself killed, the
kernel stops the server (Linux; `PR_SET_PDEATHSIG` is tied to the *thread* that forked, which is why pytest,
which may start servers from any thread, cannot use it directly).

Usage: `postgres_guard.py UID GID DIRECTORY LOG COMMAND...`, with UID -1 for "as I am".
Prints the server's process id, then exits with the server's exit code (or the number of
the signal that killed it). Standard library only: it runs with
`python -I -S`, so that it starts in 20 ms.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

PR_SET_PDEATHSIG = 1
IMMEDIATE_STOP_S = 8.0
"""PostgreSQL kills its own children 5 s into an immediate stop; after 8 s it is not going to obey."""


def main(uid: int, gid: int, directory: str, log: str, command: list[str]) -> int:
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    guard_pid = os.getpid()

    def die_with_the_guard() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)
            if os.getppid() != guard_pid:  # it died before the call above
                os._exit(1)

    with Path(log).open("ab") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            preexec_fn=die_with_the_guard,
            user=None if uid == -1 else uid,
            group=None if uid == -1 else gid,
            extra_groups=None if uid == -1 else [],
        )
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()

    abandoned = threading.Event()

    def stop_when_abandoned() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass  # nothing is ever sent, only the end counts
        abandoned.set()
        server.send_signal(signal.SIGQUIT)
        try:
            server.wait(IMMEDIATE_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()

    threading.Thread(target=stop_when_abandoned, daemon=True).start()
    code = server.wait()
    if abandoned.is_set():
        shutil.rmtree(directory, ignore_errors=True)
    return code


if __name__ == "__main__":
    # Not sys.exit: the thread still sits in its read, and there is nothing to tidy.
    os._exit(abs(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])))
