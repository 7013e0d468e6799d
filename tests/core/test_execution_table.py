"""The execution table, cell by cell: pinned here as data, and walked with real commands on real chats.

A state, a command or a target that is added or taken away without a decision here makes this file fail.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.apply import apply, row_of
from holdfast.core.cells import find_function, messages, turn
from holdfast.core.change import Change, Refused
from holdfast.core.records import External, Failure, LeaseEnd, NewChat, Role, Snapshot, State, Synthetic
from holdfast.core.spending import SpendingKind
from holdfast.core.states import EXECUTION, ROWS
from tests.support import invariants
from tests.support.situations import HOUR_MS, SITUATIONS, broken
from tests.support.story import BOOM, START, Story, asks_for, assistant, user

MATRIX = """
command            idle           running          stopping               waiting          failed
send.queue         running        running          stopping               waiting,running  running
send.interrupt     running        stopping         stopping               running          running
send.steer         running        running          stopping               waiting,running  running
give               idle           refused          refused                refused          refused
edit               running        stopping         stopping               running          running
stop               idle           stopping         stopping               idle,running     failed
promote            refused        stopping         stopping               running          running
withdraw           refused        running          stopping               waiting          failed
approve            refused        running          refused                running          refused
deny               refused        running          refused                waiting,running  refused
submit             refused        running          refused                waiting,running  refused
compact            running        running          refused                refused          running
retry              refused        refused          refused                refused          running
go_on              running        refused          refused                refused          refused
fork               idle           running          stopping               waiting          failed
archive            idle           refused          refused                refused          failed
rename             idle           running          stopping               waiting          failed
count_spending     idle           running          stopping               waiting          failed
delete             idle           refused          refused                refused          failed
child_ended        idle           running          stopping               waiting,running  failed
due                idle           running          stopping               waiting,running  failed
reached            refused        running          refused                refused          refused
descendant         idle           running          stopping               waiting          failed
responded          refused        running          refused                refused          refused
ask_again          refused        running          refused                refused          refused
attempt_lost       refused        running          refused                refused          refused
start_calls        refused        running          refused                refused          refused
ask_approval       refused        running          refused                refused          refused
delegate           refused        running          refused                refused          refused
refuse             refused        running          refused                refused          refused
outcome            refused        running          stopping               refused          refused
reach              refused        running          refused                refused          refused
note               refused        running          stopping               refused          refused
keep               refused        running          stopping               refused          refused
finish_compaction  refused        running          refused                refused          refused
park               refused        waiting          refused                refused          refused
finish_turn        refused        idle,running     refused                refused          refused
finish_stop        refused        refused          idle,running           refused          refused
fail               refused        failed           idle,running           refused          refused
claim              refused        running          stopping               waiting,running  refused
release            refused        running          stopping               refused          refused
lease_expired      refused        running,failed   stopping,idle,running  refused          refused
lease_outlived     refused        running          stopping               refused          failed,running
repair             idle,running   running          stopping               waiting,running  failed
"""

HEADER, *LINES = [line.split() for line in MATRIX.strip().splitlines()]
PINNED = {
    (row, State(state)): None if target == "refused" else {State(name) for name in target.split(",")}
    for row, *targets in LINES
    for state, target in zip(HEADER[1:], targets, strict=True)
}
PAIRS = list(PINNED)
REFUSED = [pair for pair, targets in PINNED.items() if targets is None]
ACCEPTED = [pair for pair, targets in PINNED.items() if targets is not None]


def test_every_state_and_every_command_has_been_decided_upon() -> None:
    assert HEADER[1:] == [state.value for state in State]
    assert [row for row, *_ in LINES] == list(ROWS)
    assert {row.partition(".")[0] for row in ROWS} == set(cmd.COMMANDS)
    assert len(PAIRS) == len(ROWS) * len(State)


def test_every_kind_of_command_is_listed_once() -> None:
    defined = {
        kind
        for kind in vars(cmd).values()
        if isinstance(kind, type) and issubclass(kind, cmd.Command) and kind not in (cmd.Command, cmd.RunnerCommand)
    }
    assert set(cmd.COMMANDS.values()) == defined
    assert len(cmd.COMMANDS) == len(defined)


@pytest.mark.parametrize(("row", "state"), PAIRS)
def test_the_table_says_what_is_pinned_here(row: str, state: State) -> None:
    cell = EXECUTION[row].get(state)
    assert (None if cell is None else set(cell.to)) == PINNED[row, state]


def test_a_cell_is_carried_out_by_the_one_function_of_its_name() -> None:
    assert find_function("begin") is messages.begin
    assert find_function("retry") is turn.retry, "another subject uses it too, and that is no second one"
    with pytest.raises(ValueError, match="not enough values"):
        find_function("no_such_cell")


@pytest.mark.parametrize("state", list(State))
def test_there_are_chats_to_try_in_every_state(state: State) -> None:
    for name, telling in SITUATIONS[state].items():
        story = telling()
        assert story.state is state, name


# --- the walk ---------------------------------------------------------------------------------------


@cache
def chats_in(state: State) -> dict[str, Story]:
    return {name: telling() for name, telling in SITUATIONS[state].items()}


def commands_for(row: str, snapshot: Snapshot, by: cmd.Writer) -> list[cmd.Command]:
    """Everything of this row that could be tried on this chat, sensible or not, from its rightful holder."""
    name, _, mode = row.partition(".")
    calls = [call.id for call in snapshot.calls] or ["a"]
    queued = [queued.id for queued in snapshot.queue] or ["q1"]
    attempt = (
        snapshot.chat.attempt_ended + 1 if snapshot.chat.attempt_ended >> 20 == by.fence else (by.fence << 20) + 1
    )
    child = NewChat(id="another", agent="agent", message=user("task"))
    asked = assistant("r1", *asks_for("x", "y"))
    plans = (cmd.PlannedCall(id="x", start=True), cmd.PlannedCall(id="y"))
    match name:
        case "send":
            return [cmd.Send(message=user("new"), mode=mode)]  # type: ignore[arg-type]
        case "give":
            return [cmd.Give(messages=(user("before"), assistant("r0"))), cmd.Give(agent="another")]
        case "edit":
            return [cmd.Edit(pos=0, role=Role.USER, epoch=snapshot.chat.epoch, message=user("new"))]
        case "stop":
            return [cmd.Stop(), cmd.Stop(clear_queue=True)]
        case "promote":
            return [cmd.Promote(message_id=message_id) for message_id in queued]
        case "withdraw":
            return [cmd.Withdraw(message_id=message_id) for message_id in queued]
        case "approve":
            return [cmd.Approve(call_id=call_id) for call_id in calls]
        case "deny":
            return [cmd.Deny(call_id=call_id) for call_id in calls]
        case "submit":
            return [cmd.Submit(call_id=call_id, content="mine") for call_id in calls]
        case "child_ended":
            return [cmd.ChildEnded(child_id=child_id, turn=1, text="done") for child_id in ("child", "stranger")]
        case "reached":
            return [cmd.Reached(call_id=call_id, content="told") for call_id in calls]
        case "reach":
            return [
                *(cmd.Reach(by=by, call_id=call_id, child_id="child", message=user("more")) for call_id in calls),
                *(cmd.Reach(by=by, call_id=call_id, child_id="child") for call_id in calls),
            ]
        case "descendant":
            return [cmd.Descendant(chat_id="child", agent="agent", asking=snapshot.calls, answered=snapshot.calls)]
        case "responded":
            return [
                cmd.Respond(by=by, message=assistant("r1"), attempt=attempt),
                cmd.Respond(by=by, message=asked, attempt=attempt, plans=plans),
            ]
        case "rename":
            return [cmd.Rename(title="A name"), cmd.Rename(title="A name", unless_titled=True)]
        case "count_spending":
            life, turn = snapshot.chat.life, snapshot.chat.turn
            return [
                cmd.CountSpending(kind=SpendingKind.TITLE, life=life, turn=turn, tokens=3),
                cmd.CountSpending(kind=SpendingKind.LOST, life=life, turn=turn - 1, cost=0.5),
            ]
        case "ask_again":
            return [cmd.AskAgain(by=by, message=replace(user("again"), synthetic=Synthetic.INVALID_OUTPUT))]
        case "attempt_lost":
            return [cmd.AttemptLost(by=by, attempt=attempt, model="m", error="503")]
        case "start_calls":
            return [cmd.StartCalls(by=by, call_ids=(call_id,)) for call_id in calls]
        case "ask_approval":
            return [cmd.AskApproval(by=by, call_id=call_id, question="May I?") for call_id in calls]
        case "delegate":
            return [
                *(cmd.Delegate(by=by, call_id=call_id, external=External.CLIENT) for call_id in calls),
                *(cmd.Delegate(by=by, call_id=call_id, external=External.CHILD, spawn=child) for call_id in calls),
            ]
        case "refuse":
            return [
                cmd.Refuse(by=by, call_id=call_id, content="no", denied=denied)
                for call_id in calls
                for denied in (False, True)
            ]
        case "outcome":
            return [
                *(
                    cmd.Outcome(by=by, call_id=call_id, content="ok", spawn=spawn)
                    for call_id in calls
                    for spawn in (None, child)
                ),
                *(
                    cmd.Outcome(by=by, call_id=call_id, content="lost", error=True, unknown=True, again=again)
                    for call_id in calls
                    for again in (False, True)
                ),
            ]
        case "note":
            return [cmd.Note(by=by, topic="news", text="...")]
        case "keep":
            return [cmd.Keep(by=by, key="session", text="s1")]
        case "finish_compaction":
            return [cmd.FinishCompaction(by=by, upto=1, summary="short"), cmd.FinishCompaction(by=by, error="no")]
        case "finish_stop":
            length = snapshot.chat.length
            partial = assistant("half", *asks_for("x"))
            return [
                cmd.FinishStop(by=by),
                cmd.FinishStop(by=by, partial=partial, attempt=attempt, length=length),
                cmd.FinishStop(by=by, partial=partial, attempt=attempt, length=length + 1),
            ]
        case "fail":
            return [cmd.Fail(by=by, error=BOOM)]
        case "claim":
            return [cmd.Claim(worker="w2")]
        case "release":
            return [cmd.Release(by=by), cmd.Release(by=by, never_begun=tuple(calls))]
        case "lease_expired":
            return [cmd.LeaseExpired(worker=by.worker, how=how) for how in LeaseEnd]
        case "lease_outlived":
            return [cmd.LeaseOutlived(worker=by.worker)]
        case "repair":
            return [cmd.Repair(reason="test", lease_is_live=live) for live in (True, False)]
        case "park" | "finish_turn":
            return [cmd.COMMANDS[name](by=by)]
        case _:
            return [cmd.COMMANDS[name]()]


def tries(row: str, state: State) -> Iterator[tuple[str, Snapshot, cmd.Command, int]]:
    chats = {name: (story.snapshot, story.by, story.now) for name, story in chats_in(state).items()}
    if row == "repair":
        for reason, snapshot in broken()[state].items():
            chats[f"broken: {reason}"] = (snapshot, cmd.Writer("w1", snapshot.chat.fence, snapshot.chat.epoch), START)
    for name, (snapshot, by, now) in chats.items():
        for command in commands_for(row, snapshot, by):
            assert row_of(command) == row
            yield name, snapshot, command, now
            yield f"{name}, much later", snapshot, command, now + 2 * HOUR_MS


@pytest.mark.parametrize(("row", "state"), REFUSED)
def test_a_refused_pair_changes_nothing_and_names_state_and_command(row: str, state: State) -> None:
    tried = 0
    for name, snapshot, command, now in tries(row, state):
        before = msgspec.json.encode(snapshot)
        outcome = apply(snapshot, command, now)
        assert isinstance(outcome, Refused), name
        assert (outcome.state, outcome.command) == (state, row), name
        # Nobody holds a chat that rests or waits, so there a runner is refused as a stranger.
        assert outcome.reason == (
            "stale_writer" if isinstance(command, cmd.RunnerCommand) and snapshot.chat.worker is None else "state"
        )
        assert outcome.message
        assert msgspec.json.encode(snapshot) == before, name
        tried += 1
    assert tried >= len(SITUATIONS[state])


@pytest.mark.parametrize(("row", "state"), ACCEPTED)
def test_an_accepted_pair_leads_to_every_state_of_its_cell_and_to_no_other(row: str, state: State) -> None:
    reached: dict[State, list[str]] = defaultdict(list)
    for name, snapshot, command, now in tries(row, state):
        outcome = apply(snapshot, command, now)
        if isinstance(outcome, Refused):
            assert outcome.reason != "state", name
            assert (outcome.state, outcome.command) == (state, row), name
        else:
            check(outcome, name, command)
            reached[outcome.after.chat.state].append(name)
    assert set(reached) == PINNED[row, state], dict(reached)


def check(change: Change, name: str, command: cmd.Command) -> None:
    """Whatever was accepted, what is always true is true. A repair must lead there from a broken chat."""
    live = {"w1", "w2"} if not isinstance(command, cmd.Repair) or command.lease_is_live else set[str]()
    assert invariants.promise_7(change.after, live) == [], name
    assert invariants.consistency(change.after) == [], name
    if change.before is not None and not name.startswith("broken"):
        assert invariants.step(change.before, change.after) == [], name


def test_the_walk_would_notice_a_chat_that_goes_where_the_table_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Story().claimed().says().snapshot
    monkeypatch.setitem(
        EXECUTION["finish_turn"],
        State.RUNNING,
        msgspec.structs.replace(EXECUTION["finish_turn"][State.RUNNING], to=(State.RUNNING,)),
    )
    with pytest.raises(AssertionError, match="idle is not in the table"):
        apply(snapshot, cmd.FinishTurn(by=cmd.Writer("w1", 1, 0)), START)


def test_a_failure_says_everything_it_is_given() -> None:
    error = Failure(code="boom", message="it broke", chain=("because", "of that"))
    story = Story().claimed()
    story.does(cmd.Fail(by=story.by, error=error))
    assert story.chat.error == error
