"""A folder with stand-ins for the coding programs on its own PATH, and what became of their runs."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.tools.base import Tool
from holdfast.tools.coding_agents.tool import coding_agent

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
