"""holdfast's own files: no process that a tool starts gets at them, by whatever way, as root and as a user."""

import ctypes
import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
HERE = Path(__file__).parent
# Ours may lie in the home of root. What we have installed is for one version of it.
PYTHON_OF_ALL = shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/bin:/bin") or ""
TOKEN = "token-4711-0815-token"
SETTINGS = {
    "holdfast.toml": "chats_max = 50\n",
    ".git/config": None,
    ".git/hooks/pre-commit": "#!/bin/sh\n",
    ".config/holdfast/trusted/note": "a note",
}
USERS = pytest.mark.parametrize("as_user", [(), NOBODY], ids=["as we are", "as nobody"])


@pytest.fixture
def folder() -> Iterator[Path]:
    """A project: a repository, with the home in it, as `make run` has it. It is the user's home, too."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        for program in ("covered.py", "intruder.py"):
            shutil.copy(HERE / program, path)
        (path / ".holdfast").mkdir(mode=0o700)
        (path / ".holdfast/token").write_text(TOKEN)
        (path / ".holdfast/token").chmod(0o600)
        subprocess.run(["git", "init", "-q"], cwd=path, check=True)
        for file, text in SETTINGS.items():
            if text is not None:
                (path / file).parent.mkdir(parents=True, exist_ok=True)
                (path / file).write_text(text)
        yield path


def holdfast(
    folder: Path, *arguments: str, as_user: tuple[str, ...] = (), more: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.CompletedProcess[str]":
    python, path = (sys.executable, {}) if not as_user else (PYTHON_OF_ALL, {"PYTHONPATH": os.pathsep.join(sys.path)})
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "HOLDFAST_TRUSTED": str(folder), **path, **more}
    return subprocess.run(
        [*as_user, "/bin/sh", "-c", '"$@"; exit $?', "sh", python, "-m", "holdfast", *arguments],  # a shell above it
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        stdin=subprocess.DEVNULL,
    )


def give_to(folder: Path, as_user: tuple[str, ...]) -> None:
    """Or skip the test: only root can become another user."""
    if not as_user:
        return
    if os.getuid() != 0 or shutil.which(as_user[0]) is None or not PYTHON_OF_ALL:
        pytest.skip("only root can become another user, with setpriv of util-linux, and with a Python for all users")
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, 65534, 65534)


def handle_of(path: Path) -> tuple[int, str] | None:
    """By which the kernel finds a file without a name, where the file system has such."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer, mount = ctypes.create_string_buffer((128).to_bytes(4, "little"), 136), ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), buffer, ctypes.byref(mount), 0) != 0:
        return None
    size, kind = int.from_bytes(buffer.raw[0:4], "little"), int.from_bytes(buffer.raw[4:8], "little", signed=True)
    return kind, buffer.raw[8 : 8 + size].hex()


def findings(
    folder: Path, as_user: tuple[str, ...], more: Mapping[str, str] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    done = holdfast(folder, "doctor", "--json", as_user=as_user, more=more)
    return {found["what"]: found for found in json.loads(done.stdout)["findings"]}


def reports(folder: Path) -> dict[str, Any]:
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in ("shell", "isolated", "server")}


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is covered elsewhere, and doctor says so")
@USERS
def test_nothing_that_a_tool_starts_reaches_the_files_of_holdfast(folder: Path, as_user: tuple[str, ...]) -> None:
    handles = {name: handle_of(folder / name) for name in (".holdfast/token", ".holdfast")}
    (folder / "handles.json").write_text(json.dumps({name: found for name, found in handles.items() if found}))
    before = {name: (folder / name).read_text() for name in SETTINGS}
    give_to(folder, as_user)
    found = findings(folder, as_user)
    told = found["tools"]
    if told["code"] != "ok":  # this system does not let us: then doctor has to say so, and what to do
        assert told["code"] == "tools_uncovered"
        assert told["advice"]
        assert found["sandbox"]["code"] == "sandbox_unavailable"
        pytest.skip(told["detail"])
    assert found["sandbox"]["code"] == "ok" or "a root of its own" in found["sandbox"]["detail"]
    done = holdfast(folder, "run", "go", "--app", "covered:app", as_user=as_user)
    assert done.returncode == 0, done.stderr
    for name, report in reports(folder).items():
        assert report == {"read": {}, "changed": []}, name
    assert {name: (folder / name).read_text() for name in SETTINGS} == before
    assert (folder / ".holdfast/token").read_text() == TOKEN
    assert [path.name for path in (folder / ".config/holdfast/trusted").iterdir()] == ["note"]
    work = (folder / "work.log").read_text()
    assert "nothing added to commit" in work, "git works on"
    assert ("nobody" if as_user else getpass.getuser()) in work.splitlines(), "and who runs it is the same"


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is covered elsewhere")
def test_what_is_not_to_be_covered_is_not_and_doctor_says_so(folder: Path) -> None:
    uncovered = {"HOLDFAST_COVER_TOOLS": "never"}
    (folder / "looks").touch()
    told = findings(folder, (), uncovered)["tools"]
    assert (told["code"], told["wrong"]) == ("tools_uncovered", False)
    done = holdfast(folder, "run", "go", "--app", "covered:app", more=uncovered)
    assert done.returncode == 0, done.stderr
    for name, report in reports(folder).items():
        assert report["read"]["by path: .holdfast/token"] == TOKEN, name
        assert report["read"]["by path: .holdfast/holdfast.db"].startswith("SQLite format 3"), name


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is none, and unshare is not there either")
def test_where_no_namespaces_may_be_made_doctor_says_that_there_is_no_sandbox(folder: Path) -> None:
    forbidden = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh")
    done = subprocess.run([*forbidden, "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(done.stderr)
    done = subprocess.run(
        [*forbidden, sys.executable, "-m", "holdfast", "doctor", "--json"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "HOLDFAST_TRUSTED": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    (told,) = [found for found in json.loads(done.stdout)["findings"] if found["what"] == "sandbox"]
    assert (told["code"], told["wrong"]) == ("sandbox_unavailable", False)
    assert "namespaces cannot be made" in told["detail"]
    assert told["advice"]
