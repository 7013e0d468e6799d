"""The keys of a command that runs tools: they are in the program, and nothing that it starts can read them."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

KEY = "bank-4711-0815-bank"
PASSWORD = "s3cret-s3cret-s3cret"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
HERE = Path(__file__).parent
# Ours may lie in the home of root. What we have installed is for one version of it.
PYTHON_OF_ALL = shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/bin:/bin") or ""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where nobody may write, too; with the app in it."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        shutil.copy(HERE / "sealed.py", path)
        path.chmod(0o777)
        yield path


def environment(folder: Path, **more: str) -> dict[str, str]:
    url = f"postgresql://ada:{PASSWORD}@host/db"
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "BANK_API_KEY": KEY, "DATABASE_URL": url, **more}


def holdfast(folder: Path, *arguments: str, as_user: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    python, more = (sys.executable, {}) if not as_user else (PYTHON_OF_ALL, {"PYTHONPATH": os.pathsep.join(sys.path)})
    command = [*as_user, python, "-m", "holdfast", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows environments in /proc")
@pytest.mark.parametrize("as_user", [(), NOBODY], ids=["as we are", "as nobody"])
def test_no_tool_reads_the_keys_of_the_process_that_runs_it(folder: Path, as_user: tuple[str, ...]) -> None:
    if as_user and (os.getuid() != 0 or shutil.which(as_user[0]) is None or not PYTHON_OF_ALL):
        pytest.skip("only root can become another user, with setpriv of util-linux, and with a Python for all users")
    done = holdfast(folder, "run", "go", "--app", "sealed:app", as_user=as_user)
    assert done.returncode == 0, done.stderr
    assert (folder / "own.txt").read_text() == f"{KEY} {KEY} postgresql://ada:{PASSWORD}@host/db"
    for name in ("shell.txt", "isolated.txt", "server.txt"):
        text = (folder / name).read_text(errors="replace")
        assert "denied" in text or "not permitted" in text, name
        for secret in (KEY, KEY[::-1], PASSWORD, PASSWORD[::-1]):
            assert secret not in text, name
        assert "entered" not in text
        assert "[heap]" not in text, "the map of its memory"
    if not as_user and os.getuid() == 0:
        bounding = int((folder / "shell.txt").read_text(errors="replace").rpartition("CapBnd:")[2], 16)
        assert not bounding & (1 << 19 | 1 << 21), "CAP_SYS_PTRACE, CAP_SYS_ADMIN"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows environments in /proc")
def test_a_worker_has_no_key_in_its_environment_and_keeps_its_process_id(folder: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "sealed:app"],
        cwd=folder,
        env=environment(folder),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stderr is not None
        assert any("ready" in line for line in worker.stderr)
        shown = Path(f"/proc/{worker.pid}/environ").read_bytes() if os.getuid() == 0 else b""
        assert KEY.encode() not in shown
        assert PASSWORD.encode() not in shown
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
        worker.stderr.close()  # type: ignore[union-attr]


def test_doctor_says_what_still_shows_the_keys(folder: Path) -> None:
    sealed = holdfast(folder, "doctor")
    assert "this process was started with" not in sealed.stdout + sealed.stderr
    if sys.platform == "linux":  # a shell above it that has them, as a supervisor would
        line = f"{sys.executable} -m holdfast doctor; true"
        above = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=folder,
            env=environment(folder, HOLDFAST_COVER_TOOLS="never"),  # what is covered sees nothing of that shell
            capture_output=True,
            text=True,
            timeout=100,
        )
        told = " ".join(above.stdout.split())
        assert "BANK_API_KEY, DATABASE_URL can be read from the environment of process" in told
        assert KEY not in told


def test_help_and_commands_that_run_no_tool_are_not_started_anew(folder: Path) -> None:
    look = "import os, sys, holdfast.system.keys as k; k.seal(sys.argv[1:]); print('BANK_API_KEY' in os.environ)"
    for arguments in (["--help"], ["worker", "--help"], ["chats", "list"], ["config", "show"], []):
        done = subprocess.run(
            [sys.executable, "-c", look, *arguments],
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_still_closed_when_the_command_was_started_anew(
    folder: Path, closed: str
) -> None:
    script = folder / "looks.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from holdfast import __main__\n"
        "from holdfast.cli import main\n"
        "def look():\n"
        "    missing = [name for name in ('stdin', 'stdout', 'stderr') if getattr(sys, name) is None]\n"
        "    Path('streams.txt').write_text(' '.join(missing))\n"
        "main.main = look\n"
        "__main__.main()\n"
    )
    command = f'exec "$0" looks.py doctor {closed}'
    subprocess.run(["/bin/sh", "-c", command, sys.executable], cwd=folder, env=environment(folder), timeout=100)
    names = {"<&-": "stdin", ">&-": "stdout", "2>&-": "stderr"}
    assert (folder / "streams.txt").read_text() == " ".join(names[each] for each in closed.split())
