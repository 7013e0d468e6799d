"""Every line and path of `tests/tools/corpus` against the tools, in a folder of canaries. Prints what went wrong.

    python -m tests.tools.hostile_program

Run by `test_corpus.py`, as root and as an ordinary user. A line that a rulebook lets through is run, and then the
folder must be as it was, no canary may have been woken, and the output may hold nothing from outside of the root.
"""

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.config import Permissions
from holdfast.errors import ToolFailed
from holdfast.system import processes
from holdfast.tools import floor
from holdfast.tools.files.tools import file_tools
from holdfast.tools.permissions.acts import Whereabouts
from holdfast.tools.permissions.rulebook import Rulebook, rulebook_of
from holdfast.tools.shell.acts import acts_of
from holdfast.tools.shell.harmless import PROGRAMS

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
TOKEN = "HOLDFAST-TOKEN-4711"
OUTSIDE = "OUTSIDE-OF-THE-ROOT-4711"
RUN_S = 20


def entries(name: str) -> list[str]:
    lines = (CORPUS / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("# ")]


def rulebooks() -> dict[str, Rulebook]:
    """No rules at all, those of the docs under each mode, and the widest that can be made of the table. What may
    write does."""
    pages = (
        (HERE.parents[1] / f"docs/how-to/{name}.md").read_text(encoding="utf-8") for name in ("permissions", "shell")
    )
    lists = [found for page in pages for found in re.findall(r"(?s)rules ?= ?\[(.*?)\]", page)]
    shown = [
        rule for text in lists for rule in re.findall(r'"((?:allow|ask|deny) [^"]*)"', text) if "npm" not in rule
    ]
    rules = [rule for rule in shown if not rule.startswith("allow write")]
    assert len(rules) > 8
    widest = [f"allow run({name} *)" for name in PROGRAMS]
    widest += ["allow read(**)", "allow call(**)", "allow reach(*:*)"]
    return {
        "none": rulebook_of(None, None, None),
        "read": rulebook_of(Permissions(mode="read", rules=rules), None, None),
        "ask": rulebook_of(Permissions(mode="ask", rules=rules), None, None),
        "unattended": rulebook_of(Permissions(mode="unattended", rules=rules), None, None),
        "widest": rulebook_of(Permissions(mode="ask", rules=widest), None, None),
    }


