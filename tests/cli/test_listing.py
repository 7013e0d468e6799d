"""Listings as they are read: in a wide window, in a narrow one, and by a program at the end of a pipe."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from holdfast import App
from tests.cli.conftest import APP, Desk, Terminal, ids_in_order
from tests.cli.desk import AGENTS
from tests.cli.test_serving import server

Opened = Callable[..., Terminal]

LONG = "kelp\ton its\nrock \x1b[31mred\x1b[0m and so on " + "without end " * 50
STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


async def titled(folder: Path) -> list[str]:
    """Two chats, newest first; one has a title that is long and bad for a table."""
    older, newer = ids_in_order(2)
    async with App(agents=AGENTS, home=str(folder / ".holdfast")) as app:
        await app.create("echo", title="日本語", chat_id=older)
        await app.create("echo", title=LONG, chat_id=newer)
        return [newer, older]


@pytest.fixture
async def chats(desk: Desk) -> list[str]:
    (desk.folder / ".holdfast").mkdir()
    return await titled(desk.folder)


def shown(at: Terminal) -> list[str]:
    assert at.ends() == 0
    return STYLES.sub("", at.seen.getvalue()).replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize("columns", [20, 33, 40, 60])
def test_in_a_narrow_window_each_id_is_whole_and_on_a_line_of_its_own(
    terminal: Opened, chats: list[str], columns: int
) -> None:
    lines = shown(terminal("chats", "list", columns=columns))
    assert [line for line in lines if line.startswith("chat_")] == chats
    below = [line for line in lines if not line.startswith("chat_")]
    assert all(line.startswith("  ") and len(line) <= columns for line in below)
    assert "idle" in " ".join(below)


def test_in_a_wide_window_they_are_a_table(terminal: Opened, chats: list[str]) -> None:
    heads, *rows = shown(terminal("chats", "list", columns=100))
    assert heads.split() == ["chat", "agent", "state", "changed", "title"], "and no column that holds nothing"
    assert [row.split()[0] for row in rows if row.startswith("chat_")] == chats


def test_a_pipe_gets_one_line_for_each_with_nothing_cut_and_tabs_between(desk: Desk, chats: list[str]) -> None:
    desk.environ |= {"COLUMNS": "40", "FORCE_COLOR": "1"}  # which concern people
    done = desk.run("chats", "list")
    assert (done.code, done.err) == (0, "")
    rows = [line.split("\t") for line in done.out.removesuffix("\n").split("\n")]
    assert [row[:4] for row in rows] == [[chat, "echo", "idle", "0"] for chat in chats]
    assert all(datetime.fromisoformat(row[4]) for row in rows)
    assert [row[5:] for row in rows] == [[" ".join(LONG.replace("\x1b", "").split())], ["日本語"]]
    assert desk.run("chats", "list").out == done.out, "nothing in it depends on when it is asked for"


def test_a_chat_without_a_title_is_listed_with_its_first_words(desk: Desk) -> None:
    desk.run("run", "--app", APP, "--agent", "echo", "How deep\x1b[31m is\nthe sea?")
    (row,) = [line.split("\t") for line in desk.run("chats", "list").out.splitlines()]
    assert row[5] == "How deep[31m is the sea?"
    (told,) = [json.loads(line) for line in desk.run("chats", "list", "--json").out.splitlines()]
    assert (told["title"], told["opening"]) == (None, "How deep\x1b[31m is\nthe sea?")


def test_json_is_exact(desk: Desk, chats: list[str]) -> None:
    found = [json.loads(line) for line in desk.run("chats", "list", "--json").out.splitlines()]
    assert [(chat["id"], chat["title"]) for chat in found] == list(zip(chats, (LONG, "日本語"), strict=True))


def test_workers_are_listed_whole_in_a_narrow_window_and_in_a_pipe(desk: Desk, terminal: Opened) -> None:
    with server(desk, APP):
        (told,) = [json.loads(line) for line in desk.run("workers", "--json").out.splitlines()]
        narrow = shown(terminal("workers", columns=40))
        (row,) = [line.split("\t") for line in desk.run("workers").out.splitlines()]
    assert narrow[0] == told["worker"]
    assert f"pid {told['pid']}" in " ".join(narrow)
    assert (row[0], row[2], row[5]) == (told["worker"], str(told["pid"]), "0/100")
    assert round(datetime.fromisoformat(row[3]).timestamp() * 1000) == told["started_at"]
    assert row[6] == ", ".join(sorted(agent.name for agent in AGENTS))


def test_settings_in_a_pipe_are_whole_however_long(desk: Desk) -> None:
    hosts = [f"host-{n}.example.org" for n in range(40)]
    desk.environ["HOLDFAST_ALLOWED_HOSTS"] = ",".join(hosts)
    rows = [line.split("\t") for line in desk.run("config", "show").out.splitlines()]
    assert ["allowed_hosts", ", ".join(hosts), "HOLDFAST_ALLOWED_HOSTS"] in rows
    assert {len(row) for row in rows} == {3}


def test_an_empty_listing_says_whether_there_is_nothing_or_nothing_of_the_kind(desk: Desk) -> None:
    assert "there is no data yet" in desk.run("chats", "list").err
    assert desk.run("run", "hello", "--app", APP, "--agent", "echo").code == 0
    for narrow in (("--state", "waiting"), ("--agent", "nobody"), ("--search", "nothing"), ("--archived",)):
        assert desk.run("chats", "list", *narrow).err == "no such chats\n"
