"""A folder's `holdfast.toml` runs code: nothing of it is used before a person has said so."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import APP, Desk, Terminal

Opened = Callable[..., Terminal]

# Leaves a trace when it is imported.
TRAP = """
from pathlib import Path
Path("sprung").touch()
from holdfast import Agent, App
app = App(agents=[Agent("trapped", "scripted")])
"""
SETTINGS = """
app = "trap:app"
home = "elsewhere"

[mcp.evil]
command = "sh"
args = ["-c", "touch sprung"]
"""
READING = [
    ("chats", "list"),
    ("chats", "show", "last"),
    ("chats", "tail", "last"),
    ("workers",),
    ("doctor",),
    ("config", "show"),
    ("backup", "copy.db"),
    ("login",),
    ("openapi",),
]
ACTING = [
    ("chats", "send", "last", "hello"),
    ("chats", "approve", "last"),
    ("chats", "stop", "last"),
    ("chats", "delete", "last", "--yes"),
    ("restore", "copy.db"),
]
RUNNING = [
    ("run", "hello"),
    ("worker",),
    ("serve", "--port", "0"),
    ("run", "hello", "--app", APP),
    ("permissions", "list"),  # an agent's rules are in its program
    ("permissions", "explain", "ls"),
    ("skills", "list"),
]


@pytest.fixture
def trapped(desk: Desk) -> Desk:
    """A folder that came from elsewhere."""
    del desk.environ["HOLDFAST_TRUSTED"]
    (desk.folder / "trap.py").write_text(TRAP)
    (desk.folder / "holdfast.toml").write_text(SETTINGS)
    return desk


def sprung(desk: Desk) -> bool:
    return (desk.folder / "sprung").exists() or (desk.folder / "elsewhere").exists()


@pytest.mark.parametrize("command", [*READING, *ACTING, *RUNNING], ids=" ".join)
def test_no_command_uses_the_settings_of_a_folder_that_nobody_trusts(trapped: Desk, command: tuple[str, ...]) -> None:
    done = trapped.run(*command)
    assert not sprung(trapped)
    if command[0] in ("doctor", "config"):
        assert "not trusted" in done.out + done.err, "they tell it, and go on without the file"
        assert "elsewhere" not in done.out
    else:
        assert done.code == 5
        assert "`holdfast trust`" in done.err


def test_what_works_on_data_loads_no_code_of_a_trusted_folder_either(trapped: Desk) -> None:
    settings = trapped.folder / "holdfast.toml"
    settings.rename(settings.with_suffix(".later"))
    assert trapped.run("run", "hello", "--home", "elsewhere", "--app", APP, "--agent", "echo").code == 0
    settings.with_suffix(".later").rename(settings)
    assert trapped.run("trust").code == 0
    for command in (*READING, *ACTING):
        if command == ("doctor",):
            continue  # see below
        done = trapped.run(*command)
        assert not (trapped.folder / "sprung").exists(), command
        assert "not trusted" not in done.out + done.err, command
        assert command not in READING or done.code in (0, 1), (command, done)


def test_doctor_starts_the_tool_servers_of_a_trusted_folder_and_loads_no_other_code(trapped: Desk) -> None:
    (trapped.folder / "trap.py").write_text(TRAP.replace("sprung", "loaded"))
    assert trapped.run("trust").code == 0
    told = trapped.run("doctor", "--home", "elsewhere")
    assert "tool_server_unavailable: evil (sh)" in told.out
    assert (trapped.folder / "sprung").exists()
    assert not (trapped.folder / "loaded").exists()


def test_a_folder_is_trusted_once_until_its_file_says_something_else(trapped: Desk) -> None:
    settings = trapped.folder / "holdfast.toml"
    settings.write_text('app = "trap:app"\n')
    shown = trapped.run("trust")
    assert (shown.code, 'app = "trap:app"' in shown.err) == (0, True)
    for _ in range(2):
        assert trapped.run("run", "hello").code == 0
    assert sprung(trapped)
    settings.write_text('app = "trap:app"\nport = 1\n')
    assert trapped.run("run", "hello").code == 5
    assert trapped.run("trust").code == 0
    assert trapped.run("run", "hello").code == 0
    assert trapped.run("trust", "--forget").code == 0
    assert trapped.run("run", "hello").code == 5


def test_the_same_file_in_another_folder_is_not_trusted(trapped: Desk) -> None:
    assert trapped.run("trust").code == 0
    other = trapped.folder / "other"
    other.mkdir()
    (other / "holdfast.toml").write_text(SETTINGS)
    trapped.folder = other
    assert trapped.run("chats", "list").code == 5
    trapped.environ["HOLDFAST_TRUSTED"] = f"/nowhere:{other.parent}"
    assert trapped.run("chats", "list").code != 5


def test_a_person_at_a_terminal_is_asked_once(trapped: Desk, terminal: Opened) -> None:
    (trapped.folder / "holdfast.toml").write_text('app = "trap:app"\n')
    at = terminal("run", "hello")
    at.sees('app = "trap:app"')
    at.sees("They can run code")
    at.types("n")
    at.sees("not trusted")
    assert at.ends() == 5
    assert not sprung(trapped)
    again = terminal("run", "hello")
    again.sees("They can run code")
    again.types("y")
    again.sees("You said: hello")
    assert again.ends() == 0
    assert trapped.run("run", "hello").code == 0


def test_settings_that_change_while_a_person_is_asked_are_not_those_that_they_said_yes_to(
    trapped: Desk, terminal: Opened
) -> None:
    (trapped.folder / "holdfast.toml").write_text("# nothing\n")
    at = terminal("run", "hello")
    at.sees("They can run code")
    (trapped.folder / "holdfast.toml").write_text('app = "trap:app"\n')
    at.types("y")
    at.sees("has changed since it was shown")
    assert at.ends() == 5
    assert not sprung(trapped)
    assert trapped.run("run", "hello").code == 5, "nor is it trusted from now on"


def test_nobody_is_asked_about_settings_of_which_a_part_is_hidden(trapped: Desk, terminal: Opened) -> None:
    (trapped.folder / "holdfast.toml").write_text("# a word\n" * 60 + 'app = "trap:app"\n')
    at = terminal("run", "hello")
    at.sees("more lines")
    at.sees("too long to be asked about")
    assert at.ends() == 5
    assert not sprung(trapped)
    assert trapped.run("trust").code == 0, "who has looked at it says so"


def test_a_folder_without_settings_needs_no_trust(desk: Desk) -> None:
    del desk.environ["HOLDFAST_TRUSTED"]
    assert desk.run("run", "hello", "--app", APP, "--agent", "echo").code == 0
    assert json.loads(desk.run("chats", "show", "last", "--json").out)["agent"] == "echo"
    assert not (desk.folder / "config of mine").exists()


def test_what_is_trusted_is_noted_for_this_user_alone(trapped: Desk) -> None:
    assert trapped.run("trust").code == 0
    notes = Path(trapped.environ["XDG_CONFIG_HOME"]) / "holdfast" / "trusted"
    assert notes.stat().st_mode & 0o777 == 0o700
    (note,) = notes.iterdir()
    assert str(trapped.folder / "holdfast.toml") in note.read_text()


def test_settings_that_are_no_regular_file_are_refused_and_not_waited_for(trapped: Desk) -> None:
    settings = trapped.folder / "holdfast.toml"
    assert trapped.run("trust").code == 0
    settings.unlink()
    os.mkfifo(settings)
    for command in (("trust",), ("chats", "list"), ("run", "hello")):
        done = trapped.run(*command)
        assert (done.code, done.out) == (1, "")
        assert "holdfast.toml cannot be read: it is no regular file" in done.err
    trapped.environ["HOLDFAST_TRUSTED"] = str(trapped.folder)
    done = trapped.run("chats", "list")
    assert (done.code, "it is no regular file" in done.err) == (1, True)
