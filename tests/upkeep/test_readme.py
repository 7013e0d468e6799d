"""The README is true: each of its commands and each of its programs runs, as it stands, in an empty folder."""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest

from holdfast.models.known import known_of
from tests.cli.conftest import CTRL_D, WAIT_S, Desk
from tests.cli.test_serving import fetch, server
from tests.support.provider import Answer, in_order, providing
from tests.support.speakers import Anthropic, Call

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def commands() -> list[str]:
    """Every line of every shell block, without its comment."""
    return [line.partition("  #")[0].strip() for block in blocks("sh") for line in block.splitlines() if line]


def program(holding: str) -> str:
    (found,) = [block for block in blocks("python") if holding in block]
    return found


def arguments_of(command: str) -> list[str]:
    name, *arguments = shlex.split(command)
    assert name == "holdfast"
    return arguments


MODEL = re.compile(r'model="((?:anthropic|openai|google):[^"]+)"')
CALLS = Answer(calls=(Call("weather", ('{"city": "Bern"}',)),))
UMBRELLA = "Take an umbrella."


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """With the README's own files, and its model's provider at the wire."""
    (tmp_path / "support.py").write_text(program("support = Agent("), encoding="utf-8")
    (tmp_path / "rehearsal.py").write_text(program("model = ScriptedModel("), encoding="utf-8")
    with providing(Anthropic(), in_order(CALLS, Answer(text=("Take an ", "umbrella.")))) as provider:
        found = Desk(tmp_path)
        found.environ["ANTHROPIC_BASE_URL"] = provider.url
        yield found


def with_key(desk: Desk) -> Desk:
    (line,) = [command for command in commands() if command.startswith("export ANTHROPIC_API_KEY=")]
    desk.environ["ANTHROPIC_API_KEY"] = line.partition("=")[2].strip('"')
    return desk


# Command -> how it is run here. A command that nobody runs is an error.
DRY = ("make run", "make test")
ENDS = (
    'holdfast run "hello"',
    'holdfast run "hello" --agent scripted',
    "holdfast chats list",
    'holdfast run --app rehearsal:app "Weather in Bern?"',
)
WITH_KEY = ('holdfast run --app support:app "Weather in Bern?"',)
TALKS = ("holdfast chat",)
SERVES = ("holdfast serve support:app",)
DATABASE = "postgresql://user:password@host/database"
ON_POSTGRES = (f"holdfast serve --database {DATABASE}", f"holdfast worker --database {DATABASE}")
ELSEWHERE = ("holdfast demo",)  # tests/cli/test_demo.py
SETTING = ('export PATH="$PWD/.venv/bin:$PATH"', 'export ANTHROPIC_API_KEY="your key"')


def test_every_command_of_the_readme_is_run_by_a_test() -> None:
    assert sorted(commands()) == sorted(DRY + ENDS + WITH_KEY + TALKS + SERVES + ON_POSTGRES + ELSEWHERE + SETTING)
    assert sum(map(len, map(blocks, ("sh", "python")))) == README.count("```") // 2, "a block of no known language"


@pytest.mark.parametrize("command", DRY)
def test_its_targets_are_there(command: str) -> None:
    """What they do is done by whoever runs this test, and by a fresh clone."""
    name, target = command.split()
    planned = subprocess.run([name, "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert planned.returncode == 0, planned.stderr
    assert {"run": "holdfast serve", "test": "-m pytest"}[target] in planned.stdout


@pytest.mark.parametrize("command", ENDS)
def test_its_commands_end_well(desk: Desk, command: str) -> None:
    if command.startswith("holdfast chats"):
        assert desk.run("run", "hello", "--agent", "scripted").code == 0
    done = desk.run(*arguments_of(command))
    assert done.code == 0, done.err
    assert done.out.strip()


@pytest.mark.parametrize("command", TALKS)
def test_its_talk_begins_and_ends(desk: Desk, command: str) -> None:
    at = desk.terminal(*arguments_of(command))
    try:
        at.sees("/help")
        at.sees("> ")  # who presses it earlier, presses it for the terminal: it would be no Ctrl-D any more
        at.presses(CTRL_D)
        assert at.ends() == 0
    finally:
        at.close()


@pytest.mark.parametrize("command", SERVES)
def test_its_server_answers(desk: Desk, command: str) -> None:
    with serving(desk, command) as url:
        assert_is_well(url)


def assert_is_well(url: str) -> None:
    """If the machine stood still, its health says so for a moment."""
    give_up_at = time.monotonic() + WAIT_S
    while (found := health(url)) != "ok":
        assert time.monotonic() < give_up_at, found
        time.sleep(0.1)


def health(url: str) -> object:
    try:
        return fetch(f"{url}/health")["status"]
    except HTTPError as error:
        return error.code


@contextmanager
def serving(desk: Desk, command: str) -> Iterator[str]:
    name, *arguments = arguments_of(command)
    assert name == "serve"
    with server(desk, *arguments) as (_, url):
        yield url


def test_its_server_and_its_worker_meet_on_postgresql(desk: Desk, postgres_url: str) -> None:
    serve, work = (command.replace(DATABASE, postgres_url) for command in ON_POSTGRES)
    worker = desk.start(*arguments_of(work))
    try:
        with serving(desk, serve) as url:
            assert_is_well(url)
            asked = desk.run("run", "hello", "--agent", "scripted", "--database", postgres_url)
            assert "You said: hello" in asked.out
            give_up_at = time.monotonic() + WAIT_S
            while f'"pid":{worker.pid}' not in desk.run("workers", "--json", "--database", postgres_url).out:
                assert time.monotonic() < give_up_at, "the worker never came"
    finally:
        worker.kill()
        worker.communicate()


def test_its_agents_first_model_is_one_that_there_is_today() -> None:
    provider, _, model = MODEL.findall(README)[0].partition(":")
    assert known_of(provider, model).context


@pytest.mark.parametrize("command", [command for command in ENDS + WITH_KEY if "--app" in command])
def test_its_agent_is_seen_to_use_its_tool(desk: Desk, command: str) -> None:
    done = (with_key(desk) if command in WITH_KEY else desk).run(*arguments_of(command))
    assert done.out == f"{UMBRELLA}\n", done.err
    assert re.search(r"^✓ weather\(city='Bern'\)  \S+ s  Rain in Bern\.$", done.err, re.M)


def test_without_its_key_the_agent_says_which_one_it_needs(desk: Desk) -> None:
    (command,) = WITH_KEY
    done = desk.run(*arguments_of(command))
    assert done.code != 0
    assert "ANTHROPIC_API_KEY" in done.err


def test_its_program_runs_and_started_again_it_goes_on_with_the_same_chat(desk: Desk) -> None:
    with_key(desk)
    first, again = run_program(desk), run_program(desk)
    assert first[-1] == UMBRELLA
    assert any("Rain in Bern." in event for event in first[:-1])
    assert again == first  # the same entries, with the same ids
    assert len(desk.run("chats", "list").out.splitlines()) == 1


def run_program(desk: Desk) -> list[str]:
    """What it prints, but for the pieces of a text that a slow machine shows before the whole."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program("asyncio.run(main())")],
        cwd=desk.folder, env=desk.environ, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith('{"part":')]


def test_its_lines_for_the_openai_sdk_run(desk: Desk) -> None:
    with serving(desk, "holdfast serve") as url:
        code = program("from openai import OpenAI").replace("http://127.0.0.1:7433", url)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=desk.folder,
            env=desk.environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout
