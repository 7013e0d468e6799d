"""What a process sees that a tool starts: holdfast's own files are out of its sight, wherever they lie; and it is a
child like any other."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from holdfast.errors import OutcomeUnknown, ToolFailed
from holdfast.system import cover, processes
from holdfast.system.cover import Own, ProcessSpec
from holdfast.system.starter import Process
from holdfast.tools import floor
from tests.support.system_calls import watched
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def covering() -> None:
    """Where the system does not let us, `tests/cli/test_cover.py` looks at what doctor says."""
    if problems := cover.examine(Own((), None)):
        pytest.skip(problems[0])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that tools work in. Its name is one that lists of mounts have to escape."""
    root = tmp_path / "a b\n\\c"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return root


@pytest.fixture
def protect() -> Iterator[Callable[..., Own]]:
    """As an app does that is opened."""
    opened: list[Own] = []

    def protect(home: Path | str, database: Path | str | None = None) -> Own:
        locks = f"{database or home}-workers"
        own = floor.own(str(home), locks, None if database is None else str(database))
        floor.protect(own)
        opened.append(own)
        return own

    yield protect
    for own in opened:
        floor.release(own)


def run(command: str | Sequence[str], cwd: Path | None = None, pass_fds: Sequence[int] = ()) -> str:
    """All that it said."""
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    ours, theirs = os.pipe()
    try:
        env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
        child = cover.spawn(ProcessSpec(argv, env, cwd, stdout=theirs, stderr=theirs, pass_fds=pass_fds))
    finally:
        os.close(theirs)
    with open(ours, "rb") as said:  # noqa: PTH123  a descriptor
        text = said.read().decode(errors="replace")
    child.wait()
    return text


