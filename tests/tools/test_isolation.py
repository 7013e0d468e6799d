"""Bodies in a process of their own: what goes in, what comes out, and that they end when nobody wants them."""

import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from holdfast.agent import Agent, AgentLimits
from holdfast.app import App
from holdfast.core.budgets import BudgetLeft
from holdfast.core.records import Cause, File, ToolResult
from holdfast.errors import ConfigError, ToolFailed
from holdfast.models.scripted import Call as ModelCall
from holdfast.models.scripted import ScriptedModel
from holdfast.tools.base import FILES_BYTES_MAX, Tool, tool
from holdfast.tools.context import ToolContext
from holdfast.tools.isolation.process import Isolated
from holdfast.worker.guard import Guard
from holdfast.worker.tool_body import Body, Returned, SyncPool
from tests.support.deaths import Mortal
from tests.support.waiting import until
from tests.tools import isolates

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="deaths are watched by pidfd, which Linux has")

BOUND_S = 60.0


class Caller:
    def __init__(self, guard: Guard, pool: SyncPool) -> None:
        self.guard = guard
        self.pool = pool
        self.progress: list[str] = []

    def body(self, made: Tool) -> Body:
        context = ToolContext(
            call_id="call_1",
            chat_id="chat_1",
            owner="anna",
            metadata={"colour": "red"},
            say=self.progress.append,
            children=self.guard,
        )
        return Body(made, "call_1", context, set())

    async def __call__(self, made: Tool, **arguments: Any) -> Returned:
        returned = await self.body(made).run(json.dumps(arguments), self.pool.run)
        assert returned is not None
        return returned


@pytest.fixture
def call(guard: Guard, pool: SyncPool) -> Caller:
    return Caller(guard, pool)


