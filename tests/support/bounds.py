"""Which tests a bound of wall time could turn: `pytest --timed` runs these alone, and `make steady` runs them many
times beside busy processes.

No list says which tests these are. A test is timed if it, a fixture that it asks for or a function of `tests` that
either calls names a bound that a machine under load could miss: a wait of less than `PATIENCE_S`, a deadline of the
product that is shorter than the usual ones, or how long something took. A longer wait only keeps a hang from being
endless, and what paces something (`PACES`) bounds nothing.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from tests.support.selection import functions_of, plain, used_by

PATIENCE_S = 10.0
# What the product gives itself where nobody says otherwise is at least this: a store call has 8 s.
USUAL_S = 8.0

WAITS = frozenset({"communicate", "dies_within", "ends", "eventually", "timeout", "until", "wait", "wait_for"})
CLOCKS = frozenset({"monotonic", "perf_counter"})
PACES = frozenset({
    "base_s", "blow_s", "delay_max_s", "delay_s", "every_s", "for_s", "pace_s", "poll_interval_s", "poll_s",
    "summary_s", "tool_s",
})  # fmt: skip
NO_CLOCK = ("tests/core/",)  # what time it is comes in as an argument there


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--timed", action="store_true", help="only what a bound of wall time could turn")
    parser.addoption("--times", type=int, default=1, help="each test so many times")


@pytest.fixture
def which_time(request: pytest.FixtureRequest) -> object:
    return request.param


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times, timed = (metafunc.config.getoption(name) for name in ("--times", "--timed"))
    if times == 1 or (timed and not may_be_timed(metafunc.definition)):
        return
    metafunc.fixturenames.append("which_time")
    ids = [f"time {number}" for number in range(1, times + 1)]
    metafunc.parametrize("which_time", range(times), ids=ids, indirect=True)


def may_be_timed(definition: pytest.Function) -> bool:
    """Before its parameters are known, of which one may be a bound."""
    return bool(bounds_of(definition)) or any(name.endswith(("_s", "_ms")) for name in definition.fixturenames)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (
        config.getoption("--times") > 1
    ):  # all of them once, then all of them again: a run that is stopped saw them all
        items.sort(key=lambda item: _params(item).get("which_time", 0) if isinstance(item, pytest.Function) else 0)
    if not config.getoption("--timed"):
        return
    calm = [item for item in items if not bounds_of(item)]
    config.hook.pytest_deselected(items=calm)
    gone = set(calm)
    items[:] = [item for item in items if item not in gone]


def bounds_of(item: pytest.Item) -> list[str]:
    """Where the bounds stand: `tests.worker.test_lease:86 lease_ttl_ms=1500`."""
    if not isinstance(item, pytest.Function) or item.nodeid.startswith(NO_CLOCK):
        return []
    definitions = item._fixtureinfo.name2fixturedefs
    fixtures = [definitions[name][-1].func for name in item.fixturenames if name in definitions]
    found = {bound for thing in [item.function, *fixtures] for bound in _bounds_below(thing)}
    return sorted(found | {f"{name}={value:g}" for name, value in _params(item).items() if _is_short(name, value)})


def _params(item: pytest.Function) -> dict[str, float]:
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    return {name: value for name, value in params.items() if isinstance(value, int | float)}


def _is_short(name: str, value: float) -> bool:
    """A deadline of the product, by its name and unit, that is shorter than the usual ones."""
    unit = name.rpartition("_")[2]
    return name not in PACES and unit in ("s", "ms") and 0 < (value if unit == "s" else value / 1000) < USUAL_S


def _bounds_below(thing: Any) -> frozenset[str]:
    """Those that it names, and those that what it uses names."""
    thing = plain(thing)
    if not isinstance(thing, FunctionType | type) or not thing.__module__.startswith("tests"):
        return frozenset()
    if thing not in _known:
        _known[thing] = frozenset()  # functions that call each other
        named = [bound for function in functions_of(thing) for bound in named_bounds(function)]
        used = [bound for one in used_by(thing) if not isinstance(one, ModuleType) for bound in _bounds_below(one)]
        _known[thing] = frozenset(named + used)
    return _known[thing]


_known: dict[Any, frozenset[str]] = {}


@functools.cache
def named_bounds(function: FunctionType) -> tuple[str, ...]:
    if not Path(function.__code__.co_filename).is_file():  # what a dataclass makes
        return ()
    definition = _definitions(function.__code__.co_filename).get(function.__code__.co_firstlineno)
    if definition is None:  # a lambda: it stands in the definition of somebody else
        return ()
    return tuple(
        f"{function.__module__}:{node.lineno} {text}"
        for node in ast.walk(definition)
        if isinstance(node, ast.Call | ast.Compare)
        for text in _bounds_in(node, function.__globals__)
    )


@functools.cache
def _definitions(file: str) -> dict[int, ast.stmt]:
    """By the line on which each begins, with its decorators."""
    return {
        min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]): node
        for node in ast.walk(ast.parse(Path(file).read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _bounds_in(node: ast.Call | ast.Compare, known: dict[str, Any]) -> Iterator[str]:
    if isinstance(node, ast.Compare):
        if any(isinstance(part, ast.BinOp) and _asks_a_clock(part) for part in ast.walk(node)):  # how long it took
            yield ast.unparse(node)
        return
    name = _name(node.func)
    if name in WAITS:
        for argument in [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "timeout")]:
            seconds = _number(argument, known)
            if seconds is not None and 0 < seconds < PATIENCE_S:
                yield f"{name}({seconds:g})"
    for keyword in node.keywords:
        value = _number(keyword.value, known)
        if keyword.arg is not None and value is not None and _is_short(keyword.arg, value):
            yield f"{keyword.arg}={value:g}"


def _asks_a_clock(node: ast.BinOp) -> bool:
    return any(isinstance(part, ast.Call) and _name(part.func) in CLOCKS for part in ast.walk(node))


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _number(node: ast.expr, known: dict[str, Any]) -> float | None:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if isinstance(known.get(name), int | float):
            return float(known[name])
        case ast.BinOp(left=left, op=operation, right=right):
            one, other = _number(left, known), _number(right, known)
            if one is None or other is None or not isinstance(operation, ast.Add):
                return None
            return one + other
        case _:
            return None
