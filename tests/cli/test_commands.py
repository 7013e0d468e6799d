"""The commands on chats, settings and health, on a store that a worker has filled."""

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Agent, App, tool
from holdfast.cli.given_paths import given_path
from holdfast.core import commands as cmd
from holdfast.core.records import NewChat, State
from holdfast.testing import Call, Fail, ScriptedModel
from holdfast.tools.outside import ask_user, client_tool
from tests.cli.conftest import Done, ids_in_order
from tests.cli.desk import pay
from tests.support.chats import Hand, new_chat, user
from tests.support.chats import call as tool_call
from tests.support.programs import ROOT

Quick = Callable[..., Done]


@tool
async def fall() -> str:
    """Fall."""
    raise ValueError("off the rock")


def agents() -> list[Agent]:
    """Waiting for one thing each, and back for another turn when that is answered."""
    ask = [Call(name="ask_user", arguments={"question": "Which colour?"})]
    return [
        Agent("echo", ScriptedModel(after="echo")),
        Agent("pays", ScriptedModel([Call(name="pay", arguments={"amount": 5})], "Fine."), tools=[pay]),
        Agent("pays twice", ScriptedModel([Call(name="pay", arguments={"amount": n}) for n in (1, 2)]), tools=[pay]),
        Agent("asks", ScriptedModel(ask, "Thank you."), tools=[ask_user()]),
        Agent("client", ScriptedModel([Call(name="open_page")], "Opened."), tools=[client_tool("open_page")]),
        Agent("falls", ScriptedModel([Call(name="fall")], "Done."), tools=[fall]),
        Agent("fails", ScriptedModel([Fail(status=400, message="no such thing")])),
    ]


def worked(folder: Path, *asked: tuple[str, str]) -> list[str]:
    """Chats in the home of this folder, driven until they rest or wait; their ids."""

    async def work() -> list[str]:
        app = App(agents=agents(), home=str(folder / ".holdfast"))
        async with app, app.worker(poll_s=0.2):
            ids = ids_in_order(len(asked))
            for chat_id, (agent, text) in zip(ids, asked, strict=True):
                await app.create(agent, text, chat_id=chat_id)
            for line in await app.chats():
                await app.chat(line.id).wait(20.0)
        return ids

    (folder / ".holdfast").mkdir(exist_ok=True)
    return asyncio.run(work())


def states(folder: Path, *ids: str) -> list[State]:
    async def read() -> list[State]:
        async with App(home=str(folder / ".holdfast")) as app:
            return [await app.chat(chat_id).state() for chat_id in ids]

    return asyncio.run(read())


def test_chats_are_listed_shown_and_followed(quick: Quick, tmp_path: Path) -> None:
    echo, fails = worked(tmp_path, ("echo", "hello kelp"), ("fails", "oh no"))
    listed = quick("chats", "list")
    assert listed.code == 0
    assert [line.split("\t")[:3] for line in listed.out.splitlines()] == [
        [fails, "fails", "failed"],
        [echo, "echo", "idle"],
    ]
    assert [
        json.loads(line)["id"] for line in quick("chats", "list", "--search", "KELP", "--json").out.splitlines()
    ] == [echo]
    assert quick("chats", "list", "--state", "waiting").out == ""
    assert "it can be idle, running" in quick("chats", "list", "--state", "asleep").err
    shown = quick("chats", "show", echo)
    assert re.search(r"user  msg_\w+\nhello kelp\n\nassistant  msg_\w+\nYou said: hello kelp", shown.out)
    assert "failed (bad_request)" in quick("chats", "show", "last").out
    tail = quick("chats", "tail", echo)
    assert (tail.code, tail.out) == (0, "> hello kelp\nYou said: hello kelp\n")
    assert quick("chats", "tail", fails).code == 1


