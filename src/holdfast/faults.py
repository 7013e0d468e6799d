"""Crash points: named places where a test may kill this process, or make it fail.

`reach(name)` costs one comparison and does nothing unless a point is armed, by `arm()` or by the environment:
`HOLDFAST_CRASH_AT=name` or `name:3` (at the third time) kills this process with SIGKILL, as a power button would.
Every point is listed in `POINTS`; reaching or arming an unlisted one is a bug and says so. Points between which
nothing happens are reached by one call, in their order.
"""

import os
import signal
import threading
from collections.abc import Callable

POINTS = (
    # A change inside the store's write transaction, in the order it happens.
    "write.begun",
    "write.chat.before",
    "write.chat.after",
    "write.journal.before",
    "write.journal.after",
    "write.calls.before",
    "write.calls.after",
    "write.queue.before",
    "write.queue.after",
    "write.spending.before",
    "write.spending.after",
    "write.receipt.before",
    "write.receipt.after",
    "commit.before",
    "commit.after",
    "ack.before",
    # Whole verbs that write on their own.
    "create.before",
    "create.after",
    "schedule.before",
    "schedule.chat",
    "schedule.after",
    "memory.before",
    "memory.written",
    "memory.after",
    "claim.before",
    "claim.after",
    "deltas.before",
    "deltas.after",
    "fork.before",
    "fork.slice",
    "fork.after",
    "delete.before",
    "delete.rows",
    "delete.after",
    "import.before",
    "import.slice",
    "import.after",
    "clear.before",
    "clear.after",
    "draw.before",
    "draw.after",
    "fold.before",
    "fold.after",
    "lease.before",
    "lease.after",
    "expire.before",
    "expire.after",
    "migrate.before",
    "migrate.after",
    "checkpoint.before",
    "checkpoint.after",
    # Tokens of an MCP server: new ones have come, and are not on the disk yet.
    "mcp.refreshed",
    # Copies of a SQLite file.
    "copy.step",
    "backup.checked",
    "restore.prepared",
    "restore.kept",
    "vacuum.rebuilt",
)

_armed: dict[str, tuple[int, Callable[[], None]]] | None = None
_lock = threading.Lock()  # points are reached in any thread, also while another one arms or disarms them


def reach(*names: str) -> None:
    if _armed is not None:
        for name in names:
            _fire(name)


def arm(name: str, action: Callable[[], None], *, at: int = 1) -> None:
    """Run `action` the `at`-th time that point `name` is reached in this process."""
    global _armed
    if name not in POINTS:
        raise ValueError(f"there is no crash point {name!r}; the points are: {', '.join(POINTS)}")
    with _lock:
        _armed = {**(_armed or {}), name: (at, action)}


def disarm() -> None:
    global _armed
    with _lock:
        _armed = None


def _fire(name: str) -> None:
    assert name in POINTS, name
    with _lock:
        if _armed is None or name not in _armed:
            return
        left, action = _armed[name]
        if left > 1:
            _armed[name] = (left - 1, action)
            return
        del _armed[name]
    action()


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm_from_environment() -> None:
    if order := os.environ.get("HOLDFAST_CRASH_AT"):
        name, _, at = order.partition(":")
        arm(name, _kill_this_process, at=int(at or 1))


arm_from_environment()
