"""Knowing of a process's death, whoever its parent is: by pidfd, which no zombie and no reused pid deceives."""

import os
import select
from types import TracebackType
from typing import Self


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
