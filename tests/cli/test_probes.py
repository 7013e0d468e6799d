"""What `holdfast doctor` tries out: tool servers, models, the disk, the clock. Each has a code, and an end."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.commands import probes
from holdfast.cli.commands.probes import ClockLook, try_sync
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from tests.cli.conftest import Desk, Done
from tests.support.behind import sql
from tests.support.chat_server import ChatServer, saying
from tests.support.chats import Hand
from tests.support.speakers import Anthropic
from tests.support.waiting import until

Quick = Callable[..., Done]


def server_table(name: str, *args: str) -> str:
    path = os.pathsep.join(filter(None, sys.path))
    return (
        f"[mcp.{name}]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(list(args))}\n"
        f"env = {{PYTHONPATH = {json.dumps(path)}}}\n"
    )


def rows(done: Done, what: str) -> list[dict[str, Any]]:
    return [finding for finding in json.loads(done.out)["findings"] if finding["what"] == what]


def test_each_tool_server_is_started_and_its_tools_are_listed(desk: Desk) -> None:
    settings = server_table("good", "-m", "tests.support.mcp_server", "stdio")
    (desk.folder / "holdfast.toml").write_text(settings + 'tools = ["echo", "sing"]\n')
    told = desk.run("doctor", "--json")
    ok, missing = rows(told, "server")
    assert told.code == 1
    assert ok["code"] == "ok"
    assert ok["detail"].startswith("good (stdio, ")
    assert ok["detail"].endswith(" tool: echo")
    assert (missing["code"], missing["wrong"]) == ("tool_missing", True)
    assert "good has no sing" in missing["detail"]


def test_a_tool_server_that_is_not_there_is_told_and_hides_nothing_else(desk: Desk) -> None:
    settings = '[mcp.gone]\ncommand = "no-such-program"\n[mcp.away]\nurl = "http://127.0.0.1:9/mcp"\n'
    (desk.folder / "holdfast.toml").write_text(settings)
    told = desk.run("doctor", "--json")
    assert told.code == 1
    found = rows(told, "server")
    assert {row["code"] for row in found} == {"tool_server_unavailable"}
    assert [row["detail"].partition(" ")[0] for row in found] == ["gone", "away"]
    assert "its command, args and env in [mcp.gone]" in found[0]["advice"]
    assert "its url and headers in [mcp.away]" in found[1]["advice"]
    assert [row["code"] for row in rows(told, "python")] == ["ok"]


def test_tool_servers_of_settings_that_are_not_trusted_are_not_started(desk: Desk) -> None:
    touched = desk.folder / "touched"
    (desk.folder / "holdfast.toml").write_text(f'[mcp.evil]\ncommand = "touch"\nargs = ["{touched}"]\n')
    desk.environ["HOLDFAST_TRUSTED"] = ""
    told = desk.run("doctor", "--json")
    assert "untrusted" in {row["code"] for row in rows(told, "settings")}
    assert rows(told, "server") == []
    assert not touched.exists()


def test_ctrl_c_ends_the_checks_and_the_programs_that_they_started(desk: Desk) -> None:
    started = desk.folder / "started"
    program = (
        f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(600)"
    )
    (desk.folder / "holdfast.toml").write_text(server_table("slow", "-c", program))
    process = desk.start("doctor")
    deadline = time.monotonic() + 60
    while not (started.exists() and started.read_text()):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    pid = int(started.read_text())
    asyncio.run(until(lambda: not Path(f"/proc/{pid}").exists(), 30.0))


async def test_each_key_is_tried_by_one_short_call_on_request(desk: Desk) -> None:
    async with (
        ChatServer(Anthropic().refusing(401, "authentication_error", "invalid x-api-key")) as refuses,
        ChatServer(saying("ok")) as answers,
    ):
        (desk.folder / "program.py").write_text(
            "from holdfast import Agent, App\n"
            f"app = App(agents=[Agent('a', 'compatible:m@{answers.url}'), Agent('s', 'scripted')])\n"
        )
        desk.environ |= {"ANTHROPIC_API_KEY": "sk-ant-not-good-0123456789", "ANTHROPIC_BASE_URL": refuses.root}
        silent = await asyncio.to_thread(partial(desk.run, "doctor", "--json", "--app", "program:app"))
        assert refuses.asked + answers.asked == [], "none is asked unless a person wants it"
        told = await asyncio.to_thread(partial(desk.run, "doctor", "--json", "--call-models", "--app", "program:app"))
        assert (len(refuses.asked), len(answers.asked)) == (1, 1)
    assert (silent.code, told.code) == (0, 1)
    assert rows(silent, "call") == []
    assert "ANTHROPIC_API_KEY" in rows(silent, "keys")[0]["detail"]
    ok, refused = rows(told, "call")
    assert ok["code"] == "ok"
    assert ok["detail"].endswith(": ok")
    assert (refused["code"], refused["wrong"]) == ("authentication", True)
    assert "set ANTHROPIC_API_KEY" in refused["advice"]
    assert "sk-ant-not-good" not in told.out + told.err


def test_the_time_of_a_sync_is_told(quick: Quick) -> None:
    (disk,) = rows(quick("doctor", "--json"), "disk")
    assert disk["code"] in ("ok", "disk_slow")
    assert "a write is on the disk after " in disk["detail"]


async def test_a_disk_that_is_too_slow_or_fails_is_told(tmp_path: Path) -> None:
    slow = await try_sync(str(tmp_path), too_long_s=0.0)
    assert (slow.code, slow.wrong) == ("disk_slow", True)
    none = await try_sync(str(tmp_path / "none"), too_long_s=8.0)
    assert (none.code, none.wrong) == ("disk_not_synced", True)


async def test_a_disk_that_does_not_answer_holds_doctor_up_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setattr(probes, "_synced", lambda _: fifo.open().close())  # as long as no writer comes
    monkeypatch.setattr(probes, "SYNC_S", 0.2)
    stuck = await try_sync(str(tmp_path), too_long_s=8.0)
    assert (stuck.code, stuck.wrong) == ("disk_stuck", True)
    os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


async def test_a_clock_that_goes_with_the_database_is_well(store_url: str) -> None:
    look = ClockLook()
    async with open_store(store_url, StoreOptions()) as store:
        assert (await look.judge(store)).code == "ok"


async def test_entries_of_the_future_say_that_the_clock_was_set_back(store_url: str) -> None:
    look = ClockLook()
    async with open_store(store_url, StoreOptions()) as store:
        hand = Hand(store)
        sql(store_url, "UPDATE workers SET renewed_at = renewed_at + 3600000")
        found = await look.judge(store)
        hand.close()
    assert (found.code, found.wrong) == ("clock_behind", True)
    assert "ahead of the clock" in found.detail


async def test_a_step_of_the_clock_while_doctor_looks_is_told(store_url: str) -> None:
    look = ClockLook()
    look._wall_ms -= 60_000  # as if it had been set forward since
    async with open_store(store_url, StoreOptions()) as store:
        found = await look.judge(store)
    assert (found.code, found.wrong) == ("clock_stepped", True)
    assert "+60.0 s" in found.detail
