"""What every thread and every task is doing, as text for a person.

Taken by a thread of ours that holds the GIL, never from within a signal handler: faulthandler could do that even when
the GIL is held, but it reads frames that other threads are changing, and crashes the process it was asked about.
"""

import asyncio
import io
import os
import sys
import threading
import traceback

FRAMES_MAX = 40
TASKS_MAX = 1_000
STDERR = 2


def of_thread(ident: int) -> str:
    frame = sys._current_frames().get(ident)
    return "".join(traceback.format_stack(frame, FRAMES_MAX)) if frame is not None else ""


def of_threads() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    text = io.StringIO()
    text.write(f"{len(frames)} threads\n")
    for ident, frame in frames.items():
        text.write(f"{names.get(ident, 'not one of Python')}:\n")
        text.writelines(traceback.format_stack(frame, FRAMES_MAX))
    return text.getvalue()


def of_tasks(loop: asyncio.AbstractEventLoop) -> str:
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    text = io.StringIO()
    text.write(f"{len(tasks)} asyncio tasks\n")
    for task in tasks[:TASKS_MAX]:
        task.print_stack(limit=FRAMES_MAX, file=text)
    if len(tasks) > TASKS_MAX:
        text.write(f"… and {len(tasks) - TASKS_MAX} more\n")
    return text.getvalue()


def write(loop: asyncio.AbstractEventLoop) -> None:
    """All of it to standard error, past `sys.stderr`: the thread that holds its lock may be the one that hangs."""
    data = (of_threads() + of_tasks(loop)).encode(errors="replace")
    while data:
        try:
            data = data[os.write(STDERR, data) :]
        except OSError:
            return
