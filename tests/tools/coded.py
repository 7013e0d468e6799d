"""A folder with stand-ins for the coding programs on its own PATH, and what became of their runs."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.core.budgets import BudgetLeft
from holdfast.tools.base import Tool
from holdfast.tools.coding_agents.programs import CodingProgram
from holdfast.tools.coding_agents.tool import coding_agent
from holdfast.tools.context import ToolContext
from holdfast.worker.guard import Guard
from holdfast.worker.tool_body import Body, Returned, SyncPool

PROGRAM = Path(__file__).with_name("coding_program.py")
KINDS = ("claude", "codex", "gemini")


class CodingBench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "work"
        self.root.mkdir(parents=True, exist_ok=True)
        self.bin = folder / "bin"
        self.bin.mkdir(exist_ok=True)
        for kind in KINDS:
            program = self.bin / kind
            if not program.exists():
                program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {PROGRAM} {folder} {kind} "$@"\n')
                program.chmod(0o755)

    @property
    def path(self) -> str:
        return f"{self.bin}:/usr/bin:/bin"

    @property
    def begun(self) -> Path:
        """There when a run hangs."""
        return self.folder / "coding.begun"

    def plan(self, *cases: str) -> None:
        """What becomes of the runs from now on; of the last one, over and over."""
        (self.folder / "runs.jsonl").unlink(missing_ok=True)
        self.begun.unlink(missing_ok=True)
        (self.folder / "cases.json").write_text(json.dumps(cases))

    @property
    def runs(self) -> list[dict[str, Any]]:
        path = self.folder / "runs.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def tool(self, kind: str, environment: Mapping[str, str] | None = None, **options: Any) -> Tool:
        known = {"PATH": self.path, **(environment or {})}
        return coding_agent(kind, root=self.root, environment=known, **options)


class Caller:
    """Calls of one chat, one after the other, with what it keeps."""

    def __init__(self, guard: Guard, pool: SyncPool) -> None:
        self.guard, self.pool = guard, pool
        self.kept: dict[str, str] = {}
        self.progress: list[str] = []
        self.spent = (0, 0.0)
        self.left = BudgetLeft()

    def body(self, made: Tool, call_id: str) -> Body:
        context = ToolContext(
            call_id=call_id,
            chat_id="chat_1",
            say=self.progress.append,
            children=self.guard,
            kept=lambda: self.kept,
            keep=self._keep,
            budget_left=self._budget_left,
        )
        return Body(made, call_id, context, set())

    async def _budget_left(self) -> BudgetLeft:
        return self.left

    async def _keep(self, key: str, text: str) -> None:
        self.kept.pop(key, None)
        self.kept[key] = text

    async def __call__(self, made: Tool, call_id: str = "call_1", **arguments: Any) -> Returned:
        body = self.body(made, call_id)
        returned = await body.run(json.dumps({"task": "mend it", **arguments}), self.pool.run)
        assert returned is not None
        self.spent = body.context.spending
        return returned


SPEAKER = """#!/bin/sh
cd {folder}
n=$(ls -d run.* 2>/dev/null | wc -l)
mkdir run.$n
cat said.$n
while [ -e wait.$n ]; do sleep 0.05; done
cat more.$n 2>/dev/null
exit $(cat code.$n)
"""


def speaker(bench: CodingBench, program: CodingProgram, *runs: bytes, code: int = 0, grace_s: float = 0.05) -> Tool:
    """A program that says in each run what it is given here, whatever it is asked, and ends with that code."""
    folder = bench.folder / "speaker"
    folder.mkdir()
    for number, run in enumerate(runs):
        (folder / f"said.{number}").write_bytes(run)
        (folder / f"code.{number}").write_text(str(code))
    script = bench.bin / "speaker"
    script.write_text(SPEAKER.format(folder=folder))
    script.chmod(0o755)
    said = replace(program, command=(str(script),), version=())
    return coding_agent(said, root=bench.root, name="speaker", environment={"PATH": bench.path}, grace_s=grace_s)


def times_spoken(bench: CodingBench) -> int:
    return len(list((bench.folder / "speaker").glob("run.*")))
