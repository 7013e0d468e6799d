"""The supervisor: starts the processes of a command, hands them the socket they listen on, starts another for one
that ends, replaces one after the other when it is told to (SIGHUP), and drains all of them when it is told to go.

The first process is started alone: what is wrong with the settings, or with the database, is said once, and ends the
command. The others follow when it is ready. From then on a process that ends by itself is started again, at once if
it lived for a while, else after a pause that doubles; those that live go on meanwhile. When there is none left that
is ready, and one cannot even start, the command ends with the exit code of that one.

It runs no code of the app and no event loop: one thread, one `select`, and everything in it is bounded.
"""

import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from holdfast.cli.supervisor.child import Child, Slots, Start, start_anew
from holdfast.cli.supervisor.questions import Questions
from holdfast.errors import ConfigError
from holdfast.log_context import logger
from holdfast.server.listening import listen, passed_listener
from holdfast.worker.process import Say, say_on_stderr

log = logger("holdfast.supervisor")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
LIVED_S = 10.0  # who lived so long is started again at once
PAUSE_S, PAUSE_MAX_S = 0.5, 30.0
START_S = 120.0  # for a process to be ready, once the first one was; longer than it waits for its database
LEAVE_S = 20.0  # beyond the grace, for a process that drains: a little more than it needs at worst
TELL_S = 5.0
CLOSING_S = 2.0  # from when a terminal is found gone: in that time SIGHUP is about it


