"""One of every tool that holdfast ships, and the table of what befalls each: `test_every_tool.py` carries it out.

In the arguments ROOT, PORT, SESSION and # stand for what is known only when the call is made.
"""

import json
import sys
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import holdfast
from holdfast.agent import Agent, AgentLimits
from holdfast.config import Permissions
from holdfast.core.limits import LIMITS
from holdfast.core.records import Message, Role, ToolResult
from holdfast.mcp_servers import McpServer
from holdfast.models.base import (
    CallArguments,
    CallEnded,
    CallStarted,
    Request,
    ResponseFinished,
    StreamPart,
    TextDelta,
)
from holdfast.tools.base import Tool
from tests.support import browser
from tests.support.programs import ROOT
from tests.support.scale import scaled
from tests.support.system_calls import Place
from tests.tools import isolates
from tests.tools.coded import CodingBench

BROWSER = browser.find()
TINY = str(ROOT / "tests" / "support" / "mcp_tiny.py")
GIGABYTE = 1 << 30
# Processes cost: some in `make test`, a hundred in `make long`.
SHELLS, PYTHONS = scaled(6, 100), scaled(3, 100)
READ_ON = scaled(GIGABYTE // 4, GIGABYTE)  # of what is read to its end; everything else is left off
DEAF = "trap '' TERM; touch ROOT/{0}; while :; do sleep 0.2; done"

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """What is done to one tool. A text says why not, or, with `::`, which other test does it."""

    tool: str
    replay: str
    middle: Arguments | str  # a call that does not end by itself
    killed: str  # what becomes of that call when another worker takes the chat over: a part of its result
    flood: Arguments | str  # a call that would get a gigabyte
    many: Arguments | str  # the #-th of a hundred
    own: str = ""  # a part of the #-th result
    cut: str = ""  # what the result of `flood` ends with, or nearly
    held_at: Place | None = None  # where the thread of `middle` stands
    before: Place | None = (
        None  # where it stands instead while others get as far: a busy process would cost their time
    )
    begun: str = ""  # a file that is there when `middle` is under way
    session: str = ""  # the command of the session that `middle` and `many` are about
    warm: Arguments | None = None  # a call before `middle`, for what takes long to start
    label: str = ""  # where a tool has several rows
    count: int = 100  # how many `many` are

    @property
    def name(self) -> str:
        return self.label or self.tool


UNKNOWN = "its worker was lost before it reported"
TOMORROW = (datetime.now(UTC) + timedelta(days=1)).isoformat()
NO_BODY = "no body: the call is handed over in one commit, and nobody waits for it here"
NO_OUTPUT = "its result is a few words of ours"
PATCH = "*** Begin Patch\n*** Update File: {0}\n-old\n+new\n*** End Patch"
ADDS = "*** Begin Patch\n*** Add File: many/#.patched\n+#\n*** End Patch"

TABLE = (
    Row(
        "read_file",
        "pure",
        middle={"path": "read.txt"},
        held_at=("open", "read.txt"),
        killed="old",
        flood={"path": "gigabyte"},
        cut="line 1 is cut here",
        many={"path": "many/#.txt"},
        own="I am #.",
    ),
    Row(
        "list_files",
        "pure",
        middle={"path": "listed"},
        held_at=("open", ".gitignore"),
        killed="one.txt",
        flood={"path": "crowd"},
        cut="stopped after 1,000 names",
        many={"pattern": "#.txt", "path": "many"},
        own="#.txt",
    ),
    Row(
        "search_files",
        "pure",
        middle={"text": "old", "path": "searched"},
        held_at=("open", "searched.txt"),
        killed="searched.txt:1: old",
        flood={"text": "x", "files": "gigabyte*"},
        cut="2 of more than 2,097,152 bytes left out",
        many={"text": "I am #.", "path": "many"},
        own="#.txt:1",
    ),
    Row(
        "search_files",
        "pure",
        before=("open", "slow.txt"),
        label="search_files with a pattern",
        middle={"text": "(a+)+$", "path": "slow", "regex": True},
        killed="took too long",
        flood={"text": "x.*", "files": "gigabyte*", "regex": True},
        cut="2 of more than 2,097,152 bytes left out",
        many={"text": "I am #[.]", "files": "many/#.txt", "regex": True},
        own="many/#.txt:1",
        count=PYTHONS,
    ),
    Row(
        "write_file",
        "idempotent",
        middle={"path": "write/written.txt", "content": "new\n"},
        held_at=("os.rename", "written.txt"),
        killed="Wrote 4 bytes",
        flood={"path": "gigabyte.bin", "content": "new\n"},
        cut="Read it first",
        many={"path": "many/#.new", "content": "#"},
        own="many/#.new",
    ),
    Row(
        "edit_file",
        "unsafe",
        middle={"path": "edit/edited.txt", "old": "old", "new": "new"},
        held_at=("os.rename", "edited.txt"),
        killed=UNKNOWN,
        flood={"path": "gigabyte", "old": "x", "new": "y"},
        cut="are not edited",
        many={"path": "many/#.txt", "old": "I am", "new": "It is"},
        own="Edited many/#.txt",
    ),
    Row(
        "apply_patch",
        "unsafe",
        middle={"patch": PATCH.format("patch/patched.txt")},
        held_at=("os.rename", "patched.txt"),
        killed=UNKNOWN,
        flood={"patch": PATCH.format("gigabyte")},
        cut="are not edited",
        many={"patch": ADDS},
        own="added many/#.patched",
    ),
    Row(
        "shell",
        "unsafe",
        middle={"command": DEAF.format("shell.begun")},
        begun="shell.begun",
        killed=UNKNOWN,
        flood={"command": f"head -c {READ_ON} /dev/zero"},
        cut="[exit code 0]",
        many={"command": "echo I am #."},
        own="I am #.",
        count=SHELLS,
    ),
    Row(
        "shell_through",
        "unsafe",
        middle="tests/tools/test_shell.py::test_what_runs_behind_an_exec_is_ended_by_its_mark",
        killed="what runs inside of something else is out of the guard's reach: docs/how-to/shell.md says so",
        flood="it reads what is said as `shell` does",
        many={"command": "echo I am #."},
        own="I am #.",
        count=SHELLS,
    ),
    Row(
        "start_session",
        "unsafe",
        middle={"command": DEAF.format("start.begun"), "wait_s": 600},
        begun="start.begun",
        killed=UNKNOWN,
        flood={"command": f"head -c {READ_ON} /dev/zero", "wait_s": 600},
        cut="[exit code 0]",
        many={"command": "echo I am #.; sleep 1000", "wait_s": 60},
        own="session",
    ),
    Row(
        "read_session",
        "pure",
        session="echo up; sleep 1000",
        middle={"session": "SESSION", "wait_s": 600},
        killed="There is no session",
        flood="`start_session` reads the same gigabyte",
        many={"session": "SESSION", "wait_s": 0},
        own="it runs",
    ),
    Row(
        "write_session",
        "unsafe",
        session="echo up; while read line; do echo $line >> ROOT/write.begun; done",
        middle={"session": "SESSION", "text": "a line\n", "wait_s": 600},
        begun="write.begun",
        killed=UNKNOWN,
        flood="`start_session` reads the same gigabyte",
        many={"session": "SESSION", "text": "#\n", "wait_s": 0},
        own="it runs",
    ),
    Row(
        "end_session",
        "idempotent",
        session="trap 'touch ROOT/end.begun' TERM; echo up; while :; do sleep 0.1; done",
        middle={"session": "SESSION"},
        begun="end.begun",
        killed="it is not there any more",
        flood="`start_session` reads the same gigabyte",
        many={"session": "SESSION"},
        own="",
    ),
    Row(
        "gemini",
        "idempotent",
        middle={"task": "[[hangs]]"},
        begun="coding.begun",
        killed="Done: You were interrupted while you worked on the task below",
        flood={"task": "[[flood]]"},
        cut="[session gemini-",
        many={"task": "I am #."},
        own="Done: I am #.",
        count=min(PYTHONS, LIMITS.keepsakes_max),  # each keeps its session
    ),
    Row(
        "fetch",
        "pure",
        middle={"urls": ["http://127.0.0.1:PORT/late1"]},
        begun="/late1",
        killed="after all",
        flood={"urls": ["http://127.0.0.1:PORT/endless"]},
        cut="cut at 2,097,152 bytes",
        many={"urls": ["http://127.0.0.1:PORT/ok?#"]},
        own="ok?#",
    ),
    Row(
        "http_get",
        "pure",
        middle={"requests": [{"url": "http://127.0.0.1:PORT/late2"}]},
        begun="/late2",
        killed="after all",
        flood={"requests": [{"url": "http://127.0.0.1:PORT/endless"}]},
        cut="cut at 2,097,152 bytes",
        many={"requests": [{"url": "http://127.0.0.1:PORT/ok?#"}]},
        own="ok?#",
    ),
    Row(
        "http_request",
        "unsafe",
        middle={"requests": [{"method": "POST", "url": "http://127.0.0.1:PORT/late3"}]},
        begun="/late3",
        killed=UNKNOWN,
        flood={"requests": [{"method": "POST", "url": "http://127.0.0.1:PORT/endless"}]},
        cut="cut at 2,097,152 bytes",
        many={"requests": [{"method": "POST", "url": "http://127.0.0.1:PORT/echo", "text": "I am #."}]},
        own="I am #.",
    ),
    Row(
        "web_search",
        "pure",
        middle={"query": "late"},
        begun="/engine/search?q=late&format=json",
        killed="after all",
        flood={"query": "flood"},
        cut="more than 2,097,152 bytes",
        many={"query": "I-am-#"},
        own="q=I-am-#",
    ),
    Row(
        "browse_open",
        "pure",
        warm={"url": "http://127.0.0.1:PORT/ok"},
        middle={"url": "http://127.0.0.1:PORT/late4"},
        begun="/late4",
        killed="after all",
        flood={"url": "http://127.0.0.1:PORT/endless"},
        cut="it was cut off at",
        many={"url": "http://127.0.0.1:PORT/ok?#"},
        own="ok?#",
        count=PYTHONS,
    ),
    *(
        Row(
            f"browse_{name}",
            replay,
            middle="tests/tools/test_browse.py::test_a_page_that_breaks_a_bound_ends_its_browser_and_the_model_is_told",
            killed="what is open does not outlive its worker; `browse_open` is killed in the middle",
            flood="`browse_open` reads the same page",
            many=arguments,
            own="No page is open in this chat",
        )
        for name, replay, arguments in (
            ("read", "pure", {}),
            ("click", "unsafe", {"number": 1}),
            ("type", "unsafe", {"number": 1, "text": "I am #."}),
            ("screenshot", "pure", {}),
        )
    ),
    *(
        Row(
            name,
            "pure",
            middle={"source": f"http://127.0.0.1:PORT/{late}"},
            begun=f"/{late}",
            killed=f"{late} is neither a picture nor audio nor video",
            flood={"source": "http://127.0.0.1:PORT/endless"} if name == "look" else "`look` fetches as it does",
            cut="has more than 33,554,432 bytes",
            many={"source": "many/#.txt"},
            own="many/#.txt is neither a picture",
        )
        for name, late in (("look", "late5"), ("transcribe", "late6"))
    ),
    Row(
        "plan",
        "pure",
        middle="it waits for nothing",
        killed="it waits for nothing",
        flood="a plan has 50 items of 300 characters",
        many={"items": [{"text": "I am #."}]},
        own="I am #.",
    ),
    Row(
        "read_result",
        "pure",
        middle="it waits for the store alone, which has a deadline of its own",
        killed="it waits for the store alone, which has a deadline of its own",
        flood="a result is kept up to its tool's limit, and read by 30,000 characters",
        many={"call": "call #"},
        own="there is no result of a call 'call #'",
    ),
    Row(
        "t_echo",
        "unsafe",
        middle={"what": "silence"},
        killed=UNKNOWN,
        flood={"what": "flood"},
        cut="Verify before you try again",
        many={"n": "I am #."},
        own="I am #.",
    ),
    Row(
        "stay",
        "unsafe",
        middle={"path": "ROOT/isolated.begun"},
        begun="isolated.begun",
        killed=UNKNOWN,
        flood="`flood` is the same with another body",
        many={"path": "ROOT/root"},
        own="came back",
        count=PYTHONS,
    ),
    Row(
        "flood",
        "unsafe",
        middle="`stay` is the same with another body",
        killed="`stay` is the same with another body",
        flood={"printed": READ_ON, "returned": READ_ON},
        cut="rrr",
        many="`stay` is the same with another body",
    ),
    Row(
        "spawn_agent",
        "pure",
        middle=NO_BODY,
        killed="tests/tools/test_sub_agents.py::test_a_sigterm_to_the_worker_of_the_child_leaves_nobody_stuck",
        flood=NO_OUTPUT,
        many={"agent": "child", "task": "Be #."},
        own="agent",
    ),
    Row(
        "wait_agent",
        "pure",
        middle="tests/tools/test_sub_agents.py::test_a_stop_reaches_the_children",
        killed="tests/tools/test_sub_agents.py::test_a_sigterm_to_the_worker_of_the_child_leaves_nobody_stuck",
        flood="a child's answer is a model's, which has limits of its own",
        many={"agent_id": "chat_#"},
        own="ended without a recorded answer",
    ),
    Row(
        "message_agent",
        "pure",
        middle=NO_BODY,
        killed="tests/crash/test_reaching.py::test_a_child_is_reached_and_the_call_answered_or_neither_wherever_the_worker_is_killed",
        flood=NO_OUTPUT,
        many={"agent_id": "chat_#", "message": "Be #."},
        own="none of your agents",
    ),
    Row(
        "list_agents",
        "pure",
        middle=NO_BODY,
        killed="it reads, in one commit with its answer",
        flood="it tells of 32 of them, each by the beginnings of its words",
        many={},
        own="[]",
    ),
    Row(
        "cancel_agent",
        "pure",
        middle=NO_BODY,
        killed="tests/crash/test_reaching.py::test_a_child_is_reached_and_the_call_answered_or_neither_wherever_the_worker_is_killed",
        flood=NO_OUTPUT,
        many={"agent_id": "chat_#"},
        own="none of your agents",
    ),
    Row(
        "ask_user",
        "pure",
        middle="tests/tools/test_outside.py::test_a_stop_answers_what_nobody_answered",
        killed="tests/tools/test_outside.py::test_a_question_survives_the_end_of_every_process_and_is_answered_once",
        flood="an answer is a message, which has limits of its own",
        many={"question": "#?"},
        own="Not answered",
    ),
    Row(
        "sleep_until",
        "pure",
        middle=NO_BODY,
        killed="tests/tools/test_outside.py::test_sleeping_is_a_timer_of_the_chat_and_not_a_sleeping_worker",
        flood=NO_OUTPUT,
        many={"time": TOMORROW},
        own="",
    ),
    Row(
        "client_side",
        "pure",
        middle="tests/tools/test_outside.py::test_a_stop_answers_what_nobody_answered",
        killed="tests/tools/test_client_tools.py::test_a_worker_killed_before_it_acted_on_the_call_leaves_it_to_one_that_never_heard_of_it",
        flood="a submitted result is a message, which has limits of its own",
        many={"n": "#"},
        own="Not answered",
    ),
)


class Kit:
    """All of them, below one folder, and what their calls are about."""

    def __init__(self, folder: Path, port: int = 0, search_s: float = 60.0) -> None:
        self.folder, self.port = folder, port
        self.root = folder / "root"
        made: dict[str, Iterable[Tool]] = {
            "file_tools": holdfast.file_tools(self._filled(), search_s=search_s),
            "shell_tool": [
                holdfast.shell_tool(root=self.root),
                holdfast.shell_tool(root=self.root, name="shell_through", through=("env",)),
            ],
            "session_tools": holdfast.session_tools(root=self.root),
            "coding_agent": [self._coder()],
            "fetch_tool": [holdfast.fetch_tool()],
            "http_tools": holdfast.http_tools(),
            "web_search_tool": [holdfast.web_search_tool("searxng", url=f"http://127.0.0.1:{port or 1}/engine")],
            "browse_tools": holdfast.browse_tools(program=BROWSER, bytes_max=4 << 20),
            "look_tool": [holdfast.look_tool(self.root)],
            "transcribe_tool": [holdfast.transcribe_tool(self.root, weights=self.root / "weights")],
            "plan_tool": [holdfast.plan_tool()],
            "read_result_tool": [holdfast.read_result_tool()],
            "agent_tools": holdfast.agent_tools(["child"]),
            "ask_user": [holdfast.ask_user()],
            "sleep_until": [holdfast.sleep_until()],
            "client_tool": [holdfast.client_tool("client_side")],
            "tool": [isolates.stay, isolates.flood],  # where they run is what is ours of them
        }
        self.makers = frozenset(made)
        self.tools = {each.name: _unjudged(each) for tools in made.values() for each in tools}
        self.server = McpServer("t", command=sys.executable, args=["-I", "-S", TINY])

    def _coder(self) -> Tool:
        bench = CodingBench(self.folder)
        if not (self.folder / "cases.json").exists():
            bench.plan("success")
        return bench.tool("gemini", {"FLOOD_MEBIBYTES": str(READ_ON >> 20)})

    def _filled(self) -> Path:
        root = self.root
        if root.exists():
            return root
        for name in ("listed", "searched", "slow", "write", "edit", "patch", "crowd", "many"):
            (root / name).mkdir(parents=True)
        for path in ("read.txt", "listed/one.txt", "searched/searched.txt", "edit/edited.txt", "patch/patched.txt"):
            (root / path).write_text("old\n")
        (root / "listed/.gitignore").write_text("two.txt\n")  # what every listing of it reads, and no other does
        (root / "slow/slow.txt").write_text("a" * 40 + "b\n")
        return root

    def add_crowd(self) -> None:
        for n in range(100):
            (self.root / f"many/{n:03}.txt").write_text(f"I am {n:03}.\n")

    def add_gigabytes(self) -> None:
        for name in ("gigabyte", "gigabyte.bin"):
            with (self.root / name).open("wb") as file:
                file.write(b"x" * 10_000)
                file.truncate(GIGABYTE)
        for n in range(2_000):
            (self.root / f"crowd/{n:0200}").touch()

    @property
    def reach(self) -> str:
        """The rule by which the site on loopback is reached."""
        return f"allow reach(127.0.0.1:{self.port})"

    def agent(self, model: Any, **limits: int) -> Agent[Any]:
        return Agent(
            "all",
            model,
            tools=[*self.tools.values(), self.server],
            permissions=Permissions(mode="edit", rules=[self.reach, "allow call(*)", "allow call(t/*)"]),
            limits=AgentLimits(**limits),
        )

    def arguments(self, given: Arguments, *, session: str = "", n: int = 0) -> dict[str, Any]:
        text = json.dumps(given).replace("ROOT", str(self.folder)).replace("PORT", str(self.port))
        found: dict[str, Any] = json.loads(text.replace("SESSION", session).replace("#", f"{n:03}"))
        return found

    def litter(self) -> list[str]:
        """Temporary files, beside whatever they were for."""
        return sorted(str(path) for path in self.folder.rglob(".holdfast-*"))


def _unjudged(made: Tool) -> Tool:
    """What it may do is for other tests; a shell would ask."""
    asks = made.name.startswith(("shell", "start", "write_session", "gemini"))
    return replace(made, acts=lambda _: ()) if asks else made


class Orders:
    """A model that asks for the calls it is told of, once after each message of the user's."""

    name = provider = "orders"
    context_limit = None

    def __init__(self) -> None:
        self.calls: Sequence[tuple[str, Arguments]] = ()

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        calls = self.calls if request.messages[-1].role is Role.USER else ()
        for index, (name, arguments) in enumerate(calls):
            yield CallStarted(index=index, name=name)
            yield CallArguments(index=index, text=json.dumps(arguments))
            yield CallEnded(index=index)
        if not calls:
            yield TextDelta(text="Done.")
        yield ResponseFinished(reason="tool_calls" if calls else "stop")


def results(messages: Iterable[Message]) -> list[ToolResult]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolResult)]
