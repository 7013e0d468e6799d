"""The sessions of a chat's coding agents: what is kept of each, durably, before its program starts.

A session has a name that a model can say, such as `claude-1`. What is kept of it is a keepsake of the chat, so a
worker that takes over finds it, and no chat can go on with a session of another's.
"""

import uuid
from collections.abc import Iterable

import msgspec

from holdfast.core.records import Frozen
from holdfast.errors import ToolFailed
from holdfast.tools.coding_agents.verdicts import Figures
from holdfast.tools.context import ToolContext

NAMESPACE = uuid.UUID("6d0c1d3e-4c4d-5f3b-9d86-0f6b3c8f2a11")
LATEST = "latest"


class Session(Frozen):
    """`id` is the program's; empty: it has not told it yet. `call` is the last call that it worked for."""

    name: str
    program: str
    id: str
    call: str
    host: str  # where its files are
    acted: bool = False  # it said or did something, for whichever call
    tokens: int | None = None  # its last figures
    cost: float | None = None

    @property
    def figures(self) -> Figures:
        return Figures(tokens=self.tokens, cost=self.cost)


_decode = msgspec.json.Decoder(Session)


def session_id(context: ToolContext) -> str:
    """The same in every run of the call."""
    return str(uuid.uuid5(NAMESPACE, context.key))


class Sessions:
    """Of one tool, in the chat of one call."""

    def __init__(self, tool: str, program: str, context: ToolContext) -> None:
        self._tool = tool
        self._program = program
        self._context = context

    @property
    def _prefix(self) -> str:
        return f"coding:{self._tool}:"

    def all(self) -> list[Session]:
        """Those that are remembered, the one that worked last at the end. What cannot be read is passed over."""
        found = []
        for key, text in self._context.kept.items():
            if key.startswith(self._prefix):
                try:
                    session = _decode.decode(text)
                except msgspec.MsgspecError:
                    continue
                if session.program == self._program:
                    found.append(session)
        return found

    def begun_by_this_call(self) -> Session | None:
        """By an earlier run of it, whose worker was lost or stopped."""
        return next((one for one in self.all() if one.call == self._context.call_id), None)

    def find(self, name: str) -> Session:
        """Raises ToolFailed."""
        known = self.all()
        if name == LATEST and known:
            return known[-1]
        for one in known:
            if one.name == name:
                return one
        names = ", ".join(one.name for one in known) or "none"
        raise ToolFailed(
            f"There is no session {name[:80]!r} of {self._tool} in this conversation that is remembered. Known: "
            f"{names}. Leave `session` out to begin one, and say in the task what it has to know."
        )

    def new(self, id: str, host: str, taken: Iterable[str]) -> Session:
        """Not kept yet. `taken` are names of those that are just beginning."""
        names = (*(one.name for one in self.all()), *taken)
        numbers = [int(number) for name in names if (number := name.rpartition("-")[2]).isdigit()]
        name = f"{self._tool}-{max(numbers, default=0) + 1}"
        return Session(name=name, program=self._program, id=id, call=self._context.call_id, host=host)

    async def keep(self, session: Session) -> None:
        """Durable when it returns. Raises ToolFailed."""
        await self._context.keep(f"{self._prefix}{session.name}", msgspec.json.encode(session).decode())
