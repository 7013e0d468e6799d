"""The agents of somebody who has written none: what they are depends on the keys that are there."""

from pathlib import Path

import pytest

from holdfast import Agent, App
from holdfast.cli.default_agents import SMALL_ANSWER_TOKENS, agents
from holdfast.config import PermissionMode, Permissions
from holdfast.testing import Call, ScriptedModel


def test_the_small_model_of_this_machine_has_no_tools_and_an_end_to_its_answers() -> None:
    """It calls tools at random, and asked for a story it wrote until its context was full, for minutes."""
    assistant, scripted = agents({})
    assert (assistant.name, assistant.model, scripted.name) == ("assistant", "local", "scripted")
    assert not assistant.tools
    assert assistant.settings.max_tokens == SMALL_ANSWER_TOKENS


def test_a_big_model_has_hands_in_the_folder_it_was_started_in() -> None:
    assistant, _ = agents({"OPENAI_API_KEY": "sk-kelp"})
    assert str(assistant.model).startswith("openai:")
    assert {"current_time", "read_file", "search_files", "edit_file", "shell", "plan"} <= set(assistant.tools)
    assert assistant.settings.max_tokens is None


@pytest.mark.parametrize(
    ("tool", "arguments", "mode", "state"),
    [
        ("current_time", {}, None, "done"),
        ("read_file", {"path": "kelp.txt"}, None, "done"),
        ("search_files", {"text": "kelp"}, None, "done"),
        ("write_file", {"path": "new.txt", "content": "x"}, None, "waiting"),
        ("shell", {"command": "touch new.txt"}, None, "waiting"),
        ("write_file", {"path": "new.txt", "content": "x"}, "edit", "done"),  # as the settings say
    ],
)
async def test_it_reads_unasked_and_changes_nothing_without_a_person(
    tool: str,
    arguments: dict[str, str],
    mode: PermissionMode | None,
    state: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kelp.txt").write_text("kelp\n")
    made, _ = agents({"OPENAI_API_KEY": "sk-kelp"})
    model = ScriptedModel([Call(name=tool, arguments=arguments)], "Done.")
    assistant = Agent("assistant", model, tools=list(made.tools.values()), permissions=made.permissions)
    app = App("sqlite:///chats.db", agents=[assistant], permissions=Permissions(mode=mode) if mode else None)
    async with app.worker():
        turn = await (await app.create("assistant", "Go.")).turn()
    assert turn.state == state, turn
    assert Path("new.txt").exists() == (mode == "edit")