def secret(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("SECRET")
    return path


def reads(path: Path | str, cwd: Path | None = None) -> bool:
    return "SECRET" in run(["cat", str(path)], cwd)


# --- what it does not see ---------------------------------------------------------------------------------


def test_home_and_database_are_not_there(project: Path, protect: Callable[..., Own]) -> None:
    token = secret(project / ".holdfast/token")
    database = secret(project / "chats.db")
    beside = [secret(project / f"chats.db{suffix}") for suffix in ("-wal", "-shm", ".lock", "-workers/one.lock")]
    other = secret(project / "chats.txt")
    protect(project / ".holdfast", database)
    assert not any(reads(path) for path in (token, database, *beside))
    assert "SECRET" not in run("cat .holdfast/* chats.db*; echo x > chats.db; rm -rf .holdfast chats.db*")
    assert database.read_text() == token.read_text() == "SECRET"
    assert reads(other)


def test_a_database_among_very_many_files_is_hidden(
    project: Path, protect: Callable[..., Own], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which a process can make, and then kill the starter, so that the folder is looked through anew."""
    monkeypatch.setattr(cover, "ENTRIES_MAX", 0)
    (project / "other").touch()
    files = [secret(project / f"chats.db{suffix}") for suffix in ("", "-wal", "-shm", "-journal")]
    protect(project / ".holdfast", files[0])
    assert not any(reads(path) for path in files)


def test_without_a_database_file_the_token_is_hidden_all_the_same(project: Path, protect: Callable[..., Own]) -> None:
    """The one on PostgreSQL."""
    token = secret(project / ".holdfast/token")
    protect(project / ".holdfast")
    assert not reads(token)


def test_a_home_is_hidden_by_all_its_names(project: Path, protect: Callable[..., Own]) -> None:
    token = secret(project / "elsewhere/home/token")
    (project / "link").symlink_to(project / "elsewhere/home")
    protect(project / "link")
    assert not reads(token)
    assert not reads(project / "link/token")


def test_a_home_that_is_not_there_yet_is_hidden_and_nobody_makes_it_first(
    project: Path, protect: Callable[..., Own]
) -> None:
    protect(project / "home")
    run("mkdir -p home; echo forged > home/token")
    token = project / "home/token"
    assert not token.exists()
    secret(token)
    assert not reads(token)


def test_a_home_that_holds_the_work_hides_only_what_is_ours(project: Path, protect: Callable[..., Own]) -> None:
    token, database = secret(project / "token"), secret(project / "holdfast.db")
    work = secret(project / "work.txt")
    protect(project, database)
    assert not reads(token)
    assert not reads(database)
    assert reads(work)


def test_a_tool_that_comes_to_work_in_a_home_finds_its_folder(project: Path, protect: Callable[..., Own]) -> None:
    token, work = secret(project / "home/token"), secret(project / "home/work/one.txt")
    protect(project / "home")
    assert not reads(work), "as long as nobody works there"
    assert reads(work, project / "home/work")
    assert not reads(token)


def test_the_files_of_every_app_that_is_open_are_hidden_and_of_none_that_is_closed(
    project: Path, protect: Callable[..., Own]
) -> None:
    one, other = secret(project / "one/token"), secret(project / "other/token")
    protect(project / "one")
    own = Own((str(project / "other"),), None)
    floor.protect(own)
    assert not reads(one)
    assert not reads(other)
    floor.release(own)
    assert reads(other)
    assert not reads(one)


def test_settings_are_read_and_not_written_and_with_keys_not_even_read(
    project: Path, protect: Callable[..., Own]
) -> None:
    settings = secret(project / "holdfast.toml")
    own = protect(project / ".holdfast")
    assert reads(settings)
    assert "Read-only" in run("echo more >> holdfast.toml")
    run("mv holdfast.toml x; rm -f holdfast.toml")
    assert settings.read_text() == "SECRET"
    floor.release(own)
    try:
        floor.protect(own._replace(keyed_settings=True))
        assert not reads(settings)
    finally:
        floor.release(own._replace(keyed_settings=True))
        floor.protect(own)  # which the fixture releases


def test_the_settings_that_the_app_itself_reads_are_kept_wherever_a_tool_works(project: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    secret(project / "holdfast.toml")
    (tmp_path / "elsewhere").mkdir()
    own = floor.own(str(project / ".holdfast"), str(project / "locks"), None)
    floor.protect(own)
    try:
        for name in ("holdfast.toml", ".git/config", ".git/hooks/pre-commit"):
            path = shlex.quote(str(project / name))
            assert "Read-only" in run(f"echo more >> {path}", tmp_path / "elsewhere"), name
    finally:
        floor.release(own)


def test_no_process_notes_that_a_folder_is_trusted(project: Path, protect: Callable[..., Own]) -> None:
    """Where nobody has ever trusted one, too: what is not there yet cannot be covered."""
    Path(os.environ["HOME"]).mkdir()
    protect(project / ".holdfast")
    assert "Read-only" in run("mkdir -p ~/.config/holdfast/trusted && echo x > ~/.config/holdfast/trusted/forged")


def test_git_works_and_nobody_writes_its_settings_and_hooks(project: Path, protect: Callable[..., Own]) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    before = (project / ".git/config").read_text()
    protect(project / ".holdfast")
    (project / "below").mkdir()
    for line in ("git config a.b c", "echo > .git/config", "mv .git other", "rm -rf .git/config .git/hooks"):
        run(line)
        assert (project / ".git/config").read_text() == before
    run("echo '#!/bin/sh' > .git/hooks/pre-commit")
    assert not (project / ".git/hooks/pre-commit").exists()
    commit = "git -c user.name=a -c user.email=a@b commit -qm one"
    said = run(f"echo one > one.txt; git add . && {commit} && git log --oneline", project / "below")
    assert said.endswith(" one\n")


def test_repositories_below_the_folder_keep_their_settings_and_hooks(
    project: Path, protect: Callable[..., Own]
) -> None:
    subprocess.run(["git", "init", "-q", "vendor/other"], cwd=project, check=True)
    protect(project / ".holdfast")
    for file in ("config", "hooks/pre-commit"):
        assert "Read-only" in run(f"echo more >> vendor/other/.git/{file}")
    assert "vendor/one.txt" in run("touch vendor/one.txt && ls vendor/one.txt")


def test_a_folder_is_looked_through_again_when_its_names_changed_and_not_before(
    project: Path, protect: Callable[..., Own], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that makes a repository and sets the folder's times back is found out all the same."""
    monkeypatch.setattr(cover, "SETTLED_NS", -1)  # however coarse the clock is: nothing changes behind our look here
    (project / "vendor/other").mkdir(parents=True)
    protect(project / ".holdfast")
    run("true")
    with watched() as watch:
        run("true")
    assert ("os.scandir", "vendor") not in watch.calls
    times = (project / "vendor/other").stat()
    with watched() as watch:
        subprocess.run(["git", "init", "-q", "vendor/other"], cwd=project, check=True)
        os.utime(project / "vendor/other", ns=(times.st_atime_ns, times.st_mtime_ns))
        assert "Read-only" in run("echo more >> vendor/other/.git/config")
    assert ("os.scandir", "other") in watch.calls
    assert ("os.scandir", "vendor") not in watch.calls


def test_a_worktree_has_the_settings_of_its_repository(project: Path, protect: Callable[..., Own]) -> None:
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "one"]
    for argv in (["git", "init", "-q", "main"], ["git", "-C", "main", *commit[1:]]):
        subprocess.run(argv, cwd=project, check=True)
    subprocess.run(["git", "-C", "main", "worktree", "add", "-q", "../tree"], cwd=project, check=True, stderr=-3)
    protect(project / ".holdfast")
    assert "Read-only" in run("echo x >> ../main/.git/config", project / "tree")
    assert "On branch tree" in run("git status", project / "tree")


def test_nobody_points_a_worktree_to_settings_of_his_own(project: Path, protect: Callable[..., Own]) -> None:
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "one"]
    for argv in (["init", "-q", "main"], ["-C", "main", *commit], ["-C", "main", "worktree", "add", "-q", "../tree"]):
        subprocess.run(["git", *argv], cwd=project, check=True, stderr=-3)
    protect(project / ".holdfast")
    for file in (".git", "../main/.git/worktrees/tree/commondir"):
        assert "Read-only" in run(f"echo >> {file}", project / "tree")
    said = run("git -c user.name=a -c user.email=a@b commit --allow-empty -m two", project / "tree")
    assert "two" in said


