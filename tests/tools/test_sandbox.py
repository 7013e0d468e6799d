"""A sandbox: what is tried from inside is refused, for real, as root and as an ordinary user; and ordinary work is
done in there as anywhere.

The ways out are in `prisoner.py`; `prison.py` puts it into a sandbox, and looks from outside.
"""

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from holdfast import Sandbox, ToolContext, ToolFailed, shell_tool, tool
from holdfast.core.records import Cause
from holdfast.errors import ConfigError
from holdfast.system import cover, processes, sandbox
from holdfast.system.call_filter import call_filter
from holdfast.system.landlock import landlock_abi
from holdfast.system.sandbox import view_of
from holdfast.tools.base import Tool
from holdfast.worker.guard import Guard
from holdfast.worker.tool_body import Body, Returned, SyncPool
from tests.support.programs import Program
from tests.support.waiting import until
from tests.tools import confined

HERE = Path(__file__).parent
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
# Ours may lie in the home of root. What we have installed is for one version of it.
PYTHON_OF_ALL = shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/bin:/bin") or ""
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE.parents[1])])}
NO_NAMESPACES = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh")
WAYS = 50


@pytest.fixture(scope="module", autouse=True)
def sandboxing() -> None:
    """Where the system lets us: namespaces can be made, and a /proc for one, which some containers forbid."""
    if problems := cover.examine(cover.Own((), None)):
        pytest.skip(problems[0])
    problem = sandbox.problem()
    if problem is not None and problem.startswith("a root of its own"):
        pytest.skip(problem)
    assert problem is None


