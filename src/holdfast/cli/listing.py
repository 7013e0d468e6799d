"""Listings: a table where it fits the window, two or three lines each where it does not, and in a pipe one line each.

What stands in the first column is there to be copied: it is never cut, wrapped or left out.
"""

import sys
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli.words import line
from holdfast.core.records import Frozen

GAP = 2  # between two columns, as the table is drawn
LAST_MIN = 16  # of the last column, which wraps: narrower than that it is not readable
PLAIN_CHARS_MAX = 10_000  # of a field in a pipe; no title is that long


class Field(Frozen):
    """`plain` is what a program gets, where that differs from what people read."""

    shown: str
    plain: str | None = None
    style: str = ""


Row = Sequence[Field]


def print_listing(heads: Sequence[str], rows: Sequence[Row]) -> None:
    """In a pipe: no heads, a tab between two fields, nothing cut."""
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(_flat(field.shown if field.plain is None else field.plain) for field in row))
        return
    out = console()
    heads, rows = _without_empty_columns(heads, rows)
    if _width_needed(heads, rows) <= out.width:
        out.print(_table(heads, rows))
        return
    for row in rows:
        out.print(Text(row[0].shown, style="bold"), soft_wrap=True)
        out.print(Padding(_rest(heads, row), (0, 0, 0, 2), expand=False))


def console() -> Console:
    """In a pipe nothing is cut to the width of a window that is not there."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def _flat(text: str) -> str:
    """Without what would end the field, or the line."""
    return line(text, PLAIN_CHARS_MAX)


def _without_empty_columns(heads: Sequence[str], rows: Sequence[Row]) -> tuple[Sequence[str], Sequence[Row]]:
    used = [n for n in range(len(heads)) if any(row[n].shown for row in rows)]
    return [heads[n] for n in used], [[row[n] for n in used] for row in rows]


def _width_needed(heads: Sequence[str], rows: Sequence[Row]) -> int:
    widths = [max(map(cell_len, (head, *(row[n].shown for row in rows)))) for n, head in enumerate(heads)]
    return sum(widths[:-1]) + min(widths[-1], LAST_MIN) + GAP * (len(heads) - 1)


def _table(heads: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    for head in heads[:-1]:
        table.add_column(head, no_wrap=True)
    table.add_column(heads[-1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(field.shown, style=field.style) for field in row))
    return table


def _rest(heads: Sequence[str], row: Row) -> Text:
    """What stands below the first field: the others, each after its name."""
    parts: list[tuple[str, str]] = []
    for head, field in zip(heads[1:], row[1:], strict=True):
        if field.shown:
            parts += [(" · " if parts else "", "dim"), (f"{head} ", "dim"), (field.shown, field.style)]
    return Text.assemble(*parts)
