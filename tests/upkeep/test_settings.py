"""Every setting is documented, with its default and its meaning, and nothing else is."""

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Meta
from msgspec.structs import fields

from holdfast import Agent, App, ChatSettings
from holdfast.config import Config, ConfigSettings, WorkerSettings, load_config
from holdfast.errors import ConfigError
from holdfast.mcp_servers import McpServer
from tests.upkeep.reference.settings import rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
SERVERS = PAGE.parent / "how-to" / "mcp.md"


def test_the_page_lists_every_setting_with_its_default_and_its_meaning() -> None:
    lines = re.findall(r"^\| `(\w+)` \| ?(.*?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines == rows(), "run `make reference`"


def test_the_page_about_tool_servers_lists_every_key() -> None:
    table = SERVERS.read_text(encoding="utf-8").partition("## The keys")[2].partition("## ")[0]
    keys = {key for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    assert keys == set(McpServer.__struct_fields__) - {"name"}


def plain(hint: Any) -> Any:
    """As a caller would say it: without bounds, without None, a sequence or mapping of whatever kind."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return plain(arguments[0])
    if origin in (Union, UnionType):
        kinds = [plain(argument) for argument in arguments if argument is not NoneType]
        return kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]  # noqa: UP007  as many as there are
    if origin is tuple:
        return Sequence[plain(arguments[0])]  # type: ignore[misc]
    if origin is dict:
        return Mapping[plain(arguments[0]), plain(arguments[1])]  # type: ignore[misc]
    return hint


def test_the_settings_that_editors_and_type_checkers_know_are_those_that_there_are() -> None:
    known = {name: plain(hint) for name, hint in get_type_hints(ConfigSettings).items()}
    # Those in code are an argument of App's own: both are there at once, and are told apart by their source.
    in_the_file_only = {"schedules"}
    assert known == {field.name: plain(field.type) for field in fields(Config) if field.name not in in_the_file_only}
    assert ConfigSettings.__total__ is False


def test_a_setting_of_another_type_would_be_seen() -> None:
    assert plain(Annotated[int, Meta(ge=1)]) is int
    assert plain(Annotated[tuple[str, ...], Meta()]) == plain(Sequence[str]) != plain(Sequence[int])
    assert plain(Literal["a", "b"]) != plain(Literal["a"])


def test_a_setting_that_there_is_not_is_refused_with_the_nearest_name() -> None:
    for make in (load_config, App):
        with pytest.raises(ConfigError, match=r"grace_seconds is no argument of holdfast; did you mean grace_s\?"):
            make(grace_seconds=3)  # type: ignore[call-arg]
    app = App(agents=[])
    with pytest.raises(ConfigError, match=r"did you mean grace_s\?"):
        app.worker(grace_seconds=3)  # type: ignore[call-arg]


def test_a_setting_that_is_none_counts_as_not_given_wherever_it_is_given() -> None:
    assert load_config(environ={"HOLDFAST_GRACE_S": "3"}, grace_s=None).grace_s == 3
    app = App(agents=[], grace_s=3)
    assert app.new_worker(grace_s=None, poll_s=1).config.grace_s == 3


def test_what_a_new_chat_can_be_told_is_what_create_takes() -> None:
    taken = {
        name: hint
        for name, hint in get_type_hints(App.create).items()
        if name != "return" and inspect.signature(App.create).parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert get_type_hints(ChatSettings) == taken
    assert ChatSettings.__total__ is False


def test_a_worker_takes_the_settings_that_it_has_of_its_own_and_refuses_the_apps(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'x.db'}", agents=[Agent("a", "scripted")])
    assert app.new_worker(grace_s=7.0, poll_s=None).config.grace_s == 7.0
    for name in set(Config.__struct_fields__) - set(get_type_hints(WorkerSettings)):
        given: Any = {name: getattr(app.config, name)}
        with pytest.raises(ConfigError, match=rf"App\({name}=…\)"):
            app.new_worker(**given)
    with pytest.raises(ConfigError, match="grace_s"):
        app.new_worker(grace_sec=7.0)  # type: ignore[call-arg]
