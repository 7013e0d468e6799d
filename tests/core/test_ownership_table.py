"""The ownership table: pinned, and walked with the commands that cause each of its moves."""

from collections.abc import Callable

import pytest

from holdfast.core import commands as cmd
from holdfast.core.apply import apply
from holdfast.core.change import Refused
from holdfast.core.states import OWNERSHIP, Owner, OwnerMove
from tests.support.situations import HOUR_MS, answered, failed, model_next, said, unclaimed, waiting
from tests.support.story import BOOM, START, Story

MATRIX = """
move     unowned  held
claim    held     refused
write    refused  held
rest     unowned  unowned
release  refused  unowned
expire   refused  unowned
"""

HEADER, *LINES = [line.split() for line in MATRIX.strip().splitlines()]
PINNED = {
    (OwnerMove(row), Owner(owner)): None if target == "refused" else Owner(target)
    for row, *targets in LINES
    for owner, target in zip(HEADER[1:], targets, strict=True)
}


def test_every_owner_and_every_move_has_been_decided_upon() -> None:
    assert HEADER[1:] == [owner.value for owner in Owner]
    assert [row for row, *_ in LINES] == [move.value for move in OwnerMove]


@pytest.mark.parametrize(("move", "owner"), list(PINNED))
def test_the_table_says_what_is_pinned_here(move: OwnerMove, owner: Owner) -> None:
    assert OWNERSHIP[move].get(owner) == PINNED[move, owner]


# A chat that is unowned or held, and the command that makes the table's move happen to it.
Trial = tuple[Callable[[], Story], Callable[[Story], cmd.Command]]

TRIALS: dict[tuple[OwnerMove, Owner], list[Trial]] = {
    (OwnerMove.CLAIM, Owner.UNOWNED): [(unclaimed, lambda story: cmd.Claim(worker="w1"))],
    (OwnerMove.CLAIM, Owner.HELD): [
        (model_next, lambda story: cmd.Claim(worker="w2")),
        (model_next, lambda story: cmd.Claim(worker="w1")),
    ],
    (OwnerMove.WRITE, Owner.UNOWNED): [(unclaimed, lambda story: cmd.Note(by=story.by, topic="x"))],
    (OwnerMove.WRITE, Owner.HELD): [(model_next, lambda story: cmd.Note(by=story.by, topic="x"))],
    (OwnerMove.REST, Owner.UNOWNED): [(waiting, lambda story: cmd.Stop())],
    (OwnerMove.REST, Owner.HELD): [
        (said, lambda story: cmd.FinishTurn(by=story.by)),
        (lambda: _outside(), lambda story: cmd.Park(by=story.by)),
        (model_next, lambda story: cmd.Fail(by=story.by, error=BOOM)),
    ],
    (OwnerMove.RELEASE, Owner.UNOWNED): [(unclaimed, lambda story: cmd.Release(by=story.by))],
    (OwnerMove.RELEASE, Owner.HELD): [(model_next, lambda story: cmd.Release(by=story.by))],
    (OwnerMove.EXPIRE, Owner.UNOWNED): [(unclaimed, lambda story: cmd.LeaseExpired(worker="w1"))],
    (OwnerMove.EXPIRE, Owner.HELD): [(model_next, lambda story: cmd.LeaseExpired(worker="w1"))],
}


def _outside() -> Story:
    return model_next().calls("a").asks("a")


def owner_of(story: Story) -> Owner:
    return Owner.HELD if story.chat.worker else Owner.UNOWNED


@pytest.mark.parametrize(("move", "owner"), list(PINNED))
def test_what_happens_to_a_chats_owner_is_what_the_table_says(move: OwnerMove, owner: Owner) -> None:
    for telling, happening in TRIALS[move, owner]:
        story = telling()
        assert owner_of(story) is owner
        outcome = apply(story.snapshot, happening(story), story.now)
        if PINNED[move, owner] is None:
            assert isinstance(outcome, Refused)
            assert outcome.reason == ("taken" if move is OwnerMove.CLAIM else "stale_writer")
        else:
            assert not isinstance(outcome, Refused), outcome
            assert (Owner.HELD if outcome.after.chat.worker else Owner.UNOWNED) is PINNED[move, owner]


# --- claim ------------------------------------------------------------------------------------------


def test_every_claim_has_a_higher_fence_than_the_one_before() -> None:
    story = Story()
    assert story.claimed("w1").chat.fence == 1
    assert story.lost().claimed("w2").chat.fence == 2
    assert story.lost().claimed("w2").chat.fence == 3


def test_a_held_chat_needs_no_wake_at_and_has_none() -> None:
    story = Story()
    assert story.chat.wake_at == START
    assert story.claimed().chat.wake_at is None