def test_the_sub_agents_of_a_chat_are_shown_as_a_tree(quick: Quick, tmp_path: Path) -> None:
    async def make() -> None:
        async with App(home=str(tmp_path / ".holdfast")) as app:
            hand = Hand(app.store)
            await app.store.create_chat(new_chat(id="top"))
            for parent, child in (("top", "middle"), ("middle", "low"), ("top", "other")):
                await hand.claim()
                hand.snapshot = await app.store.read_chat(parent)
                await hand.respond(tool_call(f"{child}-call"))
                new = NewChat(id=child, agent="agent", message=user(f"Be\x1b[2J {child}."))
                await hand.commit(cmd.Outcome(by=hand.by, call_id=f"{child}-call", content="spawned", spawn=new))

    (tmp_path / ".holdfast").mkdir(exist_ok=True)
    asyncio.run(make())
    shown = quick("chats", "show", "top").out
    tree = [row for row in shown.splitlines() if row.startswith("  ") and "  agent  " in row]
    assert [(len(row) - len(row.lstrip()), row.split()[0], row.split()[2]) for row in tree] == [
        (2, "middle", "running"), (4, "low", "running"), (2, "other", "running"),
    ]  # fmt: skip
    assert "\x1b" not in shown
    assert [child["chat_id"] for child in json.loads(quick("chats", "show", "top", "--json").out)["children"]] == [
        "other", "middle", "low",
    ]  # fmt: skip
    assert quick("chats", "stop", "top").code == 0
    assert set(states(tmp_path, "top", "middle", "low", "other")) == {State.STOPPING}


def test_calls_are_approved_denied_and_answered(quick: Quick, tmp_path: Path) -> None:
    pays, twice, asks, client = worked(
        tmp_path, ("pays", "pay"), ("pays twice", "pay"), ("asks", "help"), ("client", "open")
    )
    waiting = [line.split("\t") for line in quick("chats", "inbox").out.splitlines()]
    assert [row[0] for row in waiting] == [client, asks, twice, twice, pays]
    assert [row[-1] for row in waiting if row[2] == "question"] == ["Which colour?"]
    told = quick("chats", "inbox", "--kind", "client", "--json").out
    assert [json.loads(line)["chat_id"] for line in told.splitlines()] == [client]
    assert quick("chats", "inbox", "--kind", "nothing").code == 2
    assert quick("chats", "approve", pays).out == f"{pays}  running\n"
    several = quick("chats", "approve", twice)
    assert several.code == 2
    first = re.findall(r"call_\w+", several.err)[0]
    assert quick("chats", "deny", twice, "too much", "--call", first).code == 0
    assert quick("chats", "answer", asks, "blue").out == f"{asks}  running\n"
    assert quick("chats", "answer", client, "page is closed", "--error").code == 0
    assert quick("chats", "approve", asks).code == 2
    worked(tmp_path)  # a worker that takes whatever is due
    shown = quick("chats", "show", twice).out
    assert "too much" in shown
    assert "waits for approval of pay(amount=2)" in shown


def test_chats_are_changed_copied_put_away_and_deleted(quick: Quick, tmp_path: Path) -> None:
    echo, fails = worked(tmp_path, ("echo", "hello"), ("fails", "oh no"))
    fork = quick("chats", "fork", echo).out.strip()
    assert quick("chats", "send", fork, "again").out == f"{fork}  running\n"
    assert quick("chats", "send", fork, "and again").out == f"{fork}  running\n"
    stopped = quick("chats", "stop", fork, "--clear-queue")
    assert stopped.out == f"{fork}  stopping\ndropped: and again\n"
    assert quick("chats", "edit", echo, "hello you").out == f"{echo}  running\n"
    assert quick("chats", "retry", fails).out == f"{fails}  running\n"
    assert quick("chats", "delete", fork, "--yes").code == 1, "it has not stopped yet"
    worked(tmp_path)
    assert "You said: hello you" in quick("chats", "show", echo).out
    assert quick("chats", "archive", echo).code == 0
    assert [json.loads(line)["id"] for line in quick("chats", "list", "--archived", "--json").out.splitlines()] == [
        echo
    ]
    assert quick("chats", "archive", echo, "--undo").code == 0
    assert quick("chats", "delete", fork, "--yes").out == f"{fork}  deleted\n"
    assert quick("chats", "show", fork).code == 1
    assert quick("chats", "send", echo, "x", "--mode", "loudly").code == 2


