"""A file that changed since a chat last saw it is not changed by that chat before it looked again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import Agent
from holdfast.core.records import State, ToolResult
from holdfast.errors import ToolFailed
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.system.threads import start
from holdfast.tools.context import ToolContext
from holdfast.tools.files import versions
from holdfast.tools.files.root import Root
from holdfast.tools.files.tools import file_tools
from tests.support.turns import rested, running, said
from tests.tools.filed import Files

PATCH = "*** Begin Patch\n*** Update File: f\n-b\n+B\n*** End Patch"
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("write_file", {"path": "f", "content": "B\n"}),
    ("edit_file", {"path": "f", "old": "b", "new": "B"}),
    ("apply_patch", {"patch": PATCH}),
]


class Chat(Files):
    """One chat's calls, with its history. `successor` is the same chat on a worker that remembers nothing."""

    def __init__(self, root: Path, chat_id: str = "chat_1", history: list[ToolResult] | None = None) -> None:
        super().__init__(root)
        self.history: list[ToolResult] = [] if history is None else history
        self.context = ToolContext(chat_id=chat_id, results=lambda: reversed(self.history))

    def __call__(self, name: str, **arguments: Any) -> str:
        try:
            text = self.output(name, **arguments).text
        except ToolFailed as error:
            self.history.append(ToolResult(call_id="c", name=name, content=str(error), error=True))
            raise
        self.history.append(ToolResult(call_id="c", name=name, content=text))
        return text

    def successor(self) -> "Chat":
        return Chat(self.root, self.context.chat_id, self.history)


Taken = Callable[[Chat], Chat]
TAKEN = pytest.mark.parametrize("taken", [lambda chat: chat, Chat.successor], ids=["same worker", "another worker"])


@pytest.fixture
def chat(files: Files) -> Chat:
    (files.root / "f").write_text("a\nb\n")
    return Chat(files.root)


@TAKEN
@pytest.mark.parametrize(("name", "arguments"), CHANGES)
def test_a_file_is_changed_that_is_as_the_chat_saw_it(
    chat: Chat, taken: Taken, name: str, arguments: dict[str, Any]
) -> None:
    chat("read_file", path="f")
    chat = taken(chat)
    chat(name, **arguments)
    assert "B" in (chat.root / "f").read_text()
    taken(chat)("edit_file", path="f", old="B", new="C")  # what it wrote it knows


@TAKEN
@pytest.mark.parametrize(("name", "arguments"), CHANGES)
def test_a_file_that_changed_since_is_not_and_the_model_looks_again(
    chat: Chat, taken: Taken, name: str, arguments: dict[str, Any]
) -> None:
    chat("read_file", path="f")
    (chat.root / "f").write_text("a\nb\nc of another\n")
    chat = taken(chat)
    assert "changed it since you last saw it" in chat.refused(name, **arguments)
    assert (chat.root / "f").read_text() == "a\nb\nc of another\n"
    chat("read_file", path="./f")
    chat(name, **arguments)
    assert "B" in (chat.root / "f").read_text()


def test_the_difference_is_shown_and_counts_as_seen(chat: Chat) -> None:
    chat("read_file", path="f")
    (chat.root / "f").write_text("a\nb\nc\n")
    shown = chat.refused("edit_file", path="f", old="b", new="B")
    assert "--- as you saw it\n+++ as it is\n@@ -1,3 +1,4 @@\n a\n b\n+c\n" in shown
    chat.successor()("edit_file", path="f", old="b", new="B")
    assert (chat.root / "f").read_text() == "a\nB\nc\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "x\n" * 1_000),
        ("a\n", "x" * 20_000),
        ("".join(f"{number}\n" for number in range(9_000)), "".join(f"{number} x\n" for number in range(9_000))),
    ],
)
def test_a_long_difference_is_cut_and_does_not_count(chat: Chat, before: str, after: str) -> None:
    (chat.root / "f").write_text(before)
    chat("read_file", path="f")
    (chat.root / "f").write_text(after)
    shown = chat.refused("write_file", path="f", content="mine")
    assert len(shown) < 9_000
    assert "read the file again" in shown
    assert "last saw it" in chat.refused("write_file", path="f", content="mine")


