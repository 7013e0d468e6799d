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


def test_it_has_of_the_web_what_is_configured_and_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"OPENAI_API_KEY": "sk-kelp", "BRAVE_API_KEY": "kelp-key"}
    monkeypatch.setenv("BRAVE_API_KEY", keys["BRAVE_API_KEY"])
    browser = tmp_path / "chrome"
    browser.touch(mode=0o755)
    with_all = agents(keys, str(browser))[0].tools
    assert {"web_search", "browse_open", "browse_click"} <= set(with_all)
    without = agents({"OPENAI_API_KEY": "sk-kelp"}, "/nowhere/chrome")[0].tools
    assert not [name for name in without if name.startswith(("web_search", "browse"))]


@pytest.mark.parametrize(
    ("tool", "arguments", "mode", "state"),
    [
        ("current_time", {}, None, "done"),
        ("read_file", {"path": "kelp.txt"}, None, "done"),
        ("search_files", {"text": "kelp"}, None, "done"),
        ("write_file", {"path": "new.txt", "content": "x"}, None, "waiting"),
        ("shell", {"command": "touch new.txt"}, None, "waiting"),
        ("browse_open", {"url": "https://a.example/"}, None, "waiting"),
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
    made, _ = agents({"OPENAI_API_KEY": "sk-kelp"}, "/bin/sh")  # never started: a person is asked first
    model = ScriptedModel([Call(name=tool, arguments=arguments)], "Done.")
    assistant = Agent("assistant", model, tools=list(made.tools.values()), permissions=made.permissions)
    app = App("sqlite:///chats.db", agents=[assistant], permissions=Permissions(mode=mode) if mode else None)
    async with app.worker():
        turn = await (await app.create("assistant", "Go.")).turn()
    assert turn.state == state, turn
    assert Path("new.txt").exists() == (mode == "edit")