def test_the_settings_of_modules_are_kept_as_well(project: Path, protect: Callable[..., Own]) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    for module in ("one", "deep/two", "one/modules/three"):
        subprocess.run(["git", "init", "-q", "--bare", f".git/modules/{module}"], cwd=project, check=True)
    protect(project / ".holdfast")
    for module in ("one", "deep/two", "one/modules/three"):
        assert "Read-only" in run(f"echo more >> .git/modules/{module}/config")
        assert "Read-only" in run(f"echo more >> .git/modules/{module}/hooks/pre-commit")


def test_what_somebody_replaces_meanwhile_is_covered_again(project: Path, protect: Callable[..., Own]) -> None:
    settings, database = secret(project / "holdfast.toml"), secret(project / "chats.db")
    protect(project / ".holdfast", database)
    assert not reads(database)
    for path in (settings, database):  # as editors and a restore do: the cover is gone with the file it lay on
        secret(path.with_suffix(".new")).rename(path)
    assert not reads(database)
    assert "Read-only" in run("echo more >> holdfast.toml")


def test_a_folder_that_is_mounted_twice_is_hidden_at_both_places(project: Path) -> None:
    token = secret(project / "home/token")
    (project / "elsewhere").mkdir()
    look = "import sys; from tests.tools import test_cover as t; sys.exit(t.look_in_both())"
    enter = f"mount --bind {shlex.quote(str(project))} {shlex.quote(str(project))}/elsewhere && exec"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", f'{enter} "$0" -c "$1"', sys.executable, look],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert token.exists()


def look_in_both() -> str | None:
    """In a process whose mounts are not ours."""
    own = floor.own("home", "locks", None)
    if not Path("elsewhere/home/token").exists():
        return "it is not mounted twice"
    floor.protect(own)
    return "seen" if reads("home/token") or reads("elsewhere/home/token") else None


def test_the_environment_and_memory_of_a_program_with_an_app_inside_are_closed(
    project: Path, protect: Callable[..., Own]
) -> None:
    """Such a program is not started anew without its keys, as our commands are."""
    looks = [f"cat /proc/{os.getpid()}/{name}" for name in ("environ", "maps", "fd/1")]
    looks += [f"ls /proc/{os.getpid()}/{name}" for name in ("root/", "cwd/", "map_files/")]
    assert "PATH=" in run(looks[0]), "as long as nothing is covered"
    protect(project / ".holdfast")
    for look in looks:
        assert run(look).endswith("Permission denied\n"), look


