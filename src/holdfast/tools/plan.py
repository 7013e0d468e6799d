"""The `plan` tool: what the model is about to do, as a list that people see.

The model writes the whole list each time, so no call depends on another, and the newest call is the plan. It is in
the journal as that call's arguments; `plan_of` finds it there, for a terminal or a page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from holdfast.errors import ToolFailed
from holdfast.tools.base import Tool, tool

NAME = "plan"
ITEMS_MAX = 50
ITEM_CHARS_MAX = 300
DEADLINE_S = 10.0

PlanState = Literal["pending", "in_progress", "done", "dropped"]
MARKS: dict[PlanState, str] = {"pending": "☐", "in_progress": "▶", "done": "✓", "dropped": "–"}


@dataclass(frozen=True)
class PlanItem:
    """One step of a plan."""

    text: str
    state: PlanState = "pending"


class _Arguments(msgspec.Struct):
    items: list[PlanItem]


def plan_tool() -> Tool:
    """`plan`: the model writes down its steps, and how far each is. It does nothing else; people see it."""
    return tool(name=NAME, replay="pure", deadline_s=DEADLINE_S, acts=lambda _: ())(_plan)


async def _plan(items: list[PlanItem]) -> str:
    """Write down the plan for a task of several steps, and how far each is: pending, in_progress, done or dropped.
    Give the whole list each time; it replaces the one before. Call it when you begin, and whenever a step is done."""
    if problem := _problem(items):
        raise ToolFailed(problem)
    return "\n".join(plan_lines(items))


def _problem(items: Sequence[PlanItem]) -> str | None:
    if not 1 <= len(items) <= ITEMS_MAX:
        return f"a plan has 1 to {ITEMS_MAX} items"
    if any(not item.text.strip() or len(item.text) > ITEM_CHARS_MAX for item in items):
        return f"the text of an item has 1 to {ITEM_CHARS_MAX} characters"
    return None


def plan_lines(items: Sequence[PlanItem]) -> list[str]:
    return [f"{MARKS[item.state]} {' '.join(item.text.split())}" for item in items]


def plan_of(name: str, arguments: str) -> list[PlanItem] | None:
    """The plan that a call holds; None if it is another call, or holds none."""
    if name != NAME:
        return None
    try:
        items = msgspec.json.decode(arguments, type=_Arguments).items
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return None if _problem(items) else items