def test_each_setting_is_shown_with_its_source_and_no_password(
    quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holdfast.toml").write_text(
        "grace_s = 7.5\n[mcp.clock]\ncommand = 'clock'\nenv = {KELP = 's3cret'}\n"
    )
    secret = "postgresql://me:s3cret@db/x?listen_dsn=postgresql%3A%2F%2Fme%3As3cret%40db%2Fx"
    monkeypatch.setenv("HOLDFAST_DATABASE", secret)
    shown = quick("config", "show")
    assert re.search(r"^grace_s\t7.5\tholdfast.toml$", shown.out, re.MULTILINE)
    assert re.search(r"^port\t7433\tdefault$", shown.out, re.MULTILINE)
    assert re.search(r"^mcp\tclock\tholdfast.toml$", shown.out, re.MULTILINE)
    assert "HOLDFAST_DATABASE" in shown.out
    assert "s3cret" not in shown.out
    assert re.search(r"^database\tpostgresql://…\t", shown.out, re.MULTILINE)
    monkeypatch.setenv("HOLDFAST_DATABASE", "postgresql://me:s3cret@db/x")
    assert "me:***@db" in quick("config", "show").out
    monkeypatch.setenv("HOLDFAST_PROT", "1")
    wrong = quick("config", "show")
    assert (wrong.code, wrong.out) == (1, "")
    assert "did you mean HOLDFAST_PORT?" in wrong.err


def test_the_login_link_holds_no_token_and_is_another_one_each_time(quick: Quick, tmp_path: Path) -> None:
    assert quick("tokens", "create", "any").code == 0  # there is a database
    first, second = quick("login", "--url", "https://chats.example/"), quick("login")
    token = (tmp_path / ".holdfast" / "token").read_text().strip()
    assert first.out.startswith("https://chats.example/login#hf_")
    assert second.out.startswith("http://127.0.0.1:7433/login#hf_")
    assert token not in first.out + second.out
    assert first.out.partition("#")[2] != second.out.partition("#")[2]


