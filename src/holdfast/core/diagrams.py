"""The Mermaid diagrams of the machines, drawn from the tables; `make diagrams` writes them into ARCHITECTURE.md."""

from collections import defaultdict

from holdfast.core.records import FINAL, State
from holdfast.core.states import CALLS, EXECUTION, OWNERSHIP


def execution() -> str:
    edges: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row, cells in EXECUTION.items():
        for state, cell in cells.items():
            for target in cell.to:
                if target is not state:
                    edges[state, target].append(row)
    return _draw("[*] --> idle", edges)


def ownership() -> str:
    edges: dict[tuple[str, str], list[str]] = defaultdict(list)
    for event, row in OWNERSHIP.items():
        for owner, target in row.items():
            edges[owner, target].append(event)
    return _draw("[*] --> unowned", edges)


def calls() -> str:
    edges: dict[tuple[str, str], list[str]] = defaultdict(list)
    for event, row in CALLS.items():
        for state, target in row.items():
            edges[state, target].append(event)
    ends = "\n".join(f"    {state} --> [*]" for state in sorted(FINAL))
    return _draw("[*] --> planned", edges) + "\n" + ends


def table() -> str:
    """The execution table as Markdown: a row per event, a column per state, – for refused."""
    states = list(State)
    lines = ["| event | " + " | ".join(states) + " |", "|---|" + "---|" * len(states)]
    for row, cells in EXECUTION.items():
        texts = []
        for state in states:
            cell = cells.get(state)
            texts.append("–" if cell is None else f"{cell.do} → {', '.join(cell.to)}")
        lines.append(f"| `{row}` | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _draw(first: str, edges: dict[tuple[str, str], list[str]]) -> str:
    lines = ["stateDiagram-v2", f"    {first}"]
    lines += [f"    {source} --> {target}: {', '.join(labels)}" for (source, target), labels in edges.items()]
    return "\n".join(lines)


def blocks() -> dict[str, str]:
    """Everything ARCHITECTURE.md holds between `<!-- generated: name -->` and `<!-- end -->`."""
    return {
        "execution": f"```mermaid\n{execution()}\n```",
        "execution-table": table(),
        "ownership": f"```mermaid\n{ownership()}\n```",
        "calls": f"```mermaid\n{calls()}\n```",
    }
