"""The table of what a run of a coding program came to, row by row; and what of its figures is new."""

from itertools import product
from typing import get_args

import pytest

from holdfast.tools.coding_agents.verdicts import TABLE, Ending, Exit, Figures, Verdict, spent, verdict_of

EXITS: tuple[Exit, ...] = get_args(Exit)
ALL = [
    Ending(began=began, last=last, flagged=flagged, said=said, figures=figures, exit=exit)
    for began, last, flagged, said, figures in product((False, True), repeat=5)
    for exit in EXITS
]


def ending(exit: Exit = "clean", *facts: str) -> Ending:
    flags = {name: name in facts for name in ("last", "flagged", "said", "figures")}
    return Ending(began="nothing" not in facts, exit=exit, **flags)


@pytest.mark.parametrize(
    ("row", "given", "verdict"),
    [
        # an error flag counts, whatever else is said: claude's `success` with is_error, codex' turn.failed
        (0, ending("code", "last", "flagged", "said", "figures"), Verdict.ERROR),
        (0, ending("clean", "last", "flagged", "figures"), Verdict.ERROR),  # gemini's empty answer: exit code 0
        (0, ending("cut", "last", "flagged", "said"), Verdict.ERROR),
        # an answer is an answer: a process that hung after it, or ended with a code, takes nothing back
        (1, ending("clean", "last", "said", "figures"), Verdict.SUCCESS),
        (1, ending("cut", "last", "said", "figures"), Verdict.SUCCESS),
        (1, ending("code", "last", "said"), Verdict.SUCCESS),
        (1, ending("signal", "last", "said"), Verdict.SUCCESS),
        (2, ending("code", "last", "figures"), Verdict.ERROR),
        (3, ending("clean", "last", "figures"), Verdict.PLACEHOLDER),  # the work of a forked skill
        (3, ending("cut", "last", "figures"), Verdict.PLACEHOLDER),
        (4, ending("clean", "last"), Verdict.LOST),
        (5, ending("cut", "said"), Verdict.CANCELLED),
        (5, ending("cut", "nothing"), Verdict.CANCELLED),
        (6, ending("code", "nothing"), Verdict.ERROR),  # a session that is taken, a login that is missing
        (7, ending("clean", "said"), Verdict.LOST),  # SIGINT: claude and gemini end with 0
        (7, ending("clean", "nothing"), Verdict.LOST),
        (7, ending("signal", "said"), Verdict.LOST),
        (7, ending("code", "said"), Verdict.LOST),  # codex after SIGINT
    ],
)
def test_each_row_of_the_table(row: int, given: Ending, verdict: Verdict) -> None:
    assert verdict_of(given) is TABLE[row]
    assert TABLE[row].verdict is verdict


def test_every_ending_has_a_verdict_and_every_row_has_endings() -> None:
    assert {verdict_of(each).why for each in ALL} == {row.why for row in TABLE}


def test_no_exit_code_alone_decides() -> None:
    """For each way to exit there are endings of several verdicts."""
    for exit in EXITS:
        assert len({verdict_of(each).verdict for each in ALL if each.exit == exit}) >= 3


def test_success_needs_a_last_event_without_its_error_flag() -> None:
    for each in ALL:
        if verdict_of(each).verdict in (Verdict.SUCCESS, Verdict.PLACEHOLDER):
            assert each.last
            assert not each.flagged


@pytest.mark.parametrize(
    ("before", "now", "counted", "expected"),
    [
        (Figures(), Figures(tokens=10, cost=0.5), "session", (10, 0.5)),
        (Figures(tokens=10, cost=0.5), Figures(tokens=25, cost=0.75), "session", (15, 0.25)),
        (Figures(tokens=10, cost=0.5), Figures(tokens=10, cost=0.5), "run", (10, 0.5)),
        # A program that tells both: with its own run they would be 20, so they were not carried over.
        (Figures(tokens=10, cost=0.5), Figures(tokens=10, cost=0.5, run_tokens=10), "session", (10, 0.5)),
        (Figures(tokens=10, cost=0.5), Figures(tokens=20, cost=1.0, run_tokens=10), "session", (10, 0.5)),
        (Figures(tokens=100, cost=0.5), Figures(tokens=20, cost=0.25), "session", (20, 0.25)),
        (Figures(tokens=10), Figures(), "session", (0, 0.0)),
        # One that tells only one of them has not lost the other.
        (Figures(tokens=10, cost=0.5), Figures(cost=0.75), "session", (0, 0.25)),
        (Figures(tokens=10, cost=0.5), Figures(tokens=15), "session", (5, 0.0)),
        (Figures(tokens=10, cost=0.1 + 0.2), Figures(tokens=10, cost=0.3), "session", (0, 0.0)),
        (Figures(), Figures(), "run", (0, 0.0)),
    ],
)
def test_what_is_spent_is_the_difference_to_the_last_figures(
    before: Figures, now: Figures, counted: str, expected: tuple[int, float]
) -> None:
    assert spent(before, now, "session" if counted == "session" else "run") == expected


def test_what_a_session_does_not_tell_is_as_it_told_before() -> None:
    known = Figures(tokens=10, cost=0.5)
    assert known.after(Figures(cost=0.75, run_tokens=3)) == Figures(tokens=10, cost=0.75)
    assert known.after(Figures(tokens=12)) == Figures(tokens=12, cost=0.5)