class Supervisor:
    """`run()` returns the exit code of the command."""

    def __init__(
        self,
        count: int,
        start: Start = start_anew,
        say: Say = say_on_stderr,
        *,
        start_s: float = START_S,
        closing_s: float = CLOSING_S,
    ) -> None:
        self._count = count
        self._start_s = start_s
        self._closing_s = closing_s
        self._start = start
        self._say = say
        self._children: list[Child] = []
        self._listeners: dict[tuple[str, int], socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._questions = Questions(lambda: self._children, self._standing)
        self._told: signal.Signals | None = None
        self._going = False  # told to, or because one cannot start
        self._going_s = 0.0
        self._said_s = 0.0
        self._failed: int | None = None  # the exit code of one that could not start
        self._told_to_fail = False  # that one was ended by a signal that means: go
        self._begun = False  # the first one was ready
        self._complete = False  # all were ready once, and a person was told
        self._rolling: list[Child] = []  # still to be replaced
        self._pauses = 0  # of starts, one after the other, that came to nothing
        self._start_at_s: float | None = None
        self._restarts = 0
        self._last_end: str | None = None
        self._exit = 0
        self._has_terminal = _has_terminal()
        self._closed_s: float | None = None  # when it was found gone
        self._outlives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as under nohup

    def run(self) -> int:
        with _memory() as memory, _signals() as ear:
            try:
                self._slots = Slots(self._count + 1, memory.fileno())
            except OSError as error:
                raise ConfigError(
                    f"{self._count} processes take more open files than there may be ({error.strerror}): let there "
                    "be more (ulimit -n, LimitNOFILE), or start fewer"
                ) from error
            self._selector.register(ear, selectors.EVENT_READ, ear)
            self._add(first=True)
            while self._children or self._start_at_s is not None:
                for key, events in self._selector.select(self._wait_s()):
                    if key.data is ear:
                        for number in ear.recv(256):
                            self._on_signal(signal.Signals(number))
                    elif key.data in self._children:
                        self._on_line(key.data, events)
                self._reap()
                self._on_time(time.monotonic())
                self._watch_lines()
            self._slots.close()
        self._close_listeners()
        if self._going and self._failed is None:
            self._say(f"all drained in {time.monotonic() - self._going_s:.1f} s")
        return self._failed if self._failed is not None else self._exit

    # --- processes --------------------------------------------------------------------------------------------------

    def _add(self, *, first: bool = False, replaces: Child | None = None) -> None:
        try:
            child = Child(self._start, self._slots, first=first, replaces=replaces)
        except OSError as error:
            if first:
                raise ConfigError(f"no process can be started: {error}") from error
            self._say(f"no process can be started: {error.strerror or error}")
            if replaces is not None:
                self._rolling.insert(0, replaces)
            self._pause()
            return
        self._children.append(child)
        starting = [other for other in self._children if other.state == "starting"]
        for other in starting:
            other.beside = max(other.beside, len(starting))
        self._selector.register(child.line, selectors.EVENT_READ, child)

    def _standing(self, child: Child) -> dict[str, Any]:
        """What is known of a process without asking it."""
        return {"number": child.number, "pid": child.pid, "state": child.state, "uptime_s": round(child.age_s, 1)}

    def facts(self) -> dict[str, Any]:
        return {
            "processes_wanted": self._count,
            "restarts": self._restarts,
            "last_end": self._last_end,
            "draining": self._going,
        }

    def _reap(self) -> None:
        for child in list(self._children):
            if (code := child.poll()) is not None:
                with suppress(OSError, ValueError):
                    for message in child.read():  # its last words
                        self._take(child, message)
                self._remove(child)
                self._on_end(child, code)

    def _remove(self, child: Child) -> None:
        self._children.remove(child)
        with suppress(KeyError, ValueError):
            self._selector.unregister(child.line)
        child.close()
        self._slots.free(child.slot)
        self._questions.forget(child)
        self._close_unused()

    def _on_end(self, child: Child, code: int) -> None:
        if child in self._rolling:
            self._rolling.remove(child)
        for other in self._children:
            if other.replaces is child:
                other.replaces = None
        if self._going:
            if child.was_ready or not _was_told(code):
                self._exit = self._exit or _exit_code(code)
        elif child.state == "starting" and not self._begun:
            self._fail(child, code)
        elif child.state == "draining":  # it was replaced
            self._start_at_s = time.monotonic()
        elif child.state == "starting" and child.replaces is not None:
            self._say(f"the successor of process {child.replaces.number} {_ended(code)}: those that run stay")
            log.error("not replaced", extra={"action": "process.not_replaced", "exit": code})
            self._rolling.clear()
        else:
            self._on_crash(child, code)

    def _on_crash(self, child: Child, code: int) -> None:
        self._restarts += 1
        self._last_end = f"process {child.number} (pid {child.pid}) {_ended(code)}"
        extra = {"action": "process.ended", "number": child.number, "pid": child.pid, "exit": code}
        log.error("a process ended", extra=extra)
        if child.state == "starting" and not any(other.state == "ready" for other in self._children):
            self._fail(child, code)
            return
        if child.state == "ready" and child.age_s >= LIVED_S:
            self._pauses = 0
        pause_s = self._pause()
        self._say(f"{self._last_end}; another is started{f' in {pause_s:g} s' if pause_s else ''}")

    def _fail(self, child: Child, code: int) -> None:
        """It has said itself what is wrong, unless it was killed: by what a terminal or a service manager told all of
        us, it may be, and then we hear of it next.
        """
        self._failed = _exit_code(code)
        self._told_to_fail = _was_told(code)
        if code < 0:
            self._say(f"process {child.number} (pid {child.pid}) {_ended(code)} before it was ready")
        self._drain_all()

    def _pause(self) -> float:
        pause_s = min(PAUSE_S * 2 ** (self._pauses - 1), PAUSE_MAX_S) if self._pauses else 0.0
        self._pauses = min(self._pauses + 1, 16)
        self._start_at_s = time.monotonic() + pause_s
        return pause_s

    def _fill(self) -> None:
        """As many as there should be, not counting those that go."""
        self._start_at_s = None
        staying = [child for child in self._children if child.state != "draining" and not child.is_spare]
        for _ in range(self._count - len(staying)):
            if not self._going and self._has_slot:
                self._add()
        self._roll_on()

    @property
    def _has_slot(self) -> bool:
        return len(self._children) <= self._count

    def _on_ready(self, child: Child) -> None:
        if child.state != "starting":
            return
        child.state, child.was_ready = "ready", True
        if child.replaces is not None:
            self._say(f"process {child.replaces.number} (pid {child.replaces.pid}) is replaced by {child.number}")
            child.replaces.drain(LEAVE_S)
        elif child.first:
            self._begun = True
            self._fill()
        ready = sum(other.state == "ready" for other in self._children)
        if ready == self._count and not self._complete:
            self._complete = True
            self._say(f"{self._count} processes are ready; SIGHUP replaces them one after the other")
        self._roll_on()

    # --- rolling ----------------------------------------------------------------------------------------------------

    def _roll(self) -> None:
        """One that has just been started is replaced, too: it may have read what has changed since."""
        going = {child.replaces for child in self._children}
        self._rolling = [child for child in self._children if child.state != "draining" and child not in going]
        self._say(f"SIGHUP: {len(self._rolling)} processes are replaced, one after the other")
        self._roll_on()

    def _roll_on(self) -> None:
        """The next, once the successor of the one before is ready and that one is gone."""
        if self._going or any(child.replaces is not None for child in self._children):
            return
        if self._rolling and self._has_slot:
            self._rolling.sort(key=lambda child: child.state != "ready")
            if self._rolling[0].state == "ready":  # else when it is
                self._add(replaces=self._rolling.pop(0))

    # --- what it is told --------------------------------------------------------------------------------------------

    def _on_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGCHLD:
            return
        if number is signal.SIGUSR1:
            for child in self._children:
                if child.state != "starting":  # else it may not know it yet, and would die of it
                    child.signal(number)
        elif number is signal.SIGHUP and not self._is_closing(time.monotonic()):
            if self._begun and not self._going:
                self._roll()
            else:
                self._say("SIGHUP: nothing is replaced before the first process is ready, or while all drain")
        elif number is signal.SIGHUP and self._outlives_terminal:
            self._say("SIGHUP: the terminal was closed; as under nohup, that changes nothing")
        elif self._told is None:
            self._told = number
            if self._told_to_fail:
                self._failed = None
            grace_s = max((child.grace_s for child in self._children), default=0.0)
            self._say(
                f"{number.name}: draining {len(self._children)} processes, at most {grace_s:g} s; "
                "once more to leave at once"
            )
            self._drain_all()
        elif number is not signal.SIGHUP:  # a terminal that is closed says so more than once
            self._leave_now(number)

    def _look_at_terminal(self, now_s: float) -> None:
        if self._has_terminal and not _has_terminal():
            self._has_terminal, self._closed_s = False, now_s

    def _is_closing(self, now_s: float) -> bool:
        """Whether SIGHUP is about the terminal. Where that went without a word, as it does for what runs in the
        background of a shell, a later one is for us.
        """
        self._look_at_terminal(now_s)
        return self._closed_s is not None and now_s - self._closed_s < self._closing_s

    def _drain_all(self) -> None:
        if not self._going:
            self._going, self._going_s = True, time.monotonic()
            self._said_s = self._going_s
        self._start_at_s = None
        self._rolling.clear()
        self._close_listeners()
        for child in self._children:
            child.drain(LEAVE_S)

    def _leave_now(self, number: int) -> None:
        self._say(f"{signal.Signals(number).name} again: leaving now; what is left over goes on elsewhere")
        for child in self._children:
            child.signal(signal.SIGKILL)
        os._exit(128 + number)

    # --- lines ------------------------------------------------------------------------------------------------------

    def _on_line(self, child: Child, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            child.send()
        if not events & selectors.EVENT_READ:
            return
        try:
            for message in child.read():
                self._take(child, message)
        except (OSError, ValueError):  # it goes; if it does not, it is of no use any more
            with suppress(KeyError, ValueError):
                self._selector.unregister(child.line)
            if child.state != "draining":
                child.kill_s = time.monotonic() + LEAVE_S

    def _take(self, child: Child, message: dict[str, Any]) -> None:
        if "listen" in message:
            self._hand_listener(child, *message["listen"])
        elif "ready" in message:
            child.grace_s = float(message["grace_s"])
            self._on_ready(child)
        elif "ask" in message:
            self._questions.ask(child, message["ask"], self.facts(), detailed=message["detailed"])
        elif "told" in message:
            self._questions.answer(child, message["told"], message["figures"])

    def _hand_listener(self, child: Child, host: str, port: int, reuse_port: bool) -> None:
        """One for all. It stays open here while processes come and go: no connection is refused meanwhile."""
        if self._going:
            child.say({"error": "the supervisor was told to go"})
            return
        listener = self._listeners.get((host, port))
        if listener is None:
            try:
                listener = passed_listener() or listen(host, port, reuse_port=reuse_port)
            except ConfigError as error:
                child.say({"error": str(error)})
                return
            self._listeners[host, port] = listener
        child.listens = (host, port)
        child.say({"listening": True}, (listener.fileno(),))

    def _close_unused(self) -> None:
        """Where the settings name another port since: what connects to the old one would wait for ever. While no
        process is there at all, its port stays open for the next.
        """
        used = {child.listens for child in self._children if child.listens is not None}
        for place in [place for place in self._listeners if used and place not in used]:
            self._listeners.pop(place).close()

    def _close_listeners(self) -> None:
        """When all go, the port is open for as long as one of them listens. Here it would be so until the last of
        them has drained, and who connects would wait in vain instead of being refused and going elsewhere.
        """
        while self._listeners:
            self._listeners.popitem()[1].close()

    def _watch_lines(self) -> None:
        """For writing, only where there is something to be written."""
        for child in self._children:
            with suppress(KeyError, ValueError):
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.has_unsent else 0)
                if self._selector.get_key(child.line).events != wanted:
                    self._selector.modify(child.line, wanted, child)

    # --- time -------------------------------------------------------------------------------------------------------

    def _wait_s(self) -> float:
        due = [child.kill_s for child in self._children if child.kill_s is not None]
        due += [late_s for child in self._children if (late_s := self._late_s(child)) is not None]
        due += [instant for instant in (self._start_at_s, self._questions.due_s) if instant is not None]
        if self._going:
            due.append(self._said_s + TELL_S)
        return min(max(min(due, default=TELL_S + time.monotonic()) - time.monotonic(), 0.0), TELL_S)

    def _on_time(self, now_s: float) -> None:
        self._questions.expire(now_s)
        self._look_at_terminal(now_s)
        for child in self._children:
            if child.kill_s is not None and now_s >= child.kill_s:
                self._say(f"process {child.number} (pid {child.pid}) does not leave: it is ended")
                child.end()
            elif (late_s := self._late_s(child)) is not None and now_s >= late_s:
                self._say(f"process {child.number} (pid {child.pid}) does not become ready: it is ended")
                child.end()
        if self._start_at_s is not None and now_s >= self._start_at_s:
            self._fill()
        if self._going and self._children and now_s >= self._said_s + TELL_S:
            self._said_s = now_s
            numbers = ", ".join(str(child.number) for child in self._children)
            self._say(f"still waiting for process {numbers} after {now_s - self._going_s:.0f} s")

    def _late_s(self, child: Child) -> float | None:
        """When it should be ready at the latest, however many others start, or started, beside it. The first one may
        take as long as it likes, as where there is one process alone.
        """
        if child.state != "starting" or child.is_ended or not self._begun:
            return None
        return child.started_s + self._start_s * child.beside


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _was_told(code: int) -> bool:
    """It ended because of a signal that means: go."""
    return _exit_code(code) in (128 + signal.SIGTERM, 128 + signal.SIGINT)


def _ended(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"
    return f"exited with {code}"


def _has_terminal() -> bool:
    """Whether this session has one. When its window is closed, SIGHUP says so, and means: go."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _memory() -> IO[bytes]:
    """Not on a disk, where it can be: one that is full would end who writes to it."""
    if sys.platform == "linux":
        return open(os.memfd_create("holdfast-siblings"), "w+b")  # noqa: PTH123  a descriptor
    return tempfile.TemporaryFile()


@contextmanager
def _signals() -> Iterator[socket.socket]:
    ear, mouth = socket.socketpair()
    ear.setblocking(False)
    mouth.setblocking(False)
    fd_before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    try:
        yield ear
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(fd_before)
        ear.close()
        mouth.close()