def test_the_description_of_the_api_is_printed(quick: Quick) -> None:
    assert quick("openapi").out == (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")


# --- doctor -------------------------------------------------------------------------------------------


def findings(done: Done) -> dict[str, str]:
    return {found["code"]: found["detail"] for found in json.loads(done.out)["findings"] if found["wrong"]}


def test_a_sound_environment_is_well(quick: Quick, tmp_path: Path) -> None:
    worked(tmp_path, ("echo", "hello"))
    done = quick("doctor")
    assert done.code == 0, done.out
    assert "none is stranded" in done.out
    assert "all is well" in done.out


def test_a_chat_whose_agent_no_worker_has_is_found(quick: Quick, tmp_path: Path) -> None:
    (echo,) = worked(tmp_path, ("echo", "hello"))
    quick("chats", "send", echo, "nobody hears me")
    done = quick("doctor", "--json")
    assert done.code == 1
    assert findings(done) == {"no_worker_for_agent": findings(done)["no_worker_for_agent"]}
    assert echo in findings(done)["no_worker_for_agent"]


def test_a_token_that_others_can_read_is_found(quick: Quick, tmp_path: Path) -> None:
    assert (quick("tokens", "create", "any").code, quick("login").code) == (0, 0)
    (tmp_path / ".holdfast" / "token").chmod(0o644)
    done = quick("doctor", "--json")
    assert (done.code, list(findings(done))) == (1, ["token_exposed"])


def test_a_database_that_cannot_be_reached_is_found_and_its_password_not_told(
    quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE_DEADLINE_S", "0.5")
    done = quick("doctor", "--json", "--database", "postgresql://me:s3cret@127.0.0.1:1/x")
    assert (done.code, list(findings(done))) == (1, ["store_unavailable"])
    assert "s3cret" not in done.out


def test_keys_are_named_and_never_shown(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-key")
    done = quick("doctor")
    assert "OPENAI_API_KEY" in done.out
    assert "very-secret" not in done.out


def test_why_a_chat_stands_where_it_stands_is_told_in_words_and_as_json(quick: Quick, tmp_path: Path) -> None:
    failed, waits = worked(tmp_path, ("fails", "go"), ("pays", "go"))
    told = quick("chats", "why", failed).out
    assert "no such thing" in told
    assert f"holdfast chats retry {failed}" in told
    told = quick("chats", "why", waits).out
    assert "waits_for_person" in told
    assert "pay" in told
    found = json.loads(quick("chats", "why", waits, "--json").out)
    assert (found["chat_id"], found["doing"], found["turn"]) == (waits, "waits_for_person", 1)
    assert "there is no chat 'chat_none'" in quick("chats", "why", "chat_none").err


def test_a_chat_is_shown_with_the_traceback_of_what_raised_in_it(quick: Quick, tmp_path: Path) -> None:
    (chat_id,) = worked(tmp_path, ("falls", "go"))
    told = quick("chats", "show", chat_id).out
    assert "tool fall raised ValueError" in told
    assert "in fall" in told
    (trace,) = json.loads(quick("chats", "show", chat_id, "--json").out)["traces"]
    assert trace["text"].endswith("ValueError: off the rock")
    assert "in fall" in quick("chats", "show", chat_id, "--call", trace["call_id"]).out


def test_of_several_files_the_one_that_cannot_be_imported_is_named(quick: Quick, tmp_path: Path) -> None:
    worked(tmp_path, ("fails", "go"))
    assert quick("chats", "export", "last", "chat.jsonl").code == 0
    (tmp_path / "torn.jsonl").write_text("{torn\n")
    torn = quick("chats", "import", "torn.jsonl", "chat.jsonl")
    assert (torn.code, torn.out) == (2, "")
    assert "holdfast: torn.jsonl: line 1: is no JSON" in torn.err
    twice = quick("chats", "import", "chat.jsonl")
    assert re.search(
        r"chat.jsonl: there is a chat 'chat_\w+' already; --new-ids imports it beside that one", twice.err
    )
    assert quick("chats", "import", "chat.jsonl", "--new-ids").code == 0


def test_a_path_that_cannot_be_used_is_named_in_one_line(quick: Quick, tmp_path: Path) -> None:
    worked(tmp_path, ("fails", "go"))
    (tmp_path / "plain").touch()
    for arguments, words in (
        (("backup", "nowhere/x.db"), f"{tmp_path}/nowhere: No such file or directory"),
        (("backup", "plain/x.db"), f"{tmp_path}/plain: Not a directory"),
        (("chats", "export", "last", "nowhere/x.jsonl"), "nowhere: No such file or directory"),
        (("chats", "export", "last", f"{'x' * 256}/x.jsonl"), f"{'x' * 256}: File name too long"),
        (("owners", "export", "", "plain"), "plain: File exists"),
        (("owners", "export", "", "plain/x"), "plain/x: Not a directory"),
        (("chats", "import", "nowhere.jsonl"), "nowhere.jsonl: No such file or directory"),
        (("chats", "import", "."), ".: Is a directory"),
        (("restore", "x.db", "--database", f"sqlite:///{tmp_path}/plain/x/x.db"), f"{tmp_path}/plain/x: Not a dir"),
    ):
        done = quick(*arguments)
        assert (done.code, done.out) == (1, ""), arguments
        assert done.err.startswith(f"holdfast: {words}")
        assert done.err.count("\n") == 1


def test_an_error_that_is_no_fault_of_a_path_goes_on_as_it_is() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"), given_path(Path("x.db")):
        os.close(-1)
