"""`holdfast serve` and `holdfast worker` as processes: what they answer, how they end, what they refuse."""

import asyncio
import json
import os
import re
import signal
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast import App
from tests.cli.conftest import APP, Desk
from tests.cli.desk import AGENTS, HANGS
from tests.support.forks import Fork
from tests.support.waiting import until


@contextmanager
def server(desk: Desk, *arguments: str) -> Iterator[tuple[Fork, str]]:
    process = desk.start("serve", *arguments, "--port", "0")
    assert process.stderr is not None
    try:
        said = ""
        while not (found := re.search(r"listening on (http://\S+)", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        yield process, found.group(1)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def fetch(url: str, token: str | None = None) -> dict[str, object]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def test_it_serves_health_agents_and_chats_and_drains_on_ctrl_c(desk: Desk) -> None:
    with server(desk) as (process, url):
        assert fetch(f"{url}/health")["status"] == "ok"
        token = (desk.folder / ".holdfast" / "token").read_text().strip()
        agents = fetch(f"{url}/api/agents", token)["agents"]
        assert [agent["name"] for agent in agents] == ["assistant", "scripted", "demo"]  # type: ignore[attr-defined]
        done = desk.run("run", "both are workers", "--agent", "scripted")
        assert "You said: both are workers" in done.out
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert "drained" in err


def test_a_turn_is_waited_for_in_the_database_that_the_command_line_names(desk: Desk) -> None:
    """What watches for workers looked at the database that the program names, which nobody had opened: a 503."""
    with server(desk, APP, "--database", f"sqlite:///{desk.folder}/other.db") as (_, url):
        token = (desk.folder / ".holdfast" / "token").read_text().strip()
        asked = urllib.request.Request(
            f"{url}/api/chats", headers={"Authorization": f"Bearer {token}"}, method="POST"
        )
        asked.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(asked, json.dumps({"agent": "gated", "message": "go"}).encode(), 30) as answer:
            chat_id = json.load(answer)["id"]
        assert fetch(f"{url}/api/chats/{chat_id}/turn?wait_s=0.1", token)["state"] == "running"


async def begin_to_hang(folder: Path) -> None:
    """A chat in a tool that hears nothing, driven by whoever serves this folder."""
    async with App(agents=AGENTS, home=str(folder / ".holdfast")) as app:
        await app.create("hangs", "hang")
        await until((folder / HANGS).exists)  # a call whose body has not begun would keep nobody


def test_the_login_link_leads_to_the_port_that_the_server_was_given(desk: Desk) -> None:
    with server(desk, APP) as (_, url):
        there = desk.run("login", "--app", APP)
        assert there.out.startswith(f"{url}/login#hf_")
        assert there.err == ""
    with socket.socket() as mine:  # a port that nobody listens on, and nobody takes
        mine.bind(("127.0.0.1", 0))
        desk.environ["HOLDFAST_PORT"] = str(mine.getsockname()[1])
        gone = desk.run("login", "--app", APP)
    assert gone.out.startswith(f"http://127.0.0.1:{desk.environ['HOLDFAST_PORT']}/login#hf_")
    assert "nobody listens there now; `holdfast serve`" in gone.err


def log_in(link: str) -> int:
    url, _, code = link.strip().partition("/login#")
    body = urllib.parse.urlencode({"code": code}).encode()
    try:
        with urllib.request.urlopen(f"{url}/login", body, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return 200 if error.url.endswith("/") else error.code  # sent on to the page, by a client without cookies


def test_the_login_link_tells_of_every_server_of_the_home(desk: Desk) -> None:
    with server(desk, APP) as (_, one), server(desk, APP) as (_, two):
        both = desk.run("login", "--app", APP)
        links = both.out.split()
        assert {link.partition("/login#")[0] for link in links} == {one, two}
        assert "2 servers listen: the link works once, at any of them" in both.err
        assert [log_in(link) for link in links] == [200, 401]
        with server(desk, APP, "--database", f"sqlite:///{desk.folder}/other.db") as (_, three):
            told = desk.run("login", "--app", APP)
            assert three not in told.out
            assert f"the server at {three} has another database" in told.err
    with server(desk, APP) as (_, four):
        assert desk.run("login", "--app", APP).out.startswith(f"{four}/login#"), "those that ended are forgotten"


def test_a_terminal_is_shown_the_link_until_a_browser_has_used_one(desk: Desk) -> None:
    link = re.compile(r"open (http://\S+/login#hf_\S+)")
    for used in (False, True):
        with closing(desk.terminal("serve", APP, "--port", "0", columns=200)) as terminal:
            terminal.sees("the link works once")
            found = link.search(terminal.seen.getvalue())
            assert found is not None
            if used:
                assert log_in(found[1]) == 200
    with closing(desk.terminal("serve", APP, "--port", "0", columns=200)) as terminal:
        terminal.sees("`holdfast login` makes a link for a browser")
        assert link.search(terminal.seen.getvalue()) is None


def test_ctrl_c_twice_leaves_at_once(desk: Desk) -> None:
    with server(desk, APP) as (process, _):
        asyncio.run(begin_to_hang(desk.folder))
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "draining" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130, err
        assert "leaving now" in err


def test_a_port_that_is_taken_is_said_and_not_waited_for(desk: Desk) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = desk.run("serve", "--port", str(taken.getsockname()[1]))
    assert (done.code, done.out) == (1, "")
    assert "holdfast: cannot listen on 127.0.0.1" in done.err
    assert "Traceback" not in done.err


def test_an_address_that_is_not_of_this_machine_is_not_taken_for_a_port_in_use(desk: Desk) -> None:
    done = desk.run("serve", "--host", "192.0.2.1")
    assert done.code == 1
    assert "Name an address of this machine" in done.err
    assert "another port" not in done.err


def test_a_worker_drives_what_others_send(desk: Desk) -> None:
    worker = desk.start("worker", APP)
    try:
        created = desk.run("run", "pay", "--app", APP, "--agent", "pays")
        assert created.code == 4
        desk.run("chats", "approve", "last", "--app", APP)
        tail = desk.run("chats", "tail", "last", "--app", APP)
        assert "paid 5" in tail.out
        # Beside it, until a sweep forgets it, the worker that `run` brought along may be listed, as one that ended.
        listed = [json.loads(line) for line in desk.run("workers", "--app", APP, "--json").out.splitlines()]
        assert [one["pid"] for one in listed if one["ended"] is None] == [worker.pid]
        worker.send_signal(signal.SIGTERM)
        _, err = worker.communicate(timeout=30)
        assert worker.returncode == 0, err
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("kelp", 2, "'kelp' is not MODULE:APP; write it like kelp:app"),
        ("kelp/app.py", 2, "'kelp/app.py' is not MODULE:APP; write it like kelp.app:app"),
        ("kelp:app", 1, "there is no module 'kelp' in"),
        ("broken:app", 1, "module 'broken' cannot be imported: ZeroDivisionError: division by zero"),
        ("needs:app", 1, "module 'needs' cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("leaves:app", 1, "module 'leaves' cannot be imported: SystemExit: 7"),
        ("unclosed:app", 1, "/unclosed.py, line 2). `python -c 'import unclosed'` shows all of it"),
        ("tests.cli.desk:ap", 1, "module 'tests.cli.desk' has no 'ap'; it has tests.cli.desk:app"),
        ("tests.cli.desk:not_an_app", 1, "is no App but a str"),
    ],
)
def test_what_is_wrong_with_an_app_is_said_in_one_line(
    tmp_path: Path, quick: object, name: str, code: int, says: str
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "needs.py").write_text("import no_such_thing\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(7)\n")
    (tmp_path / "unclosed.py").write_text("first = 1\napp = App(\n")
    assert callable(quick)
    done = quick("serve", name)
    assert done.code == code
    assert says in done.err
    assert len(done.err.splitlines()) == 1


def test_an_app_of_the_current_folder_can_be_named_once_for_all_in_the_configuration(desk: Desk) -> None:
    (desk.folder / "mine.py").write_text(
        "from holdfast import Agent, App\napp = App('sqlite:///mine.db', agents=[Agent('parrot', 'scripted')])\n"
    )
    (desk.folder / "holdfast.toml").write_text('app = "mine:app"\n')
    done = desk.run("run", "hello")
    assert (done.code, done.out) == (0, "You said: hello\n")
    assert (desk.folder / "mine.db").exists()


def test_logs_are_json_if_told_so(desk: Desk) -> None:
    desk.environ |= {"HOLDFAST_LOG_FORMAT": "json", "OPENAI_API_KEY": "sk-" + "x" * 20}
    worker = desk.start("worker", APP)
    assert worker.stderr is not None
    starting, ready = (json.loads(worker.stderr.readline()) for _ in range(2))
    listed = desk.run("workers", "--json")
    os.kill(worker.pid, signal.SIGKILL)
    worker.communicate()
    assert (starting["action"], starting["level"]) == ("worker.starting", "info")
    assert "echo" in starting["agents"]
    assert (ready["action"], ready["level"]) == ("worker.ready", "info")
    assert ready["worker"] in listed.out, "what says that it is ready is known to all"


@pytest.mark.parametrize("count", ["0", "-1", "513", "x", "", "2.5", pytest.param("9" * 5_000, id="long")])
def test_a_number_of_processes_that_cannot_be_is_refused_with_those_that_can(desk: Desk, count: str) -> None:
    done = desk.run("worker", "--processes", count)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"holdfast: --processes is {count!r}; it is a number from 1 to 512, or auto\n"
