"""The Mermaid diagrams of the machines, drawn from the tables; `make diagrams` writes them into ARCHITECTURE.md."""

from collections import defaultdict

from holdfast.core.records import FINAL, State
from holdfast.core.schedules import OCCURRENCES, OVERLAPS, SCHEDULES, Situation
from holdfast.core.states import CALLS, EXECUTION, OWNERSHIP
from holdfast.core.wake import IGNORED, STARTS, WAKING, WakeEvent, WakeState


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
    for move, row in OWNERSHIP.items():
        for owner, target in row.items():
            edges[owner, target].append(move)
    return _draw("[*] --> unowned", edges)


def calls() -> str:
    edges: dict[tuple[str, str], list[str]] = defaultdict(list)
    for move, row in CALLS.items():
        for state, target in row.items():
            edges[state, target].append(move)
    ends = "\n".join(f"    {state} --> [*]" for state in sorted(FINAL))
    return _draw("[*] --> planned", edges) + "\n" + ends


def waking() -> str:
    """A change of state as an edge; a state's own line says what it starts, and aborts when it is left."""
    edges: dict[tuple[str, str], list[str]] = defaultdict(list)
    names = {state: state.rpartition(".")[2] for state in WakeState}
    for state, cells in WAKING.items():
        for event, cell in cells.items():
            if cell is not IGNORED:
                edges[names[state], names[cell.to or state]].append(event)
    starts = "\n".join(
        f"    {names[state]}: {names[state]} ({', '.join(what)})" for state, what in STARTS.items() if what
    )
    return _draw("[*] --> stopped", edges) + "\n" + starts


def waking_table() -> str:
    """The wake stream's table as Markdown: a row per event, a column per state, – for ignored."""
    states = list(WakeState)
    lines = ["| event | " + " | ".join(states) + " |", "|---|" + "---|" * len(states)]
    for event in WakeEvent:
        texts = []
        for state in states:
            cell = WAKING[state][event]
            to = (f"→ {cell.to}",) if cell.to is not None else ()
            texts.append("–" if cell is IGNORED else " ".join((*cell.effects, *to)))
        lines.append(f"| `{event}` | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def schedules() -> str:
    edges: dict[tuple[str, str], list[str]] = defaultdict(list)
    for move, row in SCHEDULES.items():
        for state, target in row.items():
            if target is not state:
                edges[state, target].append(move)
    return _draw("[*] --> active", edges)


def occurrences() -> str:
    edges: dict[tuple[str, str], list[str]] = defaultdict(list)
    for move, row in OCCURRENCES.items():
        for state, target in row.items():
            edges[state, target].append(move)
    return _draw("[*] --> fired\n    [*] --> held\n    [*] --> skipped", edges) + "\n    ended --> [*]"


def overlaps_table() -> str:
    """What an instant that is due does, by policy and by what it finds."""
    found = list(Situation)
    lines = ["| overlap | " + " | ".join(found) + " |", "|---|" + "---|" * len(found)]
    lines += [f"| `{policy}` | " + " | ".join(row[one] for one in found) + " |" for policy, row in OVERLAPS.items()]
    return "\n".join(lines)


def table() -> str:
    """The execution table as Markdown: a row per command, a column per state, – for refused."""
    states = list(State)
    lines = ["| command | " + " | ".join(states) + " |", "|---|" + "---|" * len(states)]
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
        "waking": f"```mermaid\n{waking()}\n```",
        "waking-table": waking_table(),
        "schedules": f"```mermaid\n{schedules()}\n```",
        "occurrences": f"```mermaid\n{occurrences()}\n```",
        "overlaps-table": overlaps_table(),
    }
