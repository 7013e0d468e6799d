"""Random turns: whatever models say, tools do, clients want and workers die of, what was promised holds.

A plan is drawn: scripts for the models of one to three chats, and a list of acts: clients that send, stop, edit and
approve, workers that come, are shut down, or drop dead where they stand. A last, healthy worker brings everything to
rest; then the judge compares what is in the store with what was acknowledged, what readers saw, and what really
happened outside of it.

`HOLDFAST_RANDOM_TURNS=500` plays more of them, `HOLDFAST_RANDOM_SEED=7` others.
"""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, example, given, seed, settings

from holdfast.models.scripted import Call, Hold, Say
from holdfast.store.records import Item
from tests.support.scale import scaled
from tests.support.scratch import scratch_folder
from tests.worker.clients import Clients, Sent
from tests.worker.evidence import Line
from tests.worker.plans import Act, Plan, plans
from tests.worker.world import Tamper, World

NewUrl = Callable[[Path], str]
PLANS = {"sqlite": scaled(7, 60), "postgres": scaled(3, 30)}


@pytest.fixture(params=list(PLANS))
def store_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def new_url(store_kind: str, request: pytest.FixtureRequest) -> NewUrl:
    """A file for each plan; on PostgreSQL one database for all, where the chats of earlier plans are at rest."""
    if store_kind == "sqlite":
        return lambda folder: f"sqlite:///{folder}/holdfast.db"
    url: str = request.getfixturevalue("postgres_url")
    return lambda _: url


def play(new_url: NewUrl, plan: Plan, compactions: Counter[str]) -> list[str]:
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        world = World(new_url(Path(folder)), Path(folder), plan)
        wrong = asyncio.run(world.play())
        compactions += world.compactions
        return wrong


SEED = int(os.environ.get("HOLDFAST_RANDOM_SEED", "2"))

# A talk with each of three models that are compacted in ways of their own. Chance takes each way in one run, and none
# in another.
EVERY_WAY = Plan(
    scripts=((), (), ()),
    acts=(
        *(Act(op=op, chat=chat) for chat in range(3) for op in ("send", "let_models_go") * 9),
        *(Act(op="compact"), Act(op="let_models_go"), Act(op="send", pause="read")),
    ),
)


@pytest.mark.timeout(300)
def test_whatever_happens_in_a_turn_what_was_promised_holds(store_kind: str, new_url: NewUrl) -> None:
    compactions: Counter[str] = Counter()

    @settings(
        max_examples=int(os.environ.get("HOLDFAST_RANDOM_TURNS", PLANS[store_kind])),
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),  # a failing plan is short enough to read, and shrinking has no bound
        suppress_health_check=list(HealthCheck),
    )
    @seed(SEED)
    @given(plan=plans())
    @example(plan=EVERY_WAY)
    def check(plan: Plan) -> None:
        assert play(new_url, plan, compactions) == []

    check()
    assert {"asked", "near_limit", "too_long", "left out"} <= set(compactions), "each way is taken"


# --- the judge -------------------------------------------------------------------------------------

A_STOP = Plan(
    scripts=(((Call(name="launch"),), (Say(text="Half of it. "), Hold(name="here"), Say(text="The rest."))),),
    acts=(Act(op="let_bodies_go", pause="read"), Act(op="stop", pause="read"), Act(op="send", pause="settle")),
)


A_COMPACTION = Plan(
    scripts=((),),
    acts=(*[Act(op="send")] * 2, Act(op="compact"), Act(op="let_models_go"), Act(op="send", pause="read")),
)


def lines(evidence: list[Line], what: str) -> list[Line]:
    return [line for line in evidence if line.what == what]


def again(evidence: list[Line], line: Line, **changes: object) -> None:
    evidence.append(msgspec.structs.replace(line, **changes))


TAMPERINGS: dict[str, Tamper] = {
    "was entered 2 times": lambda _, evidence: again(evidence, lines(evidence, "entered")[0]),
    "and nobody did it": lambda _, evidence: evidence.remove(lines(evidence, "entered")[0]),
    "got the key other": lambda _, evidence: again(evidence, lines(evidence, "entered")[0], tool="pay", key="other"),
    "asked the same again": lambda _, evidence: again(evidence, lines(evidence, "asked")[0], n="w9.9"),
    "request w1.1 was not valid": lambda _, evidence: lines(evidence, "asked")[0].wrong.append("no"),
    "answers ['u1', 'u9']": lambda _, evidence: lines(evidence, "asked")[0].ids.append("u9"),
    "was said before the stop": lambda _, evidence: again(evidence, lines(evidence, "said")[2], n="w1.2"),
    "u9 was taken": lambda clients, _: clients.sent.append(Sent(clients.followed[0].chat.id, "u9", "text 9")),
    "u1 was refused, and is there": lambda clients, _: setattr(clients.sent[0], "refused", True),
    "1 edits were acknowledged": lambda clients, _: setattr(clients.followed[0], "edits", 1),
    "who asked for 0": lambda clients, _: setattr(clients.followed[0], "stops", 0),
    "was next": lambda clients, _: clients.followed[0].items.pop(1),
    "a reader got delta": lambda clients, _: clients.followed[0].items.append(delta_of(clients)),
    "is what was said": lambda clients, _: show_another(clients),
}


def delta_of(clients: Clients) -> Item:
    return next(item for item in clients.followed[0].items if item.k is not None)


def show_another(clients: Clients) -> None:
    items = clients.followed[0].items
    at = items.index(delta_of(clients))
    items[at] = msgspec.structs.replace(items[at], body=b'{"part":"text","text":"Something else. "}')


def reach(clients: Clients, upto: int) -> None:
    """Tell of another compaction than there was."""
    items = clients.followed[0].items
    at = next(at for at, item in enumerate(items) if b'"kind":"compacted"' in item.body)
    items[at] = msgspec.structs.replace(items[at], body=items[at].body.replace(b'"upto":4', b'"upto":%d' % upto))


COMPACTIONS: dict[str | None, Tamper | None] = {
    None: None,
    "not ['summary.2',": lambda clients, _: reach(clients, 2),
    "in the middle of a group": lambda clients, _: reach(clients, 9),
}


@pytest.mark.parametrize("complaint", COMPACTIONS)
def test_the_judge_notices_what_a_compaction_is_not(complaint: str | None, tmp_path: Path) -> None:
    world = World(f"sqlite:///{tmp_path}/holdfast.db", tmp_path, A_COMPACTION, COMPACTIONS[complaint])
    found = asyncio.run(world.play())
    assert world.compactions == {"asked": 1}
    assert found == [] if complaint is None else any(complaint in what for what in found), found


@pytest.mark.parametrize("complaint", [None, *TAMPERINGS])
def test_the_judge_notices(complaint: str | None, tmp_path: Path) -> None:
    """Told the truth it finds nothing; told of one thing too many, or one too few, it names that."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    tamper = TAMPERINGS[complaint] if complaint is not None else None
    found = asyncio.run(World(url, tmp_path, A_STOP, tamper).play())
    assert found == [] if complaint is None else any(complaint in what for what in found), found