def test_a_chat_that_is_not_due_yet_is_not_claimed() -> None:
    story = Story().claimed().lost().claimed()
    story.does(cmd.LeaseExpired(worker="w1"))
    assert story.chat.wake_at == story.now + 1_000
    story.later(999).refuses(cmd.Claim(worker="w2"), reason="not_due")
    story.later(1).claimed("w2")


def test_a_chat_that_runs_is_due_whatever_the_clock_says_but_for_a_backoff_of_its_own_length() -> None:
    assert Story().later(-HOUR_MS).claimed("w2").chat.worker == "w2"
    story = Story().claimed().lost().claimed()
    story.does(cmd.LeaseExpired(worker="w1"))
    assert (story.chat.wake_at, story.chat.backoff_ms) == (story.now + 1_000, 1_000)
    story.refuses(cmd.Claim(worker="w2"), reason="not_due")
    story.later(-1).claimed("w2")
    assert story.chat.backoff_ms == 0


@pytest.mark.parametrize("telling", [answered, failed])
def test_a_chat_at_rest_is_not_claimed(telling: Callable[[], Story]) -> None:
    telling().later(HOUR_MS).refuses(cmd.Claim(worker="w2"), reason="state")


def test_a_waiting_chat_is_claimed_only_when_its_wake_at_is_due() -> None:
    waiting().later(HOUR_MS).refuses(cmd.Claim(worker="w2"), reason="not_due")
    story = waiting(expires_in_ms=1_000)
    story.later(999).refuses(cmd.Claim(worker="w2"), reason="not_due")
    story.later(1).claimed("w2")
    assert (story.state, story.chat.worker) == ("running", "w2")


# --- a stale writer ---------------------------------------------------------------------------------


def test_a_writer_whose_fence_is_old_is_refused_and_told_who_holds_the_chat() -> None:
    story = Story().claimed("w1")
    stale = story.by
    story.lost().claimed("w2")
    refused = story.refuses(cmd.Note(by=stale, topic="x"), reason="stale_writer")
    assert "held by w2 under fence 2" in refused.message


def test_the_same_worker_with_an_old_fence_is_as_stale_as_any_other() -> None:
    story = Story().claimed("w1")
    stale = story.by
    story.lost().claimed("w1")
    story.refuses(cmd.FinishTurn(by=stale), reason="stale_writer")


def test_a_worker_that_guesses_the_fence_is_refused() -> None:
    story = Story().claimed("w1")
    story.refuses(cmd.Note(by=cmd.Writer("w2", 1, 0), topic="x"), reason="stale_writer")


def test_a_write_made_for_an_older_epoch_is_refused() -> None:
    story = Story().claimed()
    stale = story.by
    story.sends("i1", "interrupt")
    story.refuses(cmd.Fail(by=stale, error=BOOM), reason="stale_epoch")


@pytest.mark.parametrize("row", sorted(cmd.COMMANDS))
def test_every_command_of_a_runner_is_fenced(row: str) -> None:
    is_runners = issubclass(cmd.COMMANDS[row], cmd.RunnerCommand)
    assert is_runners == ("by" in cmd.COMMANDS[row].__struct_fields__ and row not in ("approve", "deny", "submit"))


def test_only_what_a_body_did_and_said_the_end_of_a_stop_and_a_handover_pass_an_older_epoch() -> None:
    """After history was cut: what has happened has happened, and the stop must end."""
    assert {"outcome", "note", "keep", "finish_stop", "release"} == cmd.EPOCH_FREE
    for kind in sorted(cmd.EPOCH_FREE):
        story = Story().claimed().calls("a", start=True)
        before = story.by
        story.edits(0)
        assert story.chat.epoch == before.epoch + 1
        commands: dict[str, cmd.Command] = {
            "outcome": cmd.Outcome(by=before, call_id="a", content="ok"),
            "note": cmd.Note(by=before, topic="progress", call_id="a"),
            "keep": cmd.Keep(by=before, key="session", text="s1"),
            "finish_stop": cmd.FinishStop(by=before),
            "release": cmd.Release(by=before),
        }
        story.does(commands[kind])


def test_not_even_those_pass_an_older_fence() -> None:
    story = Story().claimed().calls("a", start=True)
    stale = story.by
    story.lost().claimed("w2")
    story.refuses(cmd.Outcome(by=stale, call_id="a", content="ok"), reason="stale_writer")
    story.refuses(cmd.Release(by=stale), reason="stale_writer")
    story.stops()
    story.refuses(cmd.FinishStop(by=stale), reason="stale_writer")
