"""A tool that asks for a sandbox: what its process gets, and what is asked where this system has none to give.

Such a tool never runs without one unasked. Where there can be none, its `needs_approval` asks a person, and says what
is missing; a chat in which no person would answer is told why not. If a person agreed, the body runs with what part
of it there is: Landlock, or nothing.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import ToolFailed
from holdfast.system import sandbox, spawn_queue
from holdfast.system.sandbox import Sandbox, view_of
from holdfast.system.starter import View
from holdfast.tools.context import ToolContext

UNATTENDED = "unattended"  # in a chat's metadata: no person is there to answer

Approval = Callable[[dict[str, Any], ToolContext], str | None]


class Confinement:
    """Of one tool. What the process sees is settled the first time, before a tool could write a symlink there."""

    def __init__(
        self, sandbox: Sandbox, root: str | Path | None, needed: Callable[[], Iterable[str]] = tuple
    ) -> None:
        self._sandbox = sandbox
        self._root = root
        self._needed = needed
        self._view: View | None = None

    def approval(self, name: str, own: bool | Approval) -> Approval:
        """For its `needs_approval`: what the tool asks itself, and what it has to ask for want of a sandbox."""

        def decide(arguments: dict[str, Any], context: ToolContext) -> str | None:
            asked = (f"Run {name}?" if own else None) if isinstance(own, bool) else own(arguments, context)
            problem = sandbox.problem()
            if problem is None:
                return asked
            if context.metadata.get(UNATTENDED):
                raise ToolFailed(f"Denied: no person is there to be asked, and it {_lacks(problem)}.")
            return f"{asked or f'Run {name}?'}\nIt {_lacks(problem)}. {sandbox.rest()}"

        return decide

    async def begin(self, context: ToolContext) -> "Confined":
        """For its body. Raises ToolFailed if there can be none, and no person agreed to that."""
        problem = await spawn_queue.sandbox_problem()
        if problem is None:
            return Confined(self.settle())
        if not context.approved:
            raise ToolFailed(f"Nothing was run: it {_lacks(problem)}, and no person agreed to go without.")
        return Confined(None, sandbox.stand_in(self.settle()))

    def settle(self) -> View:
        """Raises ConfigError."""
        if self._view is None:
            self._view = view_of(self._sandbox, self._root, self._needed())
        return self._view


class Confined(NamedTuple):
    """How a process is started: with a view, or by a program that restricts itself first."""

    view: View | None = None
    prefix: tuple[str, ...] = ()


def _lacks(problem: str) -> str:
    return f"has to run in a sandbox, which this system does not give ({problem})"