async def test_a_body_runs_in_the_main_thread_of_another_process_that_knows_no_secret(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    returned = await call(isolates.where, note="é\n'")
    pid, main_thread, names, note = json.loads(returned.content)
    assert pid != os.getpid()
    assert main_thread
    assert "HOLDFAST_MARK" in names
    assert {"OPENAI_API_KEY", "PYTHONPATH"} & set(names) == set()
    assert note == "é\n'"


async def test_typed_arguments_arrive_typed(call: Caller) -> None:
    returned = await call(isolates.move, to={"x": 3}, at="2026-01-02T03:04:05Z", tags=["a"])
    assert json.loads(returned.content) == {"x": 3, "type": "Point", "year": 2026, "tags": ["a"]}


async def test_files_come_along(call: Caller) -> None:
    returned = await call(isolates.picture)
    assert returned.content == "a chart"
    assert returned.files == (File(media_type="image/png", uri="data:,é", name="c.png"),)


async def test_a_file_of_megabytes_arrives_at_the_cost_of_its_bytes(call: Caller) -> None:
    """It comes in pieces of a pipe, in one line. Each byte was looked at again with every piece behind it."""
    size = FILES_BYTES_MAX - 100
    returned = await call(isolates.poster, size=size)
    assert returned.content == "a poster"
    assert [len(file.uri) for file in returned.files] == [len("data:,") + size]


async def test_where_no_descriptor_is_left_a_call_keeps_none(call: Caller) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = _open_descriptors()
    for left in range(1, 6):  # fewer than the pipes of a call need
        resource.setrlimit(resource.RLIMIT_NOFILE, (_free_from(left), limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                await _run_here(call)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert _open_descriptors() == before


def _open_descriptors() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir())


def _free_from(count: int) -> int:
    """The limit at which so many more can be opened."""
    used = _open_descriptors()
    free = [fd for fd in range(max(used) + 10) if fd not in used]
    return free[count - 1] + 1


async def _run_here(call: Caller) -> None:
    made = Isolated(isolates.where.function, None, 1_000, (), None)
    await made.run({"note": ""}, call.body(isolates.where).context)


async def test_the_facts_of_the_call_are_known_and_progress_and_spending_are_passed_on(call: Caller) -> None:
    body = call.body(isolates.facts)
    returned = await body.run("{}", call.pool.run)
    assert returned is not None
    assert body.context.spending == (701, 0.5)
    assert json.loads(returned.content) == {
        "call_id": "call_1",
        "key": "chat_1:call_1",
        "chat_id": "chat_1",
        "owner": "anna",
        "metadata": {"colour": "red"},
    }
    assert call.progress == ["half way", "nearly there"]


class Worker:
    """What a worker does for a body: it keeps up to 1,000 characters, and knows what is left."""

    def __init__(self) -> None:
        self.kept = {"before": "yes"}

    async def keep(self, key: str, text: str) -> None:
        await asyncio.sleep(0)
        if len(text) > 1_000:
            raise ToolFailed("too long")
        self.kept[key] = text

    async def budget_left(self) -> BudgetLeft:
        return BudgetLeft(tokens=7, cost=None)

    async def run(self, call: Caller, made: Tool, **arguments: str) -> Returned:
        body = call.body(made)
        context = body.context
        context._kept, context._keep, context._budget_left = (lambda: self.kept), self.keep, self.budget_left
        returned = await body.run(json.dumps(arguments), call.pool.run)
        assert returned is not None
        return returned


async def test_what_a_body_keeps_the_worker_keeps_and_it_knows_what_is_left_of_the_budget(call: Caller) -> None:
    """It was kept in the process, and went with it."""
    worker = Worker()
    returned = await worker.run(call, isolates.keeper)
    kept = {"before": "yes", "session": "é\n1", "place": "there"}
    assert worker.kept == kept
    assert json.loads(returned.content) == [{"before": "yes"}, kept, 7, None, "too long"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("flood", "The tool's process asked what cannot be answered, or too much at once."),
        ("unknown", "a tool's process asks for nothing like 'money'"),
        ("impatient", "done"),
    ],
)
async def test_a_body_that_asks_too_much_or_does_not_wait_holds_up_only_itself(
    call: Caller, how: str, words: str
) -> None:
    worker = Worker()
    returned = await worker.run(call, isolates.curious, how=how)
    assert returned.content == words
    assert (returned.error, returned.unknown) == (how != "impatient", how == "flood")
    assert worker.kept.get("last") == ("word" if how == "impatient" else None)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "ValueError: second\nbecause of KeyError: 'first'"),
        ("tool_failed", "in its own words"),
        ("unknown", "hung up"),
        ("exit", "SystemExit: 3"),
        ("leave", "The tool's process ended with exit code 7, and gave no answer.\nlast words"),
        ("segv", "The tool's process was ended by a signal: segmentation fault (SIGSEGV), and gave no answer."),
        ("object", "The result of type object cannot be turned into JSON"),
        ("babble", "The tool's process said what cannot be read."),
    ],
)
async def test_an_error_comes_back_with_its_type_and_its_words(call: Caller, how: str, words: str) -> None:
    returned = await call(isolates.fail, how=how)
    assert returned.error
    assert returned.content.startswith(words)
    assert (returned.unknown, returned.ended) == (how in ("leave", "segv", "unknown", "babble"), True)


async def test_text_that_is_no_text_still_arrives(call: Caller) -> None:
    returned = await call(isolates.fail, how="surrogate")
    assert not returned.error
    assert "\x00" not in returned.content


async def test_progress_of_any_length_costs_no_result(call: Caller) -> None:
    assert await call(isolates.shout) == Returned(content="done")
    assert [set(text) for text in call.progress] == [{"x"}]


async def test_a_child_that_returns_from_a_body_does_not_answer_for_it(call: Caller) -> None:
    assert await call(isolates.fork) == Returned(content="the body")


async def test_too_much_of_a_result_keeps_its_head_and_its_tail(call: Caller) -> None:
    returned = await call(isolates.much)
    assert returned.content.startswith("aaa")
    assert returned.content.endswith("az")
    assert len(returned.content) < 1_100


async def test_arguments_that_do_not_fit_start_no_process(call: Caller) -> None:
    returned = await call(isolates.move, to={"x": "three"}, at="2026-01-02T03:04:05Z")
    assert returned.error
    assert returned.content.startswith("The arguments do not fit: to.x")


