"""The figures as tables, and as pictures."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.peers.kept import Kept
from bench.peers.peers import PEERS

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("ms a cycle, chat of 50", "short_ms", ".2f"),
    ("of 500", "long_ms", ".2f"),
    ("first 50", "first_ms", ".2f"),
    ("last 50", "last_ms", ".2f"),
    ("CPU ms", "cpu_ms", ".2f"),
    ("cycles/s, 32 at once", "many_a_second", ",.0f"),
    ("CPU ms", "many_cpu_ms", ".2f"),
    ("KiB written", "kib_a_cycle", ",.1f"),
    ("syncs", "syncs_a_cycle", ".1f"),
    ("MiB at most", "peak_mib", ",.0f"),
    ("start s", "start_s", ".2f"),
    ("recovery s", "recovery_s", ".2f"),
    ("asked twice", "asked_twice", ".0f"),
    ("ran twice", "ran_twice", ".0f"),
)


def table(kept: Kept) -> str:
    figures = kept.medians()
    heads = ["", *(head for head, _, _ in COLUMNS), "on disk"]
    rows = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for peer in PEERS:
        if peer.name not in figures:
            continue
        each = figures[peer.name]
        cells = [_cell(getattr(each, field), form) for _, field, form in COLUMNS]
        version = kept.versions.get(peer.name)
        name = f"{peer.name} ({version})" if version else peer.name
        rows.append(f"| {' | '.join([name, *cells, peer.durable])} |")
    failed = [f"- {name}: {each.why_not}" for name, each in figures.items() if each.why_not]
    return "\n".join(rows + (["", "No figure, and why:", "", *failed] if failed else []))


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None or value < 0 else format(value, form)


def streams(kept: Kept) -> str:
    """Tokens through the journal and the server to clients."""
    rows = [
        "| streaming | chats | tokens/s, as fast as they come | CPU µs a token, server | tokens/s, 50 a chat "
        "| model to client, ms: p50 | p99 |",
        f"|{'---|' * 7}",
    ]
    for name, found in kept.streaming.items():
        for each in found:
            cells = f"{each.tokens_a_second:,.0f} | {each.cpu_us:.0f} | {each.paced_a_second:,.0f}"
            rows.append(
                f"| holdfast, {name} | {each.chats} | {cells} | {each.delay_p50_ms:.0f} | {each.delay_p99_ms:.0f} |"
            )
    return "\n".join(rows) if kept.streaming else ""


def aims(kept: Kept) -> str:
    """What we want of these figures, and what became of it."""
    figures = kept.medians()
    ours, pg = figures.get("holdfast, SQLite"), figures.get("holdfast, PostgreSQL")
    rows = ["| aim | wanted | seen |", "|---|---|---|"]

    def row(aim: str, value: float | None, *, at_least: float | None = None, at_most: float | None = None) -> None:
        wanted = f"≥ {at_least:g}" if at_least is not None else f"≤ {at_most:g}"
        met = value is not None and value >= (at_least or 0) and (at_most is None or value <= at_most)
        rows.append(f"| {aim} | {wanted} | {'–' if value is None else f'{value:.2f}'} {'✓' if met else '✗'} |")

    def best(field: str, names: Sequence[str], pick: Callable[[Sequence[float]], float]) -> float | None:
        found = [value for name in names if name in figures and (value := getattr(figures[name], field)) is not None]
        return pick(found) if found else None

    in_process = [peer.name for peer in PEERS if peer.lock and not peer.server and peer.database == "sqlite"]
    on_postgres = [peer.name for peer in PEERS if peer.lock and peer.database == "postgres"]
    sqlites = [peer.name for peer in PEERS if peer.adapter == "with_holdfast" and peer.database == "sqlite"]
    postgreses = [peer.name for peer in PEERS if peer.adapter == "with_holdfast" and peer.database == "postgres"]
    for names, wanted in ((["Restate"], 3.0), (in_process, 5.0)):
        who = "Restate" if names == ["Restate"] else "the fastest in-process peer"
        times = _ratio(best("long_ms", names, min), ours.long_ms if ours else None)
        row(f"SQLite, one chat of 500: times as fast as {who}", times, at_least=wanted)
    for names, wanted in ((["Restate"], 5.0), (in_process, 15.0)):
        who = "Restate" if names == ["Restate"] else "the fastest in-process peer"
        times = _ratio(best("many_a_second", sqlites, max), best("many_a_second", names, max))
        row(f"SQLite, 32 at once, all cores: times as fast as {who}", times, at_least=wanted)
    raw = best("long_ms", ["two commits, SQLite"], min)
    row("SQLite, one chat / two raw commits", _ratio(ours.long_ms if ours else None, raw), at_most=2)
    if ours is not None:
        row("SQLite, last 50 cycles / first 50", _ratio(ours.last_ms, ours.first_ms), at_most=1.1)
        row("SQLite, recovery, s", ours.recovery_s, at_most=0.3)
    times = _ratio(best("long_ms", on_postgres, min), pg.long_ms if pg else None)
    row("PostgreSQL, one chat of 500: times as fast as the fastest peer on it", times, at_least=6)
    times = _ratio(best("many_a_second", postgreses, max), best("many_a_second", on_postgres, max))
    row("PostgreSQL, 32 at once: times as fast as the fastest peer on it", times, at_least=15)
    return "\n".join(rows)


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def legend() -> str:
    """What each column is."""
    return "\n".join(
        (
            "- *ms a cycle*: of one chat alone, so many cycles long; its first and its last 50 cycles by themselves.",
            "- *cycles/s*: of 200 chats of 20 cycles with 32 at once.",
            "- *CPU*: of the program and of its server, for a cycle; what it takes to start is in it.",
            "- *MiB*: at most, of both.",
            "- *KiB* and *syncs*: what both ask of the operating system, by `strace`, for a cycle: the difference "
            "between two runs, one twice as long.",
            "- *recovery*: from `kill -9` in the middle of a tool until the chat goes on; *twice*: what was begun "
            "again after the kill.",
            "- A dash: there is nothing to measure, or it is lost in the noise. The raw limit recovers nothing, "
            "several processes recover as one does, and a program that has to go on by itself has no time to take.",
        )
    )


def draw(kept: Kept, picture: Path) -> None:
    figures = kept.medians()
    shown = [peer.name for peer in PEERS if peer.name in figures]
    colours = [OURS if name.startswith("holdfast") else OTHERS for name in shown]
    with _sides(picture, (12, 0.35 * len(shown) + 1.5), sharey=True) as axes:
        for axis, field, title, words in (
            (axes[0], "long_ms", "ms a cycle, one chat of 500", "{:,.1f}"),
            (axes[1], "many_a_second", "cycles a second, 32 chats at once", "{:,.0f}"),
        ):
            values = [getattr(figures[name], field) or 0.0 for name in shown]
            # The raw limit may be many times what any peer does: drawn whole, it would leave no bar of theirs to see.
            most = 1.2 * max(
                (value for name, value in zip(shown, values, strict=True) if not name.startswith(RAW)), default=1.0
            )
            bars = axis.barh(shown, [min(value, most) for value in values], color=colours)
            labels = [
                (words if value <= most else f"{words}, cut off").format(value) if value else "" for value in values
            ]
            axis.bar_label(bars, labels=labels, padding=3, fontsize=8)
            axis.set_title(title, fontsize=10)
            axis.set_xlim(0, 1.3 * most)
        axes[0].invert_yaxis()


def draw_streams(kept: Kept, picture: Path) -> None:
    with _sides(picture, (12, 3.2)) as axes:
        for name, found in kept.streaming.items():
            chats = [str(each.chats) for each in found]
            colour = OURS if name == "SQLite" else OTHERS
            axes[0].plot(chats, [each.tokens_a_second for each in found], "o-", color=colour, label=name)
            axes[1].plot(chats, [each.delay_p50_ms for each in found], "o-", color=colour, label=f"{name}, p50")
            axes[1].plot(chats, [each.delay_p99_ms for each in found], "o--", color=colour, label=f"{name}, p99")
        for axis, title in ((axes[0], "tokens a second, all chats"), (axes[1], "ms from model to client")):
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("chats that stream at once")
            axis.set_ylim(bottom=0)
            axis.legend(fontsize=8)


OURS, OTHERS = "#0b7285", "#adb5bd"
RAW = "two commits"  # how the names of the raw limits begin


@contextlib.contextmanager
def _sides(picture: Path, size: tuple[float, float], *, sharey: bool = False) -> Iterator[Any]:
    """Two plots side by side, as one picture."""
    import matplotlib  # noqa: PLC0415  only who draws pays

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    sides, axes = pyplot.subplots(1, 2, figsize=size, sharey=sharey)
    yield axes
    sides.tight_layout()
    sides.savefig(picture, dpi=110)
    pyplot.close(sides)