class Scratch:
    """A root with a repository, holdfast's own files in the default layout, ways out, and canaries."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "root"
        self.out = base / "outside.txt"
        self.own = floor.own(str(self.root / ".holdfast"), str(base / "locks"), str(self.root / "chats.db"))
        self.make()

    def make(self) -> None:
        for entry in self.base.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        root, home = self.root, self.root / ".holdfast"
        for folder in (root, root / "sub", root / "bin", home, home / "holdfast.db-workers", root / ".ssh"):
            folder.mkdir()
        self.out.write_text(OUTSIDE)
        ran = f"#!/bin/sh\n: > {self.base}/RAN\n"
        for name in ("canary", "bin/canary"):
            (root / name).write_text(ran)
            (root / name).chmod(0o755)
        python = f"open({str(self.base / 'RAN')!r}, 'w')\n"
        for name in ("conftest.py", "canary.py"):
            (root / name).write_text(python)
        for name in ("Makefile", "canary.mk"):
            (root / name).write_text("all:\n\t./canary\n")
        (root / "package.json").write_text('{"scripts": {"test": "./canary", "x": "./canary"}}')
        (root / "notes.txt").write_text("notes\n")
        (root / "--output=new.txt").write_text("")
        (root / ".ssh/id_ed25519").write_text(OUTSIDE)
        os.mkfifo(root / "fifo")
        self._make_own(home)
        self._make_repository()
        self.before = self.look()

    def _make_own(self, home: Path) -> None:
        root = self.root
        (home / "token").write_text(TOKEN)
        for suffix in ("", "-wal", "-shm", ".lock"):
            (home / f"holdfast.db{suffix}").write_text(TOKEN)
            (root / f"chats.db{suffix}").write_text(TOKEN)
        (root / "chats.db.before-restore").write_text(TOKEN)
        (root / "holdfast.toml").write_text("# settings\n")
        links = {"token": ".holdfast/token", "home": ".holdfast", "settings": "holdfast.toml", "git": ".git"}
        for name, target in {**links, "chats": "chats.db", "proc": "/proc/self"}.items():
            (root / f"link-to-{name}").symlink_to(target)
        (root / "link.txt").symlink_to(self.out)
        (root / "up").symlink_to("..")
        os.link(home / "token", root / "hardlink-to-token")
        os.link(home / "holdfast.db", root / "hardlink-to-database")

    def _make_repository(self) -> None:
        for line in (["init", "-q"], ["add", "notes.txt"], ["commit", "-qm", "first"]):
            who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.templateDir="]
            subprocess.run(
                ["git", *who, *line], cwd=self.root, check=True, env={**os.environ, "HOME": str(self.base)}
            )
        (self.root / ".git/hooks").mkdir(exist_ok=True)
        hook = self.root / ".git/hooks/sample"
        hook.write_text("")
        os.link(self.root / ".git/config", self.root / "hardlink-to-config")

    def look(self) -> dict[str, str]:
        found = {}
        for path in sorted(self.base.rglob("*")):
            mode = path.lstat().st_mode
            content = path.read_bytes() if stat.S_ISREG(mode) else b""
            if stat.S_ISLNK(mode):
                content = str(path.readlink()).encode()
            if not path.match(".git/index"):  # git refreshes it when it looks
                found[str(path.relative_to(self.base))] = f"{mode:o} {hashlib.sha256(content).hexdigest()}"
        return found

    def changed(self) -> list[str]:
        now = self.look()
        return sorted(path for path in {*now, *self.before} if now.get(path) != self.before.get(path))

    def meant(self, text: str) -> str:
        return text.replace("{out}", str(self.out)).replace("{root}", str(self.root)).replace("⏎", "\n")


def output(line: str, root: Path, environment: dict[str, str]) -> str:
    with (
        tempfile.TemporaryFile() as told,
        subprocess.Popen(
            ["/bin/sh", "-c", line], cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=told, stderr=told
        ) as process,
    ):
        try:
            process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            process.kill()
        told.seek(0)
        return told.read().decode(errors="replace")


def judged_lines(scratch: Scratch, tally: dict[str, int]) -> Iterator[str]:
    environment = processes.environment({"HOME": str(scratch.base)})
    where = Whereabouts(root=str(scratch.root))
    for name, book in rulebooks().items():
        for entry in entries("lines.txt"):
            line = scratch.meant(entry)
            tally["judged"] = tally.get("judged", 0) + 1
            if book.judge(acts_of(line), where).ruling != "allow":
                continue
            tally["ran"] = tally.get("ran", 0) + 1
            said = output(line, scratch.root, environment)
            leaked = [word for word in (TOKEN, OUTSIDE) if word in said]
            if (changed := scratch.changed()) or leaked:
                yield f"{name}: {line!r} ran unasked; changed {changed}, told {leaked}"
                scratch.make()


def judged_paths(scratch: Scratch, tally: dict[str, int]) -> Iterator[str]:
    tools = {made.name: made for made in file_tools(scratch.root, hidden=True)}
    for entry in entries("paths.txt"):
        kinds, _, text = entry.partition(" ")
        path = scratch.meant(text)
        calls: list[tuple[str, dict[str, Any]]] = []
        if "r" in kinds:
            calls += [("read_file", {}), ("search_files", {"text": "4711"}), ("list_files", {})]
        if "w" in kinds:
            calls += [
                ("write_file", {"content": "mine"}),
                ("edit_file", {"old": "o", "new": "mine", "replace_all": True}),
            ]
        for name, arguments in calls:
            tally["paths"] = tally.get("paths", 0) + 1
            made = tools[name]
            try:
                said = str(made(**made.validate(json.dumps({"path": path, **arguments}))))
            except ToolFailed:
                said = ""
            if name in ("write_file", "edit_file") and said:
                yield f"{name} {path!r}: {said}"
            if TOKEN in said or OUTSIDE in said or scratch.changed():
                yield f"{name} {path!r} told {said[:100]!r} and changed {scratch.changed()}"
                scratch.make()


def main() -> None:
    tally: dict[str, int] = {}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        scratch = Scratch(Path(folder))
        floor.protect(scratch.own)
        wrong = [*judged_lines(scratch, tally), *judged_paths(scratch, tally)]
    print(json.dumps({"user": os.getuid(), "wrong": wrong, **tally}))  # noqa: T201
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
