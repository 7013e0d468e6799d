"""Every log line has an action that stays what it is, and docs/operating.md says what each means."""

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from fastapi.routing import APIRoute

from holdfast.server.audit import AUDITED, FIELDS, Answered, BudgetChange, TokenChange
from holdfast.server.http import ROUTERS
from holdfast.store.incidents import FAILED_OVER, WENT_BACK
from holdfast.worker.outcomes import BodyEnd

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
COMPUTED: set[str] = {FAILED_OVER, WENT_BACK}  # made of more than one piece, or kept in a variable
COMPUTED |= {*AUDITED.values(), *get_args(Answered), *get_args(TokenChange), *get_args(BudgetChange)}
COMPUTED |= {f"call.{end}" for end in get_args(BodyEnd) if end != "ok"}
COMPUTED |= {f"turn.{outcome}" for outcome in ("done", "cut_short", "stopped", "failed")}
COMPUTED |= {"model.retried", "model.fallback", "model.gave_up"}
TELLERS = {"_tell", "_note_trouble", "_on_trouble"}  # the first thing that they are given is an action


def documented() -> set[str]:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    table = page.partition("<!-- log actions -->")[2].partition("<!-- end -->")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([a-z_.]+)`", cell)}


def strings(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def literal_actions(source: str) -> set[str]:
    """What stands behind the key `action`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "action" and not isinstance(value, ast.JoinedStr):
                    found |= set(strings(value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TELLERS:
            found |= {
                arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            }
    return found


def all_actions() -> set[str]:
    literal = {name for path in SOURCE.rglob("*.py") for name in literal_actions(path.read_text(encoding="utf-8"))}
    return literal | COMPUTED


def test_every_action_of_a_log_line_is_in_the_table_of_the_operators_page_and_no_other() -> None:
    assert documented() == all_actions()


def test_an_action_that_is_chosen_is_found() -> None:
    assert literal_actions('log.info("x", extra={"action": "a" if lost else "b", "chat": "c"})') == {"a", "b"}


def bare_lines(source: str) -> list[int]:
    found = []
    levels = {"debug", "info", "warning", "error", "exception", "critical", "log"}
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in levels):
            continue
        called = node.func.value
        is_log = isinstance(called, ast.Name) and called.id in ("log", "_log")
        if is_log and not any(keyword.arg == "extra" for keyword in node.keywords):
            found.append(node.lineno)
    return found


def test_every_line_of_the_log_has_an_action() -> None:
    assert bare_lines("log.info('without')\nlog.info('with', extra=about)") == [1]
    found = {path: bare_lines(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    assert {str(path): lines for path, lines in found.items() if lines} == {}


def test_what_an_audit_line_says_of_its_route_is_no_field_that_a_record_of_the_log_has() -> None:
    """Logging refuses such a field, and the request would fail after it was carried out."""
    taken = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    audited = [route for router in ROUTERS for route in router.routes if getattr(route, "name", "") in AUDITED]
    assert len(audited) >= len(AUDITED)
    for route in audited:
        assert isinstance(route, APIRoute)
        assert not {FIELDS.get(name, name) for name in route.param_convertors} & taken, route.path
