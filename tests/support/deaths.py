"""Knowing of a process's death, whoever its parent is: by pidfd, which no zombie and no reused pid deceives."""

import asyncio
import os
import select
from contextlib import suppress
from types import TracebackType
from typing import Self


def strike(process: asyncio.subprocess.Process, signum: int) -> None:
    """Send a signal to a process that may just have ended by itself.

    `process.kill()` and its like look first whether it has, which in Python 3.11 takes the exit status away from
    asyncio's own look: the process then seems to have ended with 255.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signum)


class Mortal:
    """A process that lives now. `dies_within` waits for its end; a zombie is dead."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    @property
    def dead(self) -> bool:
        return self.dies_within(0)

    def dies_within(self, deadline_s: float) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(deadline_s * 1000))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
