"""A plan is data: what the models will say, what clients do, when workers come, go and die."""

from itertools import chain
from typing import Literal

import msgspec
from hypothesis import strategies as st

from holdfast.models.scripted import Call, Cut, Fail, Hold, Response, Say, Step, Think, Together
from tests.worker.toolbox import APPROVED, AT_ONCE, GATED

# Before the next act: so many rounds of the event loop, or all that happens by itself, or until readers have seen it.
Pause = int | Literal["settle", "read"]

CLIENT_OPS = (
    *("send", "interrupt", "steer", "edit", "stop", "stop_and_clear", "promote", "withdraw"),
    *("approve", "deny", "answer", "retry", "fork", "archive", "compact"),
)
WORLD_OPS = ("let_models_go", "let_bodies_go", "start", "shut_down", "drain", "drop")


class Act(msgspec.Struct, frozen=True):
    op: str
    chat: int = 0
    pick: int = 0  # which message, which call
    pause: Pause = "settle"


class Plan(msgspec.Struct, frozen=True):
    scripts: tuple[tuple[Response, ...], ...]  # one per chat
    acts: tuple[Act, ...]


_words = st.sampled_from(("Yes. ", "One two three. ", "A longer text, piece by piece. "))
_says = st.builds(Say, text=_words, piece_chars=st.sampled_from((None, 3)))
_thoughts = st.builds(Think, text=st.just("Hm, let me see. "), signature=st.sampled_from((None, "signed")))
_holds = st.just(Hold(name="?"))
_arguments = st.sampled_from(("{}", "{}", "{}", "{}", "{}", '{"odd":1}', '{"cut'))
_calls = st.builds(Call, name=st.sampled_from((*GATED, *AT_ONCE, *APPROVED, "no_such_tool")), arguments=_arguments)
_gated = st.builds(Call, name=st.sampled_from(GATED))
_batches = st.one_of(
    _gated,
    _calls,
    st.builds(
        lambda gated, others: Together(calls=(gated, *others)), _gated, st.lists(_calls, min_size=1, max_size=2)
    ),
)
_passing = st.one_of(
    st.builds(Fail, status=st.sampled_from((429, 500, 529)), attempts=st.integers(1, 2)),
    st.builds(Cut, attempts=st.just(1)),
)

KINDS = ("calls", "calls", "said and calls", "said and calls", "held text", "held text", "held calls", "text")
RARE = ("empty", "fatal", "passing", "thought")


@st.composite
def _responses(draw: st.DrawFn) -> tuple[Step, ...]:
    kind = draw(st.sampled_from((*KINDS, *KINDS, *RARE)))
    if kind == "empty":
        return ()
    if kind == "fatal":
        return (draw(_says), Fail(status=400))
    steps: list[Step] = []
    if kind == "thought":
        steps.append(draw(_thoughts))
    if kind != "calls":
        steps.append(draw(_says))
    if kind == "passing":
        steps.append(draw(_passing))
    if kind.startswith("held"):
        steps.append(draw(_holds))
    steps.append(draw(_batches if kind.endswith("calls") or kind == "passing" else _says))
    if kind == "held calls":
        steps.append(draw(_holds))
    return tuple(steps)


def _named(script: list[tuple[Step, ...]]) -> tuple[Response, ...]:
    """Every hold gets a name of its own."""
    return tuple(
        tuple(Hold(name=f"{r}.{s}") if isinstance(step, Hold) else step for s, step in enumerate(response))
        for r, response in enumerate(script)
    )


_scripts = st.lists(_responses(), min_size=2, max_size=5).map(_named)
_pauses: st.SearchStrategy[Pause] = st.one_of(st.sampled_from(("settle", "read", "read")), st.integers(0, 12))


def _acts(ops: tuple[str, ...], pauses: st.SearchStrategy[Pause] = _pauses) -> st.SearchStrategy[Act]:
    return st.builds(Act, op=st.sampled_from(ops), chat=st.integers(0, 2), pick=st.integers(0, 2), pause=pauses)


_client_acts = _acts((*CLIENT_OPS, "send", "send", "steer", "steer", "approve", "approve", "compact", "compact"))
_blows = _acts((*("drop", "drop", "shut_down", "drain"), *("stop", "stop", "interrupt", "edit", "promote")))
_letting_go = _acts(("let_models_go", "let_bodies_go"))


@st.composite
def _scenes(draw: st.DrawFn) -> list[Act]:
    """Something is under way, a blow falls, life goes on."""
    acts = draw(st.lists(st.one_of(_letting_go, _client_acts), max_size=3))
    acts.append(draw(_blows))
    acts += draw(st.lists(_client_acts, max_size=3))
    acts.append(draw(_acts(("start",))))
    return acts


def plans() -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        scripts=st.lists(_scripts, min_size=1, max_size=3).map(tuple),
        acts=st.lists(_scenes(), min_size=2, max_size=4).map(lambda scenes: tuple(chain.from_iterable(scenes))),
    )
