"""Which tests run, and in which order. `tests/conftest.py` names this module.

`tests/long` is collected only if it is named, and two kinds of tests are left to `make long`: those that are marked
`long`, and, in rooms whose subject is not the store, most of those that ran on SQLite and would run on PostgreSQL
again. `pytest --quick` runs what needs no server, no browser and no kill, and
no list says which tests these are. A test is left out if it asks for a fixture of PostgreSQL; if it, a fixture that
it asks for or a function of `tests` that either calls uses what starts processes or ends them; if it is one of
those that `make test` begins with; or if it repeats, with another seed, what ran with the first.
"""

import gc
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.support import scale

# Rooms whose subject is not the store. There a test of both stores runs on SQLite, and one in so many of them on
# PostgreSQL, too: which, its name decides. The rooms of stores, promises, crashes and fleets run all of them.
OF_ANY_STORE = ("tests/cli/", "tests/server/", "tests/skills/", "tests/tools/", "tests/worker/")
ONE_IN = 3

# What takes longest goes first. At the end of a run the workers take work from each other, test by test; a test of
# half a minute that is left for the end would keep one of them busy and the others idle.
LONGEST = (
    "tests/chaos/", "tests/fleet/", "tests/models/test_local.py", "tests/store/test_side_by_side",
    "tests/worker/test_long_chat", "tests/worker/test_random_", "tests/worker/test_crash_drill",
    "tests/pages/", "tests/server/test_described",
    "tests/promises/test_10_", "tests/tools/test_real_task", "tests/tools/test_corpus",
)  # fmt: skip

# Files of which `--quick` imports nothing. The last draws its requests while it is collected, which takes seconds.
NEVER_QUICK = (*LONGEST, "tests/server/test_described.py")

# A module, or a class or function of it, that a test uses to have a process or to end one.
PROCESSES = (
    "multiprocessing", "pexpect", "playwright", "psycopg", "signal", "subprocess", "uvicorn",
    "holdfast.mcp_servers", "holdfast.models.local.model", "holdfast.models.local.server_program",
    "holdfast.system.processes", "holdfast.testing.crash_drill", "holdfast.tools.mcp.connection",
    "holdfast.worker.guard", "tests.support.postgres",
)  # fmt: skip
CALLS = frozenset({"create_subprocess_exec", "create_subprocess_shell", "kill9", "killpg"})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is long by nature runs when it is named: `make long`, or `pytest tests/long/…`."""
    folder = config.rootpath / "tests" / "long"
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    if collection_path == folder and not any(path.is_relative_to(folder) for path in named):
        return True
    if config.getoption("--quick") and collection_path.is_file():
        return collection_path.relative_to(config.rootpath).as_posix().startswith(NEVER_QUICK) or None
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only what needs no server, no browser and no kill")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    named = {argument for argument in config.args if "::" in argument}
    if not scale.FULL and not named:
        leave_out(config, items, [item for item in items if is_left_to_make_long(item)])
    if config.getoption("--quick"):
        known: dict[Any, bool] = {}
        leave_out(config, items, [item for item in items if not is_quick(item, known)])


def leave_out(config: pytest.Config, items: list[pytest.Item], some: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=some)
    gone = set(some)
    items[:] = [item for item in items if item not in gone]


def is_left_to_make_long(item: pytest.Item) -> bool:
    if item.get_closest_marker("long") is not None:
        return True
    if not item.nodeid.startswith(OF_ANY_STORE) or "postgres" not in parameters(item):
        return False
    return zlib.crc32(item.nodeid.encode()) % ONE_IN != 0


def parameters(item: pytest.Item) -> list[object]:
    return [*item.callspec.params.values()] if isinstance(item, pytest.Function) and hasattr(item, "callspec") else []


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: to look for garbage meanwhile took a sixth of the time, in each worker."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What was imported and collected lives until the end: no need to look through it for garbage again and again."""
    gc.freeze()


def is_quick(item: pytest.Item, known: dict[Any, bool]) -> bool:
    """`known`: what was found out about functions and classes before; pass the same for all items."""
    if not isinstance(item, pytest.Function) or item.nodeid.startswith(NEVER_QUICK):
        return False
    if any("postgres" in name for name in item.fixturenames):
        return False
    if "postgres" in parameters(item) or (hasattr(item, "callspec") and item.callspec.indices.get("seed")):
        return False
    definitions = item._fixtureinfo.name2fixturedefs
    fixtures = [each.func for name in item.fixturenames for each in definitions.get(name, ())]
    return not any(needs_process(function, known) for function in [item.function, *fixtures])


def needs_process(thing: Any, known: dict[Any, bool]) -> bool:
    if isinstance(thing, ModuleType):
        return _among(thing.__name__)
    thing = plain(thing)
    if not isinstance(thing, FunctionType | type):
        return _among(type(thing).__module__)
    if _among(thing.__module__):
        return True
    if not thing.__module__.startswith("tests"):
        return False
    if thing not in known:
        known[thing] = False  # functions that call each other
        known[thing] = any(needs_process(used, known) for used in used_by(thing)) or bool(_words(thing) & CALLS)
    return known[thing]


def _among(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in PROCESSES)


def plain(thing: Any) -> Any:
    """Without what decorators put around it."""
    while hasattr(thing, "__wrapped__"):
        thing = thing.__wrapped__
    return getattr(thing, "__func__", thing)


def functions_of(thing: FunctionType | type) -> Iterator[FunctionType]:
    if isinstance(thing, FunctionType):
        yield thing
        return
    for value in vars(thing).values():
        bare = plain(getattr(value, "fget", value))
        if isinstance(bare, FunctionType):
            yield bare


def _words(thing: FunctionType | type) -> set[str]:
    """All names in its code."""
    return {name for function in functions_of(thing) for name in _names(function.__code__)}


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def used_by(thing: FunctionType | type) -> list[Any]:
    """What the names in its code stand for, and the classes it is made of."""
    used: list[Any] = list(thing.__bases__) if isinstance(thing, type) else []
    for function in functions_of(thing):
        known = function.__globals__
        used += [known[name] for name in _names(function.__code__) if name in known]
    return used
