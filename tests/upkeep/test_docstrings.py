"""The examples in docstrings run as they stand, in an empty folder, with the public names at hand."""

import asyncio
import doctest
import inspect
from pathlib import Path

import pytest

import holdfast
from holdfast import testing
from holdfast.errors import ConfigError

PUBLIC = {name: getattr(holdfast, name) for name in holdfast.__all__}
NAMES = {**PUBLIC, **{name: getattr(testing, name) for name in testing.__all__}, "asyncio": asyncio}
SHOWN = ("Agent", "App", "Chat", "Hook", "tool", "holdfast.testing")


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(recurse=True, exclude_empty=True)
    found = []
    for name, thing in {**PUBLIC, "holdfast.testing": testing}.items():
        if inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing):
            found += [test for test in finder.find(thing, name, globs=dict(NAMES)) if test.examples]
    return found


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_the_example_runs(example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=told.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(told)


@pytest.mark.parametrize("name", SHOWN)
def test_what_everybody_uses_has_an_example(name: str) -> None:
    assert name in {example.name for example in examples()}


async def test_a_program_with_an_event_loop_is_told_what_to_do_instead_of_run_sync(tmp_path: Path) -> None:
    app = holdfast.App(f"sqlite:///{tmp_path}/x.db", agents=[holdfast.Agent("echo", "scripted")])
    with pytest.raises(ConfigError, match=r"await app\.run"):
        app.run_sync("echo", "hello")
    async with app.worker():
        assert (await app.run("echo", "hello")).text == "You said: hello"
