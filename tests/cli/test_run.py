"""`holdfast run` through pipes: what goes where, and how it ends."""

import asyncio
import json
import signal

import pytest

from holdfast import App
from holdfast.store.driver_watch import is_live
from tests.cli.conftest import APP, Desk
from tests.cli.desk import AGENTS
from tests.support.waiting import eventually


def test_the_answer_goes_to_standard_output_and_the_tools_to_standard_error(desk: Desk) -> None:
    done = desk.run("run", "2 and 3?", "--app", APP, "--agent", "adds")
    assert done.code == 0, done.err
    assert done.out == "# The sum\n\nIt is **five**, and `2 + 3` says so.\n", "the answer, and nothing else"
    assert "Let me add." in done.err
    assert "✓ add(a=2, b=3)" in done.err
    assert oct((desk.folder / ".holdfast").stat().st_mode & 0o777) == "0o700"


@pytest.mark.parametrize("arguments", [("-",), ()])
def test_the_question_can_come_through_a_pipe(desk: Desk, arguments: tuple[str, ...]) -> None:
    done = desk.run("run", *arguments, "--app", APP, "--agent", "echo", given="from\na pipe")
    assert (done.code, done.out) == (0, "You said: from\na pipe\n")


def test_for_programs_every_line_is_json_and_the_last_one_the_result(desk: Desk) -> None:
    done = desk.run("run", "2 and 3?", "--app", APP, "--agent", "adds", "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    *events, result = lines
    assert done.code == 0
    assert {event["kind"] for event in events} >= {"message", "turn.started", "turn.ended"}
    assert len({event["id"] for event in events}) == len(events)
    assert result["kind"] == "result"
    assert result["text"].startswith("# The sum")
    assert (result["exit"], result["state"]) == (0, "done")


def test_a_turn_that_fails_exits_with_1_and_its_story_but_no_traceback(desk: Desk) -> None:
    done = desk.run("run", "hello", "--app", APP, "--agent", "fails")
    assert done.code == 1
    assert done.err.count("no such thing") == 1, "a refusal is told once"
    assert "Traceback" not in done.err
    told = desk.run("run", "hello", "--app", APP, "--agent", "fails", "--json")
    error = json.loads(told.out.splitlines()[-1])["error"]
    assert "attempt 1" in error["chain"][0], "with its chain for programs"


def test_an_answer_that_is_not_whole_is_followed_by_why(desk: Desk) -> None:
    done = desk.run("run", "hello", "--app", APP, "--agent", "runs-out")
    assert (done.code, done.out) == (0, "It is\n")
    assert "the answer is not whole: the model reached its limit of tokens (max_tokens)" in done.err
    assert "(not whole: length)" in desk.run("chats", "show", "last", "--app", APP).out
    told = desk.run("run", "hello", "--app", APP, "--agent", "runs-out", "--json")
    messages = [line["message"] for line in map(json.loads, told.out.splitlines()) if line["kind"] == "message"]
    assert [message.get("finish") for message in messages] == [None, "length"]


def test_an_answer_that_was_made_without_a_tool_server_is_followed_by_why(desk: Desk) -> None:
    (desk.folder / "holdfast.toml").write_text('[mcp.gone]\ncommand = "no-such-program"\n')
    done = desk.run("run", "hello", "--agent", "scripted")
    assert (done.code, done.out) == (0, "You said: hello\n")
    assert "the MCP server 'gone' is not available: its command 'no-such-program' was not found" in done.err


def test_a_chat_that_waits_for_a_person_exits_with_4_and_goes_on_once_answered(desk: Desk) -> None:
    waits = desk.run("run", "pay", "--app", APP, "--agent", "pays")
    assert waits.code == 4
    assert "holdfast chats approve or deny chat_" in waits.err
    assert desk.run("chats", "approve", "last", "--app", APP).code == 0
    later = desk.run("run", "--app", APP, "--chat", "last")
    assert (later.code, later.out) == (0, "You said: pay\n")
    assert "✓ pay(amount=5)" in later.err
    chat = json.loads(desk.run("chats", "show", "last", "--app", APP, "--json").out)
    said = [message for message in chat["messages"] if message["role"] == "user"]
    assert len(said) == 1, "it took no second turn"


def test_a_chat_goes_on_with_its_agent_and_with_the_model_that_it_was_begun_with(desk: Desk) -> None:
    first = desk.run("run", "one", "--app", APP, "--agent", "talks", "--model", "scripted")
    assert (first.code, first.out) == (0, "You said: one\n")
    again = desk.run("run", "two", "--app", APP, "--chat", "last", "--json")
    chats = json.loads(desk.run("chats", "list", "--json").out)
    assert chats["agent"] == "talks@scripted"
    assert json.loads(again.out.splitlines()[-1])["text"] == "You said: two"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("",), "the text is empty"),
        (("hello", "--agent", "nobody"), "there is no agent 'nobody'; this app has: adds, asks"),
        (("hello",), "this app has several agents: choose one with --agent"),
        (("hello", "--no-such"), "No such option"),
        (("hello", "--chat", "chat_no", "--agent", "echo"), "leave --agent and --model out"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_to_do(desk: Desk, arguments: tuple[str, ...], says: str) -> None:
    done = desk.run("run", *arguments, "--app", APP)
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_chat_that_does_not_exist_is_an_error_and_no_traceback(desk: Desk) -> None:
    done = desk.run("run", "hello", "--chat", "chat_no")
    assert (done.code, done.out) == (1, "")
    assert done.err == "holdfast: there is no chat 'chat_no': check the id, or whether it was deleted\n"


def test_a_reader_that_leaves_ends_it_quietly(desk: Desk) -> None:
    process = desk.start("run", "hello", "--app", APP, "--agent", "gated")
    assert process.stdout is not None
    assert process.stderr is not None
    desk.wait_at_the_gate(process)
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    assert process.wait(30) == 0
    process.stderr.close()


def test_an_interrupt_stops_the_turn_of_a_pipe_too(desk: Desk) -> None:
    process = desk.start("run", "hello", "--app", APP, "--agent", "talks", "--json")
    assert process.stdout is not None
    while '"kind":"delta"' not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 3
    result = json.loads(out.splitlines()[-1])
    assert (result["exit"], result["cause"]) == (3, "user")
    assert (result["text"], result["state"]) == (None, "stopped")
    assert result["partial_text"].startswith("and on ")


async def nobody_works(desk: Desk) -> None:
    """Until the worker counts as dead: its guard, which ends what it left behind, is gone as well."""

    async def all_dead() -> bool:
        return not any(is_live(lease) for lease in await app.store.list_workers())

    async with App(agents=AGENTS, home=str(desk.folder / ".holdfast")) as app:
        await eventually(all_dead)


def test_a_turn_whose_terminal_was_killed_goes_on_with_the_next_worker(desk: Desk) -> None:
    process = desk.start("run", "go", "--app", APP, "--agent", "gated")
    desk.wait_at_the_gate(process)
    process.kill()
    process.communicate()
    asyncio.run(nobody_works(desk))
    found = json.loads(desk.run("doctor", "--app", APP, "--json").out)
    assert [finding["code"] for finding in found["findings"] if finding["wrong"]] == ["no_worker_for_agent"]
    desk.open_the_gate()
    later = desk.run("run", "and now?", "--app", APP, "--chat", "last")
    assert later.code == 0, later.err
    assert later.out == "You said: and now?\n", "of the turn that took the message"
    assert "You said: go\n" in later.err
