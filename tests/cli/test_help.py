"""What `holdfast --help` costs, counted in the modules it loads, and that every command explains itself."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from typer.main import get_command

from holdfast import __version__
from holdfast.cli.main import cli
from tests.cli.conftest import Done

HEAVY = ("apsw", "asyncio", "fastapi", "logging", "mcp", "msgspec", "prompt_toolkit", "pydantic", "rich", "uvicorn")
MODULES_MAX = 200

LOADED = """
import sys
from holdfast.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sorted(sys.modules), file=sys.stderr)
"""


def commands() -> Iterator[tuple[str, ...]]:
    root = get_command(cli)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        if inner is None:
            yield (name,)
        else:
            yield from ((name, sub) for sub in inner)


@pytest.mark.parametrize(
    ("arguments", "typers_own"),
    [
        (("--help",), set()),
        (("--version",), set()),
        (("run", "--help"), {"pydantic"}),  # typer describes the arguments of a command with it
    ],
)
def test_help_loads_nothing_that_it_does_not_need(arguments: tuple[str, ...], typers_own: set[str]) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, timeout=60)
    loaded = set(done.stderr.split())
    assert "holdfast.cli.main" in loaded
    assert loaded & set(HEAVY) == typers_own
    assert len(loaded) < MODULES_MAX or typers_own


def test_the_count_would_see_what_a_command_loads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, "config", "show"], capture_output=True, text=True, timeout=60
    )
    assert "rich" in done.stderr.split()


def test_there_are_the_commands_that_the_design_names() -> None:
    names = {" ".join(name) for name in commands()}
    assert names >= {"serve", "worker", "run", "chat", "doctor", "demo", "workers", "config show", "openapi", "login"}
    acts = "list show tail stop send approve deny fork edit retry compact archive delete answer"
    assert names >= {f"chats {act}" for act in acts.split()}


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_every_command_says_what_it_does_with_an_example(
    quick: Callable[..., Done], command: tuple[str, ...]
) -> None:
    done = quick(*command, "--help")
    assert done.code == 0
    assert f"holdfast {' '.join(command)}" in done.out.partition("Example:")[2] or command == ("version",)


def test_the_version_is_the_packages(quick: Callable[..., Done]) -> None:
    assert quick("--version").out == quick("version").out == f"holdfast {__version__}\n"