# --- a child like any other -------------------------------------------------------------------------------


def spawn(argv: list[str]) -> Process:
    return cover.spawn(ProcessSpec(argv, {}))


def test_it_is_our_child_and_ends_as_it_ends(project: Path, protect: Callable[..., Own]) -> None:
    protect(project / ".holdfast")
    assert run("echo $PPID; id -u").split() == [str(os.getpid()), str(os.getuid())]
    assert spawn(["/bin/sh", "-c", "exit 7"]).wait() == 7
    child = spawn(["/bin/sleep", "100"])
    assert child.poll() is None
    assert os.getpgid(child.pid) == os.getsid(child.pid) == child.pid
    os.killpg(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_it_has_the_descriptors_that_it_was_given_under_their_numbers_and_no_other(
    project: Path, protect: Callable[..., Own]
) -> None:
    protect(project / ".holdfast")
    ear, mouth = os.pipe()
    try:
        told = run(f"ls /proc/$$/fd; echo heard > /proc/self/fd/{mouth}", pass_fds=(mouth,))
        assert {int(number) for number in told.split()} == {0, 1, 2, mouth}
        assert os.read(ear, 100) == b"heard\n"
    finally:
        os.close(ear)
        os.close(mouth)


@pytest.mark.parametrize(
    "argv", [["no-such-program"], ["/no/such/program"], ["./empty"], ["/bin/echo", "x" * 300_000]]
)
def test_what_cannot_be_started_is_told_as_ever(project: Path, protect: Callable[..., Own], argv: list[str]) -> None:
    (project / "empty").touch()
    raised = []
    for _ in range(2):
        with pytest.raises(OSError) as caught:  # noqa: PT011  which one it is, is the question
            run(argv, project)
        raised.append((type(caught.value), caught.value.errno, caught.value.filename))
        protect(project / ".holdfast")  # after it was tried without
    assert raised[0] == raised[1]


def test_a_folder_that_is_not_there_is_told_by_its_name(project: Path, protect: Callable[..., Own]) -> None:
    protect(project / ".holdfast")
    with pytest.raises(FileNotFoundError) as caught:
        run("true", project / "gone")
    assert caught.value.filename == str(project / "gone")
    with pytest.raises(ValueError, match="null"):
        run("echo \0")


# --- the starter ------------------------------------------------------------------------------------------


def starter_pid() -> int:
    (pid,) = [
        int(name)
        for name in os.listdir("/proc")  # noqa: PTH208
        if name.isdigit() and _is_starter(int(name))
    ]
    return pid


def _is_starter(pid: int) -> bool:
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return parent == os.getpid() and b"starter_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_one_that_was_killed_is_replaced_and_nothing_is_started_without(
    project: Path, protect: Callable[..., Own]
) -> None:
    token = secret(project / ".holdfast/token")
    protect(project / ".holdfast")
    assert not reads(token)
    first = starter_pid()
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)  # asked while it dies, it would leave the outcome unknown
    assert not reads(token)
    assert starter_pid() != first


def test_it_ends_with_the_last_app(project: Path) -> None:
    own = Own((str(project / ".holdfast"),), None)
    floor.protect(own)
    run("true")
    assert starter_pid()
    floor.release(own)
    assert not [name for name in os.listdir("/proc") if name.isdigit() and _is_starter(int(name))]  # noqa: PTH208


