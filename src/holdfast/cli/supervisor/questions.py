"""How all processes are, asked by one of them: the others are asked, and what they told in time is the answer."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.cli.supervisor.child import Child
from holdfast.system.supervised import ASK_S

TELL_S = ASK_S / 2  # that a process has for its answer; one that takes longer is named as silent
QUESTIONS_MAX = 64


class _Question:
    def __init__(self, asker: Child, number: int, facts: dict[str, Any], asked: set[Child]) -> None:
        self.asker = asker
        self.number = number
        self.facts = facts
        self.due_s = time.monotonic() + TELL_S
        self.missing = asked
        self.answers: dict[Child, dict[str, Any]] = {}


class Questions:
    """Each process has at most two under way: for verdicts and in detail."""

    def __init__(self, children: Callable[[], Sequence[Child]], standing: Callable[[Child], dict[str, Any]]) -> None:
        self._children = children
        self._standing = standing
        self._open: dict[int, _Question] = {}
        self._next = 0

    @property
    def due_s(self) -> float | None:
        return min((question.due_s for question in self._open.values()), default=None)

    def ask(self, asker: Child, number: int, facts: dict[str, Any], *, detailed: bool) -> None:
        if len(self._open) >= QUESTIONS_MAX:
            return
        self._next += 1
        asked = {child for child in self._children() if child.state != "starting"}
        self._open[self._next] = _Question(asker, number, facts, asked)
        for child in asked:
            child.say({"tell": self._next, "detailed": detailed})
        self.expire(0.0)

    def answer(self, child: Child, key: int, figures: dict[str, Any]) -> None:
        question = self._open.get(key)
        if question is not None:
            question.answers[child] = figures
            question.missing.discard(child)
            self.expire(0.0)

    def forget(self, child: Child) -> None:
        """It is gone: its answer is not waited for, and its question has no reader."""
        for key, question in list(self._open.items()):
            question.missing.discard(child)
            if question.asker is child:
                del self._open[key]
        self.expire(0.0)

    def expire(self, now_s: float) -> None:
        """Tells what is complete, or due."""
        for key, question in list(self._open.items()):
            if not question.missing or now_s >= question.due_s:
                del self._open[key]
                told = [{**self._standing(child), "told": question.answers.get(child)} for child in self._children()]
                question.asker.say({"all": question.number, "supervisor": question.facts, "processes": told})