def test_a_file_that_was_never_read_is_not_overwritten_but_edited_where_the_text_fits(chat: Chat) -> None:
    assert "you have not read it" in chat.refused("write_file", path="f", content="new")
    assert (chat.root / "f").read_text() == "a\nb\n"
    chat("write_file", path="new", content="x")
    chat("edit_file", path="f", old="b", new="B")


def test_a_rerun_of_a_write_after_a_crash_finds_its_own_work(chat: Chat) -> None:
    chat("read_file", path="f")
    chat("write_file", path="f", content="mine\n")
    del chat.history[-1]  # its result was not committed
    assert "Wrote 5 bytes" in chat.successor()("write_file", path="f", content="mine\n")


def test_what_one_chat_read_another_has_not(chat: Chat) -> None:
    chat("read_file", path="f")
    other = Chat(chat.root, "chat_2")
    assert "you have not read it" in other.refused("write_file", path="f", content="x")


def test_edits_of_one_batch_know_each_other_before_their_results_are_kept(chat: Chat) -> None:
    (chat.root / "f").write_text("".join(f"<{number}>\n" for number in range(12)))
    chat("read_file", path="f")
    problems: list[BaseException] = []

    def edit(number: int) -> None:
        try:
            chat.output("edit_file", path="f", old=f"<{number}>", new=f"({number})")
        except BaseException as error:  # noqa: BLE001  for the test to see
            problems.append(error)

    editors = [start(f"test-{number}", lambda number=number: edit(number)) for number in range(12)]  # type: ignore[misc]
    for editor in editors:
        editor.join()
    assert problems == []


def test_a_file_that_says_it_is_of_some_version_is_not_believed(chat: Chat) -> None:
    """What a file holds has the number of its line before it, and stands before what the tool says."""
    chat("read_file", path="f")
    told = chat.history[-1].content.rpartition("\n")[2]
    (chat.root / "f").write_text("changed")
    (chat.root / "trap").write_text(told)
    chat("read_file", path="trap")
    chat.history[0:1] = []
    other = chat.successor()
    assert "you have not read it" in other.refused("write_file", path="f", content="x")


def test_what_is_remembered_is_bounded(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "REMEMBERED_MAX", 3)
    monkeypatch.setattr(versions, "TEXTS_CHARS_MAX", 50)
    kept = versions.Versions()
    context = ToolContext(chat_id="c")
    for number in range(5):
        with Root(chat.root).place(f"f{number}") as place:
            kept.remember(place, versions.Version(str(number), "x" * 20), context)
    assert [version.tag for version in kept._seen.values()] == ["3", "4"]
    assert kept._chars == 40


async def test_a_worker_gives_its_tools_what_the_chat_has_seen(store_url: str, tmp_path: Path) -> None:
    """A second app is another worker: it knows what the chat saw from the chat's history alone."""
    (tmp_path / "f").write_text("a\nb\n")
    model = ScriptedModel(
        [Call(name="read_file", arguments={"path": "f"})],
        "Read.",
        [Call(name="write_file", arguments={"path": "f", "content": "mine"})],
        [Call(name="write_file", arguments={"path": "f", "content": "mine again"})],
        "Written.",
        [Call(name="write_file", arguments={"path": "f", "content": "too late"})],
        "Refused.",
    )
    for text in ("Read.", "Write.", "Write again."):
        agent = Agent("dev", model, tools=file_tools(tmp_path))
        async with running(store_url, agent) as (app, _):
            if text == "Read.":
                chat_id = (await app.create("dev", text)).id
            else:
                await app.chat(chat_id).send(text)
            assert await rested(app.chat(chat_id)) is State.IDLE
            texts = [words for role, words in said(await app.chat(chat_id).messages()) if role == "tool"]
        if text == "Write.":
            assert (tmp_path / "f").read_text() == "mine again"
            (tmp_path / "f").write_text("of another program")
    assert "changed it since you last saw it" in texts[-1]
    assert (tmp_path / "f").read_text() == "of another program"