async def test_it_ends_with_its_process_and_a_fork_does_not_keep_it(project: Path) -> None:
    program = (
        "import os, time; from tests.tools import test_cover as t\n"
        "t.floor.protect(t.Own((), None)); t.run('true')\n"
        "if os.fork() == 0: time.sleep(1000)\n"
        "print(t.starter_pid(), os.getpid(), flush=True); time.sleep(1000)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(  # noqa: ASYNC220  nothing else runs in this loop
        [sys.executable, "-c", program], env=env, stdout=-1, start_new_session=True
    )
    try:
        assert process.stdout is not None
        starter = int(process.stdout.readline().split()[0])
        process.kill()
        await until(lambda: not Path(f"/proc/{starter}").exists())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def test_where_it_cannot_be_a_process_starts_uncovered_unless_that_is_forbidden(project: Path) -> None:
    """In a namespace in which no further ones may be made, as a container's runtime has it."""
    secret(project / ".holdfast/token")
    look = "from tests.tools import test_cover as t; t.look_uncovered()"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    enter = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", enter, sys.executable, look],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def look_uncovered() -> None:
    """In a process that may make no namespaces."""
    own = floor.own(".holdfast", ".holdfast/locks", None)
    assert cover.examine(own)[0].startswith("namespaces cannot be made: ")
    floor.protect(own)
    assert reads(".holdfast/token")
    assert cover.figures()["uncovered"] == 1
    assert cover.figures()["problem"] is not None
    floor.protect(own._replace(wish="always"))
    with pytest.raises(ToolFailed, match="Nothing was started"):
        run("true")


def test_a_second_name_of_the_token_is_told(project: Path) -> None:
    token = secret(project / ".holdfast/token")
    assert cover.examine(floor.own(".holdfast", "locks", None)) == []
    (project / "copy").hardlink_to(token)
    (problem,) = cover.examine(floor.own(".holdfast", "locks", None))
    assert "second name" in problem


def test_one_that_does_not_answer_leaves_the_outcome_unknown(
    project: Path, protect: Callable[..., Own], monkeypatch: pytest.MonkeyPatch
) -> None:
    protect(project / ".holdfast")
    run("true")
    os.kill(starter_pid(), signal.SIGSTOP)
    with monkeypatch.context() as hurry:
        hurry.setattr("holdfast.system.starter.ANSWER_S", 0.1)
        with pytest.raises(OutcomeUnknown):
            run("true")
    assert run("echo again") == "again\n"


# --- asked from an event loop -----------------------------------------------------------------------------


async def outcome(command: str) -> processes.Ended:
    return await processes.run(["/bin/sh", "-c", command], children=None, deadline_s=60.0, bytes_max=1000)


async def turns_of_the_loop() -> None:
    """Enough for whatever is due in it."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_a_starter_that_is_frozen_holds_no_event_loop(project: Path, protect: Callable[..., Own]) -> None:
    protect(project / ".holdfast")
    assert (await outcome("echo first")).output == "first\n"
    frozen = starter_pid()
    os.kill(frozen, signal.SIGSTOP)
    asked = [asyncio.ensure_future(outcome(f"echo {n}")) for n in range(3)]
    await turns_of_the_loop()
    assert not [one for one in asked if one.done()]
    second = protect(project / "other")  # an app is opened and closed meanwhile
    floor.release(second)
    floor.protect(second)
    os.kill(frozen, signal.SIGCONT)
    assert [(await one).output for one in asked] == ["0\n", "1\n", "2\n"]


async def test_who_leaves_while_the_starter_is_frozen_is_free_and_what_it_asked_for_does_not_run_on(
    project: Path, protect: Callable[..., Own]
) -> None:
    protect(project / ".holdfast")
    await outcome("true")
    frozen = starter_pid()
    os.kill(frozen, signal.SIGSTOP)
    asked = [asyncio.ensure_future(outcome(f"exec sleep 98765.{n}")) for n in range(3)]
    await turns_of_the_loop()
    for one in asked:
        one.cancel()
    assert [type(found) for found in await asyncio.gather(*asked, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 3
    os.kill(frozen, signal.SIGCONT)
    await outcome("true")  # behind them
    await until(lambda: not [one for one in psutil.process_iter(["cmdline"]) if "98765" in str(one.info["cmdline"])])


async def test_the_last_app_is_closed_though_the_starter_is_frozen(project: Path) -> None:
    own = Own((str(project / ".holdfast"),), None)
    floor.protect(own)
    await outcome("true")
    frozen = starter_pid()
    os.kill(frozen, signal.SIGSTOP)
    asked = asyncio.ensure_future(outcome("true"))
    await turns_of_the_loop()
    floor.release(own)
    with suppress(OutcomeUnknown):  # or it had not been asked for
        await asked
    await until(lambda: not Path(f"/proc/{frozen}").exists())
