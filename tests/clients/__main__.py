"""`python -m tests.clients [PART-OF-A-NAME …] [-- CASE …]` drives the clients and prints the table; it fails if a
cell should be green and is not. Data and logs of each are in `build/clients/runs`.
"""

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.clients.cases import CASES, Case
from tests.clients.clients import CLIENTS, Client
from tests.clients.install import BUILD, NotInstalled, command_of, installed, version_of
from tests.clients.matrix import Cell, drive, expected

Row = Mapping[str, Cell]


def main(arguments: Sequence[str]) -> bool:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parts, names = arguments[:at], arguments[at + 1 :]
    clients = [one for one in CLIENTS if not parts or any(part in one.name for part in parts)]
    cases = [case for case in CASES if not names or case.name in names]
    if not clients or not cases:
        sys.exit(f"There is no such client or case. There are: {', '.join(one.name for one in CLIENTS)}")
    rows: dict[str, Row] = {}
    for client in clients:
        rows[client.name] = run(client, cases)
    print(f"\n{table(rows, cases)}")
    for line in reasons(rows, cases):
        print(line)
    write_figures(rows)
    return all(cell.is_good for row in rows.values() for cell in row.values())


def run(client: Client, cases: Sequence[Case]) -> Row:
    began = time.monotonic()
    try:
        command = command_of(client, installed(client))
    except NotInstalled as error:
        return {case.name: Cell(reason=str(error)) for case in cases}
    folder = BUILD / "runs" / "".join(letter if letter.isalnum() else "-" for letter in client.name)
    shutil.rmtree(folder, ignore_errors=True)
    cells = {name: expected(client, name, cell) for name, cell in drive(client, command, folder, cases).items()}
    bad = [name for name, cell in cells.items() if not cell.is_good]
    print(
        f"{client.name} {version_of(client)}: {time.monotonic() - began:.0f} s, not as it should be: {bad or 'none'}",
        flush=True,
    )
    return cells


def table(rows: Mapping[str, Row], cases: Sequence[Case]) -> str:
    lines = [["client", *(case.title for case in cases)]]
    for name, row in rows.items():
        lines.append([name, *(shown(row[case.name]) for case in cases)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def shown(cell: Cell) -> str:
    return cell.way.partition(":")[0] if cell.is_good else "BAD"


def reasons(rows: Mapping[str, Row], cases: Sequence[Case]) -> list[str]:
    """What the table has no room for."""
    return [
        f"{name}, {case.title}: {textwrap.shorten(cell.reason or cell.way, 400)}"
        for name, row in rows.items()
        for case in cases
        for cell in [row[case.name]]
        if not cell.is_good or ":" in cell.way
    ]


def write_figures(rows: Mapping[str, Row]) -> None:
    """As `bench/figures.py` does, for the table of `make long`."""
    if out := os.environ.get("BENCH_OUT"):
        figures = [
            {
                "name": name,
                "value": sum(cell.is_good for cell in row.values()),
                "unit": "cases as they should be",
                "aim": f"of {len(row)}",
                "met": all(cell.is_good for cell in row.values()),
            }
            for name, row in rows.items()
        ]
        Path(out).write_text(json.dumps({"figures": figures}))


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
