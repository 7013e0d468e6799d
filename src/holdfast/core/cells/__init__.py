"""The cells of the execution table: one function each, one file per subject.

`core/states.py` names the function; `core/apply.py` hands it the draft and the command. It makes its edits, or it
raises a `Refusal` and nothing has happened. What several cells share takes the draft and whatever else it needs.
"""

from collections.abc import Callable
from typing import Any

from holdfast.core.cells import answers, calls, chat, compaction, families, messages, ownership, stopping, turn
from holdfast.core.draft import Draft
from holdfast.core.states import EXECUTION

CellFunction = Callable[[Draft, Any], None]

_SUBJECTS = (answers, calls, chat, compaction, families, messages, ownership, stopping, turn)


def find_function(name: str) -> CellFunction:
    """The one that carries out the cells of this name. Raises ValueError if no subject defines it, or two do."""
    found: set[CellFunction] = {vars(subject)[name] for subject in _SUBJECTS if name in vars(subject)}
    [function] = found
    return function


CELLS = {cell.do: find_function(cell.do) for row in EXECUTION.values() for cell in row.values()}
