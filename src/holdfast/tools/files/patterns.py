"""Regular expressions that cannot hold up the process: they run in a child process, which is killed when it is late.

Python's `re` can take years over one line, and holds the GIL for all of them. There is no linear engine among our
dependencies, so a model's pattern never runs in this process. The child has nothing but the pattern and the text it
is sent; should its parent die while it is busy, the guard ends it, and its own limit on CPU time does so in any case.
"""

import contextlib
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Self, TypeVar

import msgspec

from holdfast.errors import ToolFailed
from holdfast.system import cover
from holdfast.system.cover import ProcessSpec
from holdfast.tools.context import ToolContext

T = TypeVar("T")

ANSWER_BYTES_MAX = 1 << 20
LOOK_S = 0.1  # how often a waiting caller looks whether it still should

_INHERITED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG")

# Frames both ways: four bytes of length, then the text. The first is the pattern; its answer, what is wrong with it.
_PROGRAM = """
import json, re, resource, struct, sys
cpu_s, memory = 60, 1 << 30
resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
try: resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
except (ValueError, OSError): pass  # macOS knows no such limit
inbox, outbox = sys.stdin.buffer, sys.stdout.buffer
def receive():
    head = inbox.read(4)
    return inbox.read(struct.unpack(">I", head)[0]) if len(head) == 4 else sys.exit()
def send(value):
    data = json.dumps(value).encode()
    outbox.write(struct.pack(">I", len(data)) + data)
    outbox.flush()
order = json.loads(receive())
try: found = re.compile(order["pattern"], re.IGNORECASE if order["ignore_case"] else 0).search
except (re.error, OverflowError, RecursionError, MemoryError) as error:
    send(str(error) or type(error).__name__)
    sys.exit()
send("")
while True:
    lines = receive().decode("utf-8", "replace").split("\\n")
    numbers = []
    for number, line in enumerate(lines, 1):
        if found(line.rstrip("\\r")):
            numbers.append(number)
            if len(numbers) == order["lines_max"]: break
    send(numbers)
"""


class Matcher:
    """One pattern in one child. `lines(data)` are the numbers of the lines that match."""

    def __init__(
        self, pattern: str, *, ignore_case: bool, lines_max: int, until: float, context: ToolContext
    ) -> None:
        self._until = until  # by time.monotonic()
        self._context = context
        self._order = msgspec.json.encode({"pattern": pattern, "ignore_case": ignore_case, "lines_max": lines_max})

    def __enter__(self) -> Self:
        children = self._context.children
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        their_in, self._in = os.pipe()
        self._out, their_out = os.pipe()
        try:
            spec = ProcessSpec(
                [sys.executable, "-I", "-S", "-c", _PROGRAM],
                {**environment, **(children.environment if children is not None else {})},
                "/",
                stdin=their_in,
                stdout=their_out,
            )
            self._process = cover.spawn(spec)
        except BaseException:
            os.close(self._in)
            os.close(self._out)
            raise
        finally:
            os.close(their_in)
            os.close(their_out)
        try:
            if children is not None:
                children.add(self._process.pid)
            os.set_blocking(self._in, False)
            os.set_blocking(self._out, False)
            problem = self._ask(self._order)
            if problem:
                raise ToolFailed(f"The pattern is not a regular expression of Python's: {problem}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        os.close(self._in)
        os.close(self._out)
        self._process.wait()
        if self._context.children is not None:
            self._context.children.remove(self._process.pid)

    def lines(self, data: bytes) -> list[int]:
        return msgspec.convert(self._ask(data), list[int])

    def _ask(self, data: bytes) -> object:
        left = memoryview(struct.pack(">I", len(data)) + data)
        while left:
            left = left[self._when_ready(self._in, select.POLLOUT, lambda: os.write(self._in, left)) :]  # noqa: B023
        size = struct.unpack(">I", self._read(4))[0]
        if size > ANSWER_BYTES_MAX:
            raise ToolFailed("the search process answered with more than there can be")
        return msgspec.json.decode(self._read(size))

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = self._when_ready(self._out, select.POLLIN, lambda: os.read(self._out, size - len(found)))  # noqa: B023
            if not piece:
                raise ToolFailed(
                    "The pattern used up the memory or the time that a search may take: make it simpler."
                )
            found += piece
        return found

    def _when_ready(self, descriptor: int, event: int, act: Callable[[], T]) -> T:
        poll = select.poll()
        poll.register(descriptor, event)
        while True:
            if self._context.cancelled:
                raise ToolFailed("cancelled")
            left_s = self._until - time.monotonic()
            if left_s <= 0:
                raise ToolFailed("The search took too long: make the pattern simpler, or search fewer files.")
            if poll.poll(min(left_s, LOOK_S) * 1000):
                try:
                    return act()
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    raise ToolFailed("The search process ended: make the pattern simpler.") from None