async def test_large_arguments_arrive(call: Caller) -> None:
    returned = await call(isolates.where, note="x" * 300_000)
    assert json.loads(returned.content)[3] == "x" * 300_000


async def test_a_body_that_blocks_for_good_is_ended_by_a_stop_with_all_it_started(
    call: Caller, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    body = call.body(isolates.block)
    work = asyncio.ensure_future(body.run(json.dumps({"path": str(path)}), call.pool.run))
    await until(lambda: path.exists() and path.read_text().endswith("\n"), BOUND_S)
    own, child = map(int, path.read_text().split())
    with Mortal(own) as process, Mortal(child) as escapee:
        body.cancel(Cause.USER)
        assert await work is None
        assert process.dead
        assert escapee.dead
    assert not body.abandoned


async def test_a_body_that_is_late_is_ended_and_says_so(call: Caller) -> None:
    body = call.body(isolates.late)
    returned = await body.run("{}", call.pool.run)
    assert returned == Returned(content="Timed out after 1.5 s. It may have taken effect in part.", error=True)
    assert not body.abandoned


async def test_a_process_that_answers_and_does_not_leave_is_ended(call: Caller) -> None:
    assert await call(isolates.linger) == Returned(content="answered")


async def test_a_variable_that_was_named_is_passed_on(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_PASSED_ON", "yes")
    assert await call(isolates.passed_on) == Returned(content="yes")
    monkeypatch.delenv("HOLDFAST_TEST_PASSED_ON")
    assert await call(isolates.passed_on) == Returned(content="")


async def test_calls_leave_no_thread_no_file_and_no_process(call: Caller) -> None:
    await call(isolates.where)
    before = held()
    for _ in range(3):
        await call(isolates.where)
        await call(isolates.fail, how="segv")
    await until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def held() -> tuple[int, int, int]:
    """Files, threads and processes. What a test before this one left may still go."""
    process = psutil.Process()
    return process.num_fds(), threading.active_count(), len(process.children())


def test_called_by_hand_it_is_the_function_it_was_made_from() -> None:
    assert isolates.where("x")[0] == os.getpid()


def test_a_function_that_nobody_can_import_is_a_mistake() -> None:
    def inner() -> str:
        """Made here."""
        return "x"

    with pytest.raises(ConfigError, match="define it at the top of a module"):
        tool(isolation="process")(inner)
    with pytest.raises(ConfigError, match="it can be 'none' or 'process'"):
        tool(isolation="thread")(inner)  # type: ignore[call-overload]


SCRIPT = """
from holdfast import Agent, App
from holdfast.tools.base import call_tool, tool
from holdfast.tools.context import ToolContext

@tool(isolation="process")
def twice(n: int) -> int:
    "Twice."
    return 2 * n

app = App(agents=[Agent("doubler", "scripted", tools=[twice])])  # made in the child, too, which imports the script

if __name__ == "__main__":
    import asyncio
    print(asyncio.run(call_tool(twice, '{"n": 21}', ToolContext(), None)))
"""


def test_a_function_of_the_script_that_runs_is_found_and_one_typed_in_is_not(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("42\n", "")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert "ConfigError" in done.stderr
    assert "interactive session" in done.stderr


async def test_what_a_body_kept_is_found_by_the_next_process_of_the_chat(store_url: str) -> None:
    model = ScriptedModel([ModelCall(name="keeper")], [ModelCall(name="keeper")], "Done.")
    app = App(store_url, [Agent("a", model, tools=[isolates.keeper], limits=AgentLimits(tokens=1_000_000))])
    async with app, app.worker():
        chat = await app.create("a", "go")
        assert await chat.text() == "Done."
        results = [part for one in await chat.messages() for part in one.parts if isinstance(part, ToolResult)]
    first, second = (json.loads(result.content) for result in results)
    kept = {"session": "é\n1", "place": "there"}
    assert [first[0], first[1], second[0], second[1]] == [{}, kept, kept, kept]
    assert second[2] < 1_000_000, "what is left of the turn's budget"
    assert "up to 1,000 characters" in second[4]