@pytest.fixture
def folder() -> Iterator[Path]:
    """For any user, so not below the folders of the tests."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def imprisoned(folder: Path, as_user: tuple[str, ...], *options: str) -> dict[str, Any]:
    python = sys.executable if not as_user else PYTHON_OF_ALL
    if as_user and (os.getuid() != 0 or shutil.which(as_user[0]) is None or not python):
        pytest.skip("only root can become another user, with setpriv of util-linux, and with a Python for all users")
    owner = 65534 if as_user else os.getuid()
    for program in ("prison.py", "prisoner.py"):
        shutil.copy(HERE / program, folder)
    root = folder / "root"
    root.mkdir()
    shutil.copy(shutil.which("id") or "", root / "setuid")
    if os.getuid() == 0:
        os.chown(root / "setuid", 65534 - owner, -1)
        os.mknod(root / "made-device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        (root / "made-device").chmod(0o666)
    (root / "setuid").chmod(0o4755)
    for path in (folder, root):
        os.chown(path, owner, -1)
    done = subprocess.run(
        [*as_user, python, str(folder / "prison.py"), str(folder), *options],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["tried"] == WAYS, found["said"]
    assert found["owner"] == owner
    return found


@pytest.mark.parametrize("as_user", [(), NOBODY], ids=["as we are", "as nobody"])
def test_no_way_leads_out(folder: Path, as_user: tuple[str, ...]) -> None:
    found = imprisoned(folder, as_user)
    assert found["open"] == {}
    assert found["alive"]
    assert not found["changed"]


def test_with_the_network_only_that_is_open(folder: Path) -> None:
    found = imprisoned(folder, (), "network")
    opened = set(found["open"]) - {"reach_the_net"}
    expected = {"reach_a_server_by_tcp", "reach_a_server_by_udp"}
    assert opened == (expected if landlock_abi() >= 6 else expected | {"reach_an_abstract_socket"})


# --- ordinary work ----------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "a project"
    found.mkdir()
    return found


def shell(root: Path, **options: Any) -> Tool:
    return shell_tool(root=root, bash=True, sandbox=Sandbox(**options))


WORK = {
    "a pipe": ("seq 3 | tac | paste -s -d+", "3+2+1"),
    "what is said to other programs": ("cat <(echo one) - < /dev/null", "one"),
    "a language": ("LC_ALL=C.UTF-8 python3 -c 'import sys; print(sys.getfilesystemencoding(), \"é\")'", "utf-8 é"),
    "git": (
        "git init -q . && echo x > file && git add . && git -c user.name=a -c user.email=a@b commit -qm 'It is.' && "
        "git log --format=%s",
        "It is.",
    ),
    "a test": (
        "echo 'def test(): pass' > test_it.py; export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1; "
        "{python} -m pytest -q -p no:cacheprovider -c /dev/null .",
        "1 passed",
    ),
    "processes of Python's": (
        "{python} -c 'import multiprocessing as m; "
        "print(sum(m.Pool(2).map(abs, [-1, -2])), m.Semaphore(1).acquire())'",
        "3 True",
    ),
    "a terminal": ("{python} -c 'import os, pty; m, s = pty.openpty(); print(os.isatty(s))'", "True"),
    "a server of its own": (
        '{python} -c \'import socket as s; a = s.create_server(("127.0.0.1", 0)); '
        "s.create_connection(a.getsockname()); print(a.accept()[0].fileno() > 0)'",
        "True",
    ),
    "a file in /tmp": ("f=$(mktemp) && echo kept > $f && cat $f && echo $TMPDIR", "kept\n/tmp"),
    "a file at home": ("echo kept > ~/file && cat ~/file", "kept"),
    "threads and time": ("date +%Z >/dev/null && nproc >/dev/null && ps ax | tail -n +2 | wc -l", "5"),
}


@pytest.mark.parametrize("what", WORK)
async def test_ordinary_work_is_done(root: Path, what: str) -> None:
    command, expected = WORK[what]
    said = await shell(root)(command=command.replace("{python}", sys.executable))
    assert expected in said
    assert said.endswith("[exit code 0]"), said


async def test_it_ends_as_the_program_ends(root: Path) -> None:
    run = shell(root)
    assert await run(command="exit 7") == "[exit code 7]"
    assert "SIGSEGV" in await run(command="kill -SEGV $$")
    assert "SIGKILL" in await run(command="kill -9 $$")
    assert await run(command="trap 'exit 3' TERM; kill 0; sleep 100") == "[exit code 3]"
    assert "late\n" in await run(command="exec 3>&1; exec > /dev/null; (sleep 0.1; echo late >&3) & exit 0")
    (root / "program").write_text("#!/no/such/interpreter\n")
    (root / "program").chmod(0o755)
    assert "exit code 12" in await run(command="./program")


async def test_what_is_shown_is_read_and_what_may_be_written_is_and_the_inner_word_counts(
    root: Path, tmp_path: Path
) -> None:
    for name in ("shown/inner", "written/kept"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("it")
    (tmp_path / "link").symlink_to(tmp_path / "written")
    (root / "kept").mkdir()
    made = shell(
        root,
        readable=[tmp_path / "shown", tmp_path / "written/kept", "kept"],
        writable=[str(tmp_path / "link"), tmp_path / "shown/inner"],
    )
    for path, writable in {"shown": 0, "shown/inner": 1, "link": 1, "written/kept": 0, "a project/kept": 0}.items():
        said = await made(command=f"ls '{tmp_path}/{path}' && touch '{tmp_path}/{path}/new'")
        assert ("exit code 0" in said) == bool(writable), path
        assert "exit code 0" in said or "Read-only file system" in said, said


async def test_a_place_that_a_tool_made_a_symlink_of_is_not_followed(root: Path, tmp_path: Path) -> None:
    """It chooses a name in its root, and not what is shown under it."""
    (root / "sub/shown").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/file").write_text("SECRET")
    made = shell(root, readable=["sub/shown"])
    assert "exit code 1" in await made(command="mv sub other")
    (root / "sub").rename(root / "other")  # as by another tool, that has no sandbox
    (root / "sub").mkdir()
    (root / "sub/shown").symlink_to(tmp_path / "secret")
    with pytest.raises(ToolFailed, match=r"Nothing was started: its sandbox could not be made \(.*sub/shown"):
        await made(command="cat sub/shown/file")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readable": "/srv"}, "readable is a list"),
        ({"writable": ["/"]}, "one of its own"),
        ({"hidden": ["/proc/1"]}, "one of its own"),
        ({"processes_max": 5}, "processes_max must be at least 512"),
        ({"tmp_bytes_max": 0}, "tmp_bytes_max must be"),
    ],
)
def test_what_cannot_be_is_told_when_the_tool_is_made(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shell(root, **options)


def test_a_sandbox_needs_a_process_and_is_not_for_a_container(root: Path) -> None:
    with pytest.raises(ConfigError, match="isolation='process'"):
        tool(sandbox=Sandbox())(confined.look.function)
    with pytest.raises(ConfigError, match="with `through`"):
        shell_tool(root=root, through=("docker",), sandbox=Sandbox())


# --- limits, and the end ----------------------------------------------------------------------------------


async def test_processes_are_counted_and_memory_and_tmp_are_bounded(root: Path) -> None:
    made = shell(root, processes_max=512, memory_bytes_max=256 << 20, tmp_bytes_max=1 << 20)
    bomb = (
        "import os, signal\nn = 0\n"
        "try:\n  while n < 2000:\n    n += 1\n    os.fork() or signal.pause()\n"
        "except BlockingIOError: print('stopped', 200 < n < 520)\n"
    )
    (root / "bomb.py").write_text(bomb)
    assert "stopped True" in await made(command="python3 bomb.py")
    assert "MemoryError" in await made(command="python3 -c 'x = bytearray(1 << 29)'")
    assert "No space left" in await made(command="head -c 2M /dev/zero > /tmp/x")
    assert "File too large" not in await made(command="head -c 2M /dev/zero > x")


async def test_a_signal_to_the_group_is_the_programs_to_answer(root: Path, guard: Guard) -> None:
    ear, mouth = os.pipe()
    argv = ["/bin/sh", "-c", "trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done"]
    spec = cover.ProcessSpec(argv, {"PATH": os.environ["PATH"]}, root, stdout=mouth, view=view_of(Sandbox(), root))
    child = await processes.start_covered(spec, children=guard)
    os.close(mouth)
    assert await asyncio.to_thread(os.read, ear, 10) == b"up\n"
    os.close(ear)
    os.killpg(child.pid, signal.SIGTERM)
    await child.exited()
    assert await child.end()
    assert child.returncode == 3


async def test_without_limits_there_are_none(root: Path) -> None:
    said = await shell(root, processes_max=None, memory_bytes_max=None)(
        command="ulimit -d; cat /proc/sys/kernel/pid_max"
    )
    memory, processes = said.splitlines()[:2]
    assert memory == "unlimited"
    assert int(processes) >= 32_768


def sleepers(mark: str) -> list[int]:
    return [one.pid for one in psutil.process_iter(["cmdline"]) if mark in (one.info["cmdline"] or ())]


class Trial:
    """A body, and what it said."""

    def __init__(self, made: Tool, guard: Guard, pool: SyncPool) -> None:
        self.heard = asyncio.Event()
        context = ToolContext(call_id="call", children=guard, say=lambda _: self.heard.set())
        self.body = Body(made, "call", context, set())
        self._pool = pool

    async def run(self, **arguments: Any) -> Returned | None:
        return await self.body.run(json.dumps(arguments), self._pool.run)


async def test_nothing_is_left_not_even_what_cleared_its_environment(
    root: Path, guard: Guard, pool: SyncPool
) -> None:
    mark = f"98764.{os.getpid()}"
    trial = Trial(shell_tool(root=root, sandbox=Sandbox()), guard, pool)
    work = asyncio.ensure_future(trial.run(command=f"setsid env -i sh -c 'echo up; exec sleep {mark}' & wait"))
    await trial.heard.wait()
    trial.body.cancel(Cause.USER)
    assert await work is None
    await until(lambda: not processes._endings)
    assert sleepers(mark) == []


async def test_all_of_it_ends_with_a_worker_that_is_killed(root: Path) -> None:
    mark = f"98763.{os.getpid()}"
    with Program("tests.tools.confined", str(root), mark) as program:
        assert await asyncio.to_thread(program.hear) == "the guard knows"
        await until(lambda: bool(sleepers(mark)))
        program.process.kill()
        await until(lambda: not sleepers(mark))


# --- isolated bodies --------------------------------------------------------------------------------------


async def test_an_isolated_body_has_its_arguments_its_code_and_nothing_else(guard: Guard, pool: SyncPool) -> None:
    returned = await Trial(confined.look, guard, pool).run(
        path=str(Path(__file__).parents[2] / "README.md"), note="é"
    )
    assert returned is not None
    assert not returned.error, returned.content
    found = json.loads(returned.content)
    assert found == {"note": "é", "cwd": "/tmp", "network": False, "wrote": True, "pids": found["pids"]}
    assert len(found["pids"]) == 2


# --- where there can be none ------------------------------------------------------------------------------


def test_where_there_can_be_none_a_person_is_asked_and_an_unattended_chat_is_denied(root: Path) -> None:
    """In a namespace in which no further ones may be made, as a container's runtime has it. What a person agreed to
    runs under Landlock alone.
    """
    done = subprocess.run(
        [*NO_NAMESPACES, sys.executable, "-m", "tests.tools.confined", str(root)],
        cwd=HERE.parents[1],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all was as it should be\n")


async def test_a_process_that_has_a_view_is_not_started_without(root: Path) -> None:
    spec = cover.ProcessSpec(["true"], {}, root, view=view_of(Sandbox(), root))
    with pytest.raises(ToolFailed, match="Nothing was started"):
        cover.spawn_uncovered(spec)
    before = cover.sandboxed()
    assert cover.spawn(spec._replace(argv=["/bin/true"])).wait() == 0
    assert cover.sandboxed() == before + 1


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_no_jump_of_the_filter_leaves_it(machine: str) -> None:
    program = call_filter(machine)
    for n, line in enumerate(program):
        code, yes, no = int.from_bytes(line[:2], "little"), line[2], line[3]
        assert n + 1 + max(yes, no) < len(program) or code == 0x06, "a return goes nowhere"
