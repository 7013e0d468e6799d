"""Settings: where they come from, what beats what, and what is said about one that is wrong."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.config import Config, ModelFacts, Price, load_config
from holdfast.errors import ConfigError
from holdfast.system import guard_process, processes
from holdfast.tools.shell import tool as shell


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str) -> None:
    Path("holdfast.toml").write_text(text)


def test_arguments_beat_the_environment_which_beats_the_file_which_beats_the_default() -> None:
    assert load_config(environ={}).port == 7433
    written("port = 1\nhistory_limit = 5\n")
    assert (load_config(environ={}).port, load_config(environ={}).history_limit) == (1, 5)
    environ = {"HOLDFAST_PORT": "2"}
    assert load_config(environ=environ).port == 2
    assert load_config(environ=environ, port=3).port == 3
    assert load_config(environ=environ, port=None).port == 2


def test_lists_and_switches_can_be_written_in_the_environment() -> None:
    config = load_config(environ={"HOLDFAST_PLUGINS": "audit, guard", "HOLDFAST_NO_PLUGINS": "true"})
    assert (config.plugins, config.no_plugins) == (("audit", "guard"), True)
    assert load_config(environ={"HOLDFAST_NO_PLUGINS": "0"}).no_plugins is False


@pytest.mark.parametrize("nonsense", ["0", "-3", "many", "", "1.5"])
def test_a_history_limit_that_makes_no_sense_is_the_default(nonsense: str) -> None:
    assert load_config(environ={"HOLDFAST_HISTORY_LIMIT": nonsense}).history_limit == 1000
    assert load_config(environ={"AGENT_HISTORY_LIMIT": nonsense}).history_limit == 1000


def test_our_own_history_limit_beats_the_general_one() -> None:
    assert load_config(environ={"AGENT_HISTORY_LIMIT": "7"}).history_limit == 7
    both = {"AGENT_HISTORY_LIMIT": "7", "HOLDFAST_HISTORY_LIMIT": "8"}
    assert load_config(environ=both).history_limit == 8


@pytest.mark.parametrize(
    ("toml", "environ", "arguments", "said"),
    [
        ("prot = 1", {}, {}, "holdfast.toml: prot is no key of holdfast; did you mean port"),
        ("", {"HOLDFAST_PROT": "1"}, {}, "HOLDFAST_PROT is no environment variable of holdfast; did you mean"),
        ("", {}, {"prot": 1}, "prot is no argument of holdfast; did you mean port"),
        ("zzzzzz = 1", {}, {}, "known are home, database"),
        ("port = 'x'", {}, {}, "holdfast.toml: port does not fit: Expected `int`, got `str`"),
        ("port = 70000", {}, {}, "holdfast.toml: port does not fit"),
        ("", {"HOLDFAST_PORT": "x"}, {}, "HOLDFAST_PORT='x' does not fit: Expected `int`"),
        ("", {"HOLDFAST_POLL_S": "0"}, {}, "HOLDFAST_POLL_S='0' does not fit: Expected `float` > 0"),
        ("", {"HOLDFAST_LOG_LEVEL": "loud"}, {}, "HOLDFAST_LOG_LEVEL='loud' does not fit"),
        ("", {}, {"grace_s": -1.0}, "a setting does not fit"),
        ("port = ", {}, {}, "holdfast.toml cannot be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(toml: str, environ: dict[str, str], arguments: dict[str, Any], said: str) -> None:
    written(toml)
    with pytest.raises(ConfigError) as caught:
        load_config(environ=environ, **arguments)
    assert said in str(caught.value)


def test_a_file_that_was_named_must_be_there() -> None:
    with pytest.raises(ConfigError, match=r"no configuration file nowhere\.toml"):
        load_config("nowhere.toml", environ={})


def test_variables_of_the_tests_and_of_the_runtime_itself_are_no_settings() -> None:
    """Those of the runtime are in the environment of every child of a worker: isolated tools, and shells in which
    somebody may well call holdfast."""
    runtime = dict.fromkeys((guard_process.VARIABLE, processes.CHILD_VARIABLE, shell.INSIDE_VARIABLE), "y")
    assert load_config(environ={**runtime, "HOLDFAST_CRASH_AT": "x", "PATH": "z"}) == Config()


def test_without_a_database_it_is_a_file_in_home() -> None:
    assert load_config(environ={"HOLDFAST_HOME": "/data"}).database_url == "sqlite:////data/holdfast.db"
    assert load_config(environ={"HOLDFAST_DATABASE": "postgresql://h/d"}).database_url == "postgresql://h/d"


def test_what_a_user_knows_of_models_are_tables_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('[models."openai:gpt-5"]\ncontext_limit = 400_000\nprice = { input = 1.25, output = 10 }\n')
    facts = load_config(file, {}).models["openai:gpt-5"]
    assert facts == ModelFacts(context_limit=400_000, price=Price(input=1.25, output=10))
    for wrong in (
        "context_limit = 0",
        "price = { input = -1, output = 1 }",
        "price = { input = 1 }",
        "price = { input = 1, output = 1, cahced = 1 }",
        "price = 3",
    ):
        file.write_text(f'[models."openai:gpt-5"]\n{wrong}\n')
        with pytest.raises(ConfigError, match="models does not fit"):
            load_config(file, {})
