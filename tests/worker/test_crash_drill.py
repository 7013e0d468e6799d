"""`CrashDrill`: what a user's test is told of an agent that was killed, on both stores."""

from pathlib import Path

import pytest

from holdfast.testing import CrashDrill, Kill, Survived

SHOP = """
from pathlib import Path
from holdfast import Agent, App, tool
from holdfast.testing import Call, ScriptedModel

def note(what):
    with Path("ledger.txt").open("a") as ledger:
        ledger.write(what + "\\n")

@tool
async def refund(order: int) -> str:
    "Pay it back."
    note("refund")
    return "Refunded."

@tool(replay="pure")
async def look(order: int) -> str:
    "Look it up."
    note("look")
    return "It was late."

@tool(needs_approval=True)
async def gift(order: int) -> str:
    "Give a gift."
    note("gift")
    return "Given."

def agent(name, *tools):
    script = [[Call(name=each.name, arguments={"order": 7})] for each in tools]
    return Agent(name, ScriptedModel(*script, "Done."), tools=list(tools))

app = App("sqlite:///holdfast.db", agents=[agent("clerk", refund), agent("reader", look), agent("giver", gift)])
broken = App("sqlite:///holdfast.db", agents=[Agent("mute", ScriptedModel())])
"""


# A change of the chat, and of nothing else: which one is the third is the same each time. Of commits it is not, since
# renewals of leases and streamed text come whenever they come.
CHANGE = "write.chat.after"


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def ledger(survived: Survived) -> list[str]:
    path = survived.folder / "ledger.txt"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


@pytest.mark.timeout(400)
def test_a_kill_at_any_write_runs_an_unsafe_tool_at_most_once_and_says_where_it_is_unknown(
    tmp_path: Path, store_url: str
) -> None:
    drill = CrashDrill("shop:app", "clerk", "Refund order 7.", folder=tmp_path / "runs", database=store_url)
    calm = drill.undisturbed()
    assert (calm.kill, calm.state, calm.text, calm.unknown) == (None, "done", "Done.", ())
    assert [(call.tool, call.state, call.result) for call in calm.calls] == [("refund", "done", "Refunded.")]
    outcomes = set()
    for survived in drill.run(points=[CHANGE]):
        assert (survived.state, survived.text) == ("done", "Done."), survived
        paid = len(ledger(survived))
        assert paid <= 1, survived
        assert paid == 1 or survived.unknown, survived
        outcomes.add(bool(survived.unknown))
    assert outcomes == {True, False}, "some kills fell between its start and its result"


@pytest.mark.timeout(200)
def test_a_pure_tool_is_run_again_and_never_unknown(tmp_path: Path) -> None:
    drill = CrashDrill("shop:app", "reader", "Was it late?", folder=tmp_path / "runs")
    survived = list(drill.run(points=[CHANGE]))
    assert all(found.unknown == () and ledger(found) for found in survived)
    assert max(len(ledger(found)) for found in survived) == 2, "one kill fell before its result was recorded"


@pytest.mark.timeout(200)
def test_approvals_are_given_or_left_open(tmp_path: Path) -> None:
    given = CrashDrill("shop:app", "giver", "A gift.", folder=tmp_path / "given").kill(Kill("commit.after", 5))
    assert given is not None
    assert (given.state, ledger(given)) == ("done", ["gift"])
    left = CrashDrill("shop:app", "giver", "A gift.", folder=tmp_path / "left", approve=False).undisturbed()
    assert (left.state, ledger(left), left.calls[0].state) == ("waiting", [], "asking")


@pytest.mark.timeout(200)
def test_a_point_that_the_turn_never_comes_to_is_none_and_one_that_there_is_not_is_named(tmp_path: Path) -> None:
    drill = CrashDrill("shop:app", "clerk", "Refund order 7.", folder=tmp_path / "runs")
    assert drill.kill(Kill("fork.before", 1)) is None
    with pytest.raises(ValueError, match=r"there is no crash point 'commit\.late'; the points are: write\.begun"):
        drill.kill(Kill("commit.late", 1))


@pytest.mark.timeout(200)
def test_a_turn_that_fails_is_told_and_an_app_that_there_is_not_is_an_error_that_says_so(tmp_path: Path) -> None:
    failed = CrashDrill("shop:broken", "mute", "Hello.", folder=tmp_path / "failed").undisturbed()
    assert failed.state == "failed"
    assert failed.error
    with pytest.raises(AssertionError, match="No module named 'shoop'"):
        CrashDrill("shoop:app", "clerk", "Hello.", folder=tmp_path / "none").undisturbed()
