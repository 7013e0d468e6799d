"""Nothing that a worker started outlives it, and nothing else is touched: real processes, real deaths."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from holdfast.app import App
from holdfast.core.records import State
from holdfast.errors import ConfigError
from holdfast.ids import new_id
from holdfast.store import open_store
from holdfast.store.host_lock import HostLock, is_dead
from holdfast.store.records import StoreOptions
from holdfast.system import guard_process
from holdfast.tools.base import Tool, tool
from holdfast.worker.guard import Guard
from tests.support.chats import new_chat
from tests.support.deaths import Mortal
from tests.support.programs import Program
from tests.support.waiting import eventually, until
from tests.worker.lone import make_agent

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="deaths are watched by pidfd, which Linux has")

BOUND_S = 20.0  # a deaf child costs two seconds; the rest is for a busy machine
SLEEPER = "echo $$; exec sleep 1000"


class Family:
    """The program `guarded`, its children and its guard."""

    def __init__(self, program: Program, stack: ExitStack) -> None:
        self.program = program
        self.pids: dict[str, int] = json.loads(program.hear())
        self.members = {name: stack.enter_context(Mortal(pid)) for name, pid in self.pids.items()}
        self.guard = self.members.pop("guard")

    @property
    def survivors(self) -> list[str]:
        return [name for name, child in self.members.items() if not child.dies_within(BOUND_S)]

    def all_let_go_of_the_pipe(self) -> bool:
        assert self.program.process.stderr is not None
        self.program.process.stderr.read()  # returns when nobody holds the other end: pytest's timeout is the bound
        return True


@pytest.fixture
def lock_path(tmp_path: Path) -> str:
    return str(tmp_path / "locks" / "worker.lock")


@pytest.fixture
def family(lock_path: str) -> Iterator[Family]:
    with ExitStack() as stack:
        program = stack.enter_context(Program("tests.worker.guarded", lock_path, errors=True))
        family = Family(program, stack)
        try:
            yield family
        finally:
            for child in family.members.values():
                if not child.dead:
                    os.kill(child.pid, signal.SIGKILL)


@contextmanager
def child(script: str = SLEEPER, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A child of the test, in a group of its own."""
    process = subprocess.Popen(
        ["sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard()
    guard.start()
    yield guard
    guard.stop()


@pytest.fixture
def mark() -> str:
    """Of this test alone: a guard ends whatever on this machine carries its mark, the children of other tests too."""
    return new_id("mark")


def open_files(pid: int) -> set[str]:
    return {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}


def run_guard(mark: str, said: bytes) -> str:
    """The guard program by itself, told this much and then left alone."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", guard_process.__file__, mark, str(os.getpid()), "0"],
        input=said,
        capture_output=True,
        timeout=60,
        start_new_session=True,
        check=True,
    )
    assert done.stderr == b""
    return done.stdout.decode()


# --- death ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "segv", "exit"])
def test_however_the_worker_dies_its_children_and_escapees_die_and_hold_no_pipe(family: Family, end: str) -> None:
    assert not any(child.dead for child in family.members.values())
    if end == "kill":
        family.program.process.kill()
    else:
        family.program.say(end)
    assert family.survivors == []
    assert family.guard.dies_within(BOUND_S)
    assert family.all_let_go_of_the_pipe()
    assert family.program.process.wait(BOUND_S) == {"kill": -signal.SIGKILL, "segv": -signal.SIGSEGV, "exit": 3}[end]


def test_the_worker_counts_as_dead_only_when_its_guard_is_done(family: Family, lock_path: str) -> None:
    os.kill(family.guard.pid, signal.SIGSTOP)
    try:
        family.program.process.kill()
        family.program.process.wait()
        assert not is_dead(lock_path)
    finally:
        os.kill(family.guard.pid, signal.SIGCONT)
    deaf = family.members["deaf"]
    while not is_dead(lock_path):
        assert not family.guard.dies_within(0) or is_dead(lock_path)
    assert deaf.dead
    assert family.survivors == []


def test_a_forked_child_that_never_execs_hides_the_death_from_nobody(family: Family, lock_path: str) -> None:
    """As `multiprocessing` makes them: it has a copy of every descriptor of ours."""
    family.program.say("fork")
    with Mortal(int(family.program.hear())) as fork:
        family.program.process.kill()
        try:
            assert family.survivors == []
            assert family.guard.dies_within(BOUND_S)
            assert not fork.dead
            assert is_dead(lock_path)
        finally:
            os.kill(fork.pid, signal.SIGKILL)


def test_a_clean_stop_leaves_no_process_and_no_lock(family: Family, lock_path: str) -> None:
    family.program.say("stop")
    assert int(family.program.hear()) >= len(family.members)
    assert all(child.dead for child in family.members.values())
    assert family.guard.dead
    assert not Path(lock_path).exists()


# --- the guard itself -------------------------------------------------------------------------------


def test_a_guard_that_was_killed_is_replaced_and_the_next_one_knows_everything(family: Family) -> None:
    os.kill(family.guard.pid, signal.SIGKILL)
    family.program.say(f"guard {family.guard.pid}")
    with Mortal(int(family.program.hear())) as second:
        assert not any(child.dead for child in family.members.values()), "its death is not ours"
        family.program.process.kill()
        assert family.survivors == []
        assert second.dies_within(BOUND_S)


def test_the_guard_shares_nothing_with_us_but_the_lock(family: Family, lock_path: str) -> None:
    guard = psutil.Process(family.guard.pid)
    assert os.getsid(guard.pid) == guard.pid
    assert guard.cwd() == "/"
    files = open_files(guard.pid)
    assert {file.partition(":")[0] for file in files} == {"pipe", lock_path}
    assert files & {str(Path(f"/proc/{family.program.pid}/fd/{fd}").readlink()) for fd in (0, 1, 2)} == set()
    assert set(guard.environ()) <= {"LD_LIBRARY_PATH", "LC_CTYPE"}


def test_the_guard_ignores_what_is_meant_for_the_worker(family: Family) -> None:
    status = Path(f"/proc/{family.guard.pid}/status").read_text()
    ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        assert ignored & 1 << signum - 1, signum


def test_a_guard_that_does_not_read_blocks_nobody_and_is_replaced(guard: Guard) -> None:
    first = guard.pid
    assert first is not None
    with child(**guard.environment) as ours:
        guard.add(ours.pid)
        os.kill(first, signal.SIGSTOP)
        while guard.pid == first:
            guard.beat()  # its pipe is full after some thousands
        asyncio.run(until(lambda: guard.alive))
        assert (guard.restarts, guard.group_count) == (1, 1)
        assert ours.poll() is None
        guard.stop()
        assert ours.wait(BOUND_S) == -signal.SIGTERM


def test_many_starts_and_stops_leave_nothing_behind() -> None:
    """What an earlier test left to end by itself may end meanwhile: nothing is there that was not there before."""
    us = psutil.Process()
    threads, files, children = set(threading.enumerate()), us.num_fds(), set(us.children())
    for _ in range(20):
        guard = Guard()
        guard.start()
        guard.stop()
    assert (set(threading.enumerate()) - threads, set(us.children()) - children) == (set(), set())
    assert us.num_fds() <= files


def test_a_guard_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ConfigError, match="No such file"):
        Guard().start()


# --- innocents --------------------------------------------------------------------------------------


def test_processes_with_another_mark_or_none_are_left_alone(mark: str) -> None:
    with child(HOLDFAST_MARK="another") as other, child() as none, child(HOLDFAST_MARK=mark) as ours:
        assert run_guard(mark, b"") == "ready\nfound 1\n"
        assert ours.wait(BOUND_S) == -signal.SIGTERM
        assert (other.poll(), none.poll()) == (None, None)


def test_a_mark_that_begins_like_ours_is_not_ours(mark: str) -> None:
    with child(HOLDFAST_MARK=f"{mark}-too") as other, child(NOT_HOLDFAST_MARK=mark) as another:
        assert run_guard(mark, b"") == "ready\nfound 0\n"
        assert (other.poll(), another.poll()) == (None, None)


def test_a_group_number_that_was_reused_is_left_alone(mark: str) -> None:
    with child() as stranger, child() as ours:
        start = guard_process.start_of(ours.pid)
        said = f"add {stranger.pid} {guard_process.start_of(stranger.pid) - 1}\nadd {ours.pid} {start}\n"
        assert run_guard(mark, said.encode()) == "ready\nfound 1\n"
        assert ours.wait(BOUND_S) == -signal.SIGTERM
        assert stranger.poll() is None


def test_a_removed_group_is_left_alone_unless_it_carries_the_mark(mark: str) -> None:
    with child() as removed, child(HOLDFAST_MARK=mark) as marked:
        said = "".join(f"add {p.pid} {guard_process.start_of(p.pid)}\nremove {p.pid}\n" for p in (removed, marked))
        assert run_guard(mark, said.encode()) == "ready\nfound 1\n"
        assert marked.wait(BOUND_S) == -signal.SIGTERM
        assert removed.poll() is None


def test_garbage_on_its_input_ends_nobody_not_even_the_guard(mark: str) -> None:
    with child() as ours, child() as stranger:
        garbage = (
            b"\0\xff\n add\nadd\nadd 1 0\nadd 0 0\nadd -1 0\nadd -7 x\nadd x y z\nremove\nremove 9\nkill 1\n\n\n"
        )
        garbage += b"add %d\n" % stranger.pid + b"x" * 1_000_000 + b"\nbeat beat\n" + b"9" * 10_000 + b"\n"
        said = garbage + b"add %d %d\n" % (ours.pid, guard_process.start_of(ours.pid)) + b"add "
        assert run_guard(mark, said) == "ready\nfound 1\n"
        assert ours.wait(BOUND_S) == -signal.SIGTERM
        assert stranger.poll() is None


def test_a_hundred_thousand_groups_are_no_burden(mark: str) -> None:
    with child() as ours:
        said = b"".join(b"add %d 1\n" % (5_000_000 + n) for n in range(100_000))
        said += b"add %d %d\n" % (ours.pid, guard_process.start_of(ours.pid))
        assert run_guard(mark, said) == "ready\nfound 1\n"
        assert ours.wait(BOUND_S) == -signal.SIGTERM


def test_a_new_guard_is_told_of_twenty_thousand_groups(guard: Guard) -> None:
    """More than a pipe holds."""
    with child() as ours:
        for n in range(20_000):
            guard.add(5_000_000 + n)
        guard.add(ours.pid)
        # One that does not keep up is replaced meanwhile, and told anew.
        asyncio.run(until(lambda: guard.pid is not None))
        first = guard.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        asyncio.run(until(lambda: guard.pid not in (None, first)))
        guard.stop()
        assert guard.found_at_stop == 1
        assert ours.wait(BOUND_S) == -signal.SIGTERM


def test_our_own_group_cannot_be_put_under_the_guard(guard: Guard) -> None:
    for pgid in (os.getpgrp(), 0, 1, -1):
        with pytest.raises(ValueError, match="a group of its own"):
            guard.add(pgid)
    assert guard.group_count == 0


def test_no_child_can_be_added_after_the_stop() -> None:
    guard = Guard()
    guard.start()
    guard.stop()
    with child() as ours, pytest.raises(RuntimeError, match="stopped"):
        guard.add(ours.pid)


# --- takeover ---------------------------------------------------------------------------------------


@pytest.fixture
async def successor(store_url: str) -> AsyncIterator[App]:
    """Its agent's tool says at once that it ran, and what it saw."""
    async with App(store_url, [make_agent(Witness.tool())], options=StoreOptions(lease_ttl_ms=30_000)) as app:
        yield app


class Witness:
    """What the tool sees when it runs again in the second worker."""

    watched: Mortal | None = None
    saw: bool | None = None

    @classmethod
    def tool(cls) -> Tool:
        async def work() -> str:
            """Look."""
            cls.saw = cls.watched is not None and cls.watched.dead
            return "seen"

        made: Tool = tool(replay="pure", name="work")(work)
        return made


async def hear(program: Program) -> str:
    return await asyncio.get_running_loop().run_in_executor(None, program.hear)


async def test_a_takeover_on_the_same_host_waits_until_the_dead_workers_children_are_gone(
    store_url: str, successor: App
) -> None:
    with Program("tests.worker.lone", store_url, "child", "30000", "60") as program:
        assert await hear(program) == "ready"
        chat = await successor.create("lone", "go")
        pid, guard = map(int, (await hear(program)).split())
        with Mortal(pid) as deaf:
            Witness.watched, Witness.saw = deaf, None
            os.kill(guard, signal.SIGSTOP)  # it shall not be done before we have looked
            try:
                program.process.kill()
                program.process.wait()
                assert await successor.store.expire_workers() == {}
                assert not deaf.dead
            finally:
                os.kill(guard, signal.SIGCONT)

            async def taken_over() -> bool:
                await successor.store.sweep()  # its worker looks every few seconds
                return await chat.state() is State.IDLE

            async with successor.worker(poll_s=0.5):
                await eventually(taken_over)
            assert Witness.saw is True


async def test_a_guard_that_hangs_holds_a_takeover_up_only_until_the_lease_ends(
    store_url: str, successor: App
) -> None:
    with Program("tests.worker.lone", store_url, "child", "2000", "60") as program:
        assert await hear(program) == "ready"
        chat = await successor.create("lone", "go")
        pid, guard = map(int, (await hear(program)).split())
        with Mortal(pid) as deaf, Mortal(guard) as hung:
            Witness.watched, Witness.saw = deaf, None
            os.kill(guard, signal.SIGSTOP)
            try:
                program.process.kill()
                async with successor.worker(poll_s=0.5):
                    assert await chat.wait(BOUND_S) is State.IDLE
                assert Witness.saw is False
            finally:
                os.kill(guard, signal.SIGCONT)
            assert deaf.dies_within(BOUND_S)
            assert hung.dies_within(BOUND_S)


async def test_a_worker_has_its_guard_before_it_claims_and_leaves_none_behind(successor: App) -> None:
    worker = successor.new_worker()
    await worker.start()
    assert worker.guard is not None
    assert worker.guard.alive
    with child(**worker.guard.environment) as ours, Mortal(worker.guard.pid or 0) as guard:
        worker.guard.add(ours.pid)
        await worker.stop()
        assert guard.dead
        assert ours.wait(BOUND_S) == -signal.SIGTERM
        assert worker.guard.found_at_stop == 1


async def test_a_worker_whose_registration_fails_leaves_neither_guard_nor_lock(store_url: str) -> None:
    before = set(psutil.Process().children())
    app = App(store_url, [make_agent(Witness.tool())])
    worker = app.new_worker()  # the store is not open, so there is nothing to register in
    with pytest.raises(Exception):  # noqa: B017, PT011  which one depends on the store
        await worker.start()
    assert set(psutil.Process().children()) <= before
    HostLock(f"{worker._lock.path}").release()  # type: ignore[union-attr]


# --- a worker that stands still -------------------------------------------------------------------------


async def test_a_worker_that_stands_still_with_the_write_lock_is_ended_and_others_write_again(tmp_path: Path) -> None:
    """It was stopped in the middle of a write (SIGSTOP, Ctrl-Z): every chat of the file stood still with it."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    with Program("tests.worker.frozen", url) as idle, Program("tests.worker.frozen", url) as writer:
        assert (idle.hear(), writer.hear()) == ("ready", "ready")
        with Mortal(idle.pid) as in_nobodys_way, Mortal(writer.pid) as in_the_way:
            with no_writes(tmp_path):  # its lease is renewed all the time: it must not stop in the middle of that
                idle.say("outside")
                await until(lambda: all_stopped(idle.pid))
            writer.say("inside")
            await until(lambda: all_stopped(writer.pid))
            assert in_the_way.dies_within(BOUND_S)
            async with open_store(url) as store:
                await store.create_chat(new_chat("hello"))
            # Its guard has looked at it for longer than the other's did.
            assert not in_nobodys_way.dead, "a worker without the lock may stand still for as long as its user likes"
            os.kill(idle.pid, signal.SIGCONT)
            assert idle.hear() == "on again"
        assert writer.process.wait(BOUND_S) == -signal.SIGKILL


async def test_a_worker_that_stands_still_while_it_waits_for_the_write_lock_is_ended_and_others_write_again(
    tmp_path: Path,
) -> None:
    """Who waits for the lock holds the gate in front of it: stopped there, it keeps every writer out as well."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    with Program("tests.worker.frozen", url) as worker:
        assert worker.hear() == "ready"
        with Mortal(worker.pid) as in_the_way:
            with (tmp_path / "holdfast.db.lock").open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                await until(
                    lambda: guard_process.holds(worker.pid, f"{tmp_path}/holdfast.db.gate")
                )  # to renew its lease
                os.kill(worker.pid, signal.SIGSTOP)
                await until(lambda: all_stopped(worker.pid))
            assert in_the_way.dies_within(BOUND_S)
            async with open_store(url) as store:
                await store.create_chat(new_chat("hello"))
        assert worker.process.wait(BOUND_S) == -signal.SIGKILL


@contextmanager
def no_writes(folder: Path) -> Iterator[None]:
    """No other process gets as far as holding a lock."""
    with ExitStack() as stack:
        for name in ("holdfast.db.gate", "holdfast.db.lock"):
            file = stack.enter_context((folder / name).open("r+b"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def all_stopped(pid: int) -> bool:
    """Every thread of it: one that was about to stop can still be given a lock."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {*states} == {"T"}


def is_stopped(pid: int) -> bool:
    seen = guard_process.look_at(pid)
    return seen is not None and seen.frozen


def listening(lock_path: str, worker: int) -> guard_process.Listener:
    return guard_process.Listener(worker, hard_limit_s=0.0, frozen_s=2.0, write_locks=(lock_path,))


def test_only_time_in_which_the_guard_saw_its_worker_stand_still_counts(tmp_path: Path) -> None:
    """A suspended machine: both stand still, and what they slept through is one tick."""
    path = tmp_path / "write.lock"
    with path.open("w") as lock, child() as worker:
        listener = listening(str(path), worker.pid)
        listener._watch_frozen(1.9)
        assert listener._frozen_s == 0, "it runs"
        os.kill(worker.pid, signal.SIGSTOP)
        while not is_stopped(worker.pid):
            pass
        for _ in range(3):
            listener._watch_frozen(0.3)
        os.kill(worker.pid, signal.SIGCONT)
        while is_stopped(worker.pid):
            pass
        listener._watch_frozen(0.3)
        assert listener._frozen_s == 0, "it ran in between"
        assert not lock.closed


def test_whose_the_write_lock_is_is_told_by_the_system(tmp_path: Path) -> None:
    path = tmp_path / "write.lock"
    with path.open("w") as lock:
        assert not guard_process.holds(os.getpid(), str(path))
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert guard_process.holds(os.getpid(), str(path))
        assert not guard_process.holds(os.getppid(), str(path)) or sys.platform != "linux"
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert not guard_process.holds(os.getpid(), str(path))
    assert not guard_process.holds(os.getpid(), str(tmp_path / "none"))
