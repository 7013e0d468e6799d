"""Who imports, makes an app, or says something wrong leaves nothing on the disk."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Desk, Done

Quick = Callable[..., Done]

PROGRAM = """
from holdfast import Agent, App
app = App(agents=[Agent("a", "scripted"), Agent("b", "scripted")])
"""


MOUNTED = """
from holdfast import Agent, App
from holdfast.server.http import http_app
app = App(agents=[Agent("a", "scripted")])
asgi = http_app(app)
"""


def files(desk: Desk) -> list[str]:
    return sorted(path.name for path in desk.folder.rglob("*"))


@pytest.fixture
def program(desk: Desk) -> Desk:
    (desk.folder / "program.py").write_text(PROGRAM)
    desk.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    return desk


@pytest.mark.parametrize("code", ["import holdfast", "from holdfast import *", "import program"])
def test_an_import_and_the_making_of_an_app_write_nothing(program: Desk, code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=program.folder, env=program.environ, timeout=60)
    assert done.returncode == 0
    assert files(program) == ["program.py"]


def test_a_program_that_mounts_the_server_makes_the_token_when_the_app_is_opened_and_not_by_its_import(
    program: Desk,
) -> None:
    (program.folder / "program.py").write_text(MOUNTED)
    first = (
        "import asyncio, os, httpx2 as httpx, program\n"
        "assert not os.path.exists('.holdfast'), 'the import wrote'\n"
        "async def ask():\n"
        "    transport = httpx.ASGITransport(app=program.asgi)\n"
        "    async with program.app, httpx.AsyncClient(transport=transport, base_url='http://localhost') as client:\n"
        "        assert os.path.exists('.holdfast/token')\n"
        "        refused = await client.get('/api/chats', headers={'Authorization': 'Bearer ' + 'x' * 40})\n"
        "        token = open('.holdfast/token').read().strip()\n"
        "        let_in = await client.get('/api/chats', headers={'Authorization': f'Bearer {token}'})\n"
        "        print(refused.status_code, let_in.status_code)\n"
        "asyncio.run(ask())\n"
    )
    command = [sys.executable, "-c", first]
    done = subprocess.run(
        command, cwd=program.folder, env=program.environ, timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "401 200\n"), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("openapi", "--app", "program:app"),
        ("serve", "program:nothing"),
        ("run", "hello", "--app", "program:app", "--agent", "nobody"),
        ("run", "hello", "--app", "program:app"),  # which of the two?
        ("run", "", "--app", "program:app", "--agent", "a"),
        ("config", "show"),
    ],
    ids=" ".join,
)
def test_a_command_that_opens_no_app_or_is_wrong_writes_nothing(program: Desk, arguments: tuple[str, ...]) -> None:
    program.run(*arguments)
    assert files(program) == ["program.py"]


def test_where_there_is_no_data_yet_a_look_makes_none_and_says_where_it_looked(quick: Quick, tmp_path: Path) -> None:
    lists = [("chats", "list"), ("workers",), ("tokens", "list"), ("owners", "list", "--json")]
    looks = [("chats", command, "last") for command in ("show", "why", "tail", "stop", "approve", "retry", "export")]
    for arguments in (*lists, *looks, ("login",), ("vacuum",), ("backup", "copy.db")):
        done = quick(*arguments)
        assert (done.code, done.out) == (0 if arguments in lists else 2, ""), arguments
        assert f'no data yet ({tmp_path}/.holdfast/holdfast.db): holdfast run "hello" makes some' in done.err
    assert list(tmp_path.iterdir()) == []


def test_doctor_looks_at_a_folder_without_a_home_and_makes_none(quick: Quick, tmp_path: Path) -> None:
    done = quick("doctor")
    assert (done.code, done.out.count("it is made when it is needed")) == (0, 2), done.out
    assert [path.name for path in tmp_path.iterdir() if path.name != "config of mine"] == []
