"""ARCHITECTURE.md shows the machines as they are: its diagrams and its table are drawn from the code."""

from pathlib import Path

import pytest

from holdfast.core.diagrams import blocks, calls, execution, ownership, table, waking, waking_table
from holdfast.core.records import FINAL, CallState, State
from holdfast.core.states import CALLS, EXECUTION, OWNERSHIP, ROWS
from holdfast.core.wake import STARTS, WAKING, WakeEvent, WakeState
from tests.upkeep.diagrams import PAGE, drawn, main, names_in


def test_the_architecture_page_shows_the_machines_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == drawn(page), "run `make diagrams`"


def test_the_architecture_page_shows_every_drawing_once() -> None:
    assert sorted(names_in(PAGE.read_text(encoding="utf-8"))) == sorted(blocks())


def test_a_page_that_is_out_of_date_is_found_and_mended(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n<!-- generated: calls -->\nold\n<!-- end -->\nAfter.\n", encoding="utf-8")
    assert drawn(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")
    main(page)
    mended = page.read_text(encoding="utf-8")
    assert mended == f"Before.\n<!-- generated: calls -->\n{blocks()['calls']}\n<!-- end -->\nAfter.\n"
    assert drawn(mended) == mended


def test_a_block_that_nothing_draws_is_an_error() -> None:
    with pytest.raises(KeyError, match="dreams"):
        drawn("<!-- generated: dreams -->\n<!-- end -->\n")


def test_the_table_has_a_line_for_every_command_and_a_column_for_every_state() -> None:
    head, _, *lines = table().splitlines()
    assert head == "| command | idle | running | stopping | waiting | failed |"
    assert [line.split("`")[1] for line in lines] == list(ROWS)
    assert {line.count("|") for line in lines} == {len(State) + 2}
    assert "| `retry` | – | – | – | – | retry → running |" in lines


def test_the_drawings_have_an_edge_for_every_change_of_state() -> None:
    edges = {(state, to) for cells in EXECUTION.values() for state, cell in cells.items() for to in cell.to}
    for state, to in edges:
        assert (f"    {state} --> {to}: " in execution()) == (state is not to)
    for owners in OWNERSHIP.values():
        assert all(f"    {owner} --> {to}: " in ownership() for owner, to in owners.items())
    for states in CALLS.values():
        assert all(f"    {state} --> {to}: " in calls() for state, to in states.items())
    assert all((f"    {state} --> [*]" in calls()) == (state in FINAL) for state in CallState)


def test_the_wake_streams_drawing_has_its_edges_and_what_each_state_starts() -> None:
    names = {state: state.rpartition(".")[2] for state in WakeState}
    arrows = {line.partition(": ")[0].strip() for line in waking().splitlines() if "-->" in line}
    assert arrows == {"[*] --> stopped"} | {
        f"{names[state]} --> {names[cell.to or state]}"
        for state, cells in WAKING.items()
        for cell in cells.values()
        if cell.to is not None or cell.effects
    }
    for state, starts in STARTS.items():
        assert (f"    {names[state]}: {names[state]} ({', '.join(starts)})" in waking()) == bool(starts)
    head, _, *lines = waking_table().splitlines()
    assert head.count("|") == len(WakeState) + 2
    assert [line.split("`")[1] for line in lines] == list(WakeEvent)
    assert "| `wake` | – | – | ring | – | – |" in lines
