"""Whether the skills and the AGENTS.md of this folder may be told to a model: they may have come from elsewhere.

A person says it once for a folder, which is the repository that it is in, and that is remembered beside what is
trusted of settings. It is for the folder and not for what the files say now: they change with every commit. Where no
person can be asked they are left out, with one line that says so; no command ends for it.
"""

import os
import sys
from pathlib import Path

import typer

from holdfast.cli.trust import VARIABLE, note_of, plain_interrupts, remember_in, shown
from holdfast.skills.agents_md import nearest, root_of
from holdfast.skills.shelf import Skills, SkillShelf

TRUSTED, REFUSED = "folder", "not this folder"


def trusted_project(folder: Path | None = None) -> Path | None:
    """The folder, if it has something to tell and a person trusts it. Asks at a terminal, once."""
    folder = Path.cwd() if folder is None else folder
    if not speaks(folder):
        return None
    root = root_of(folder.resolve())
    said = _said(root)
    if said is None and sys.stdin.isatty() and sys.stderr.isatty():
        with plain_interrupts():
            words = f"Tell the model the skills and the AGENTS.md in {shown(root)}? Whoever wrote them speaks to it"
            said = typer.confirm(words, err=True)
        remember_in(_note(root), TRUSTED if said else REFUSED, root)
    elif said is None:
        words = f"`holdfast trust` there, or the folder in {VARIABLE}, lets them be used"
        told = f"holdfast: skills and AGENTS.md in {shown(root)} are left out, it is not trusted: {words}"
        print(told, file=sys.stderr)
    return folder if said else None


def speaks(folder: Path) -> bool:
    """Whether there is anything to trust."""
    if nearest(folder) is not None:
        return True
    found = SkillShelf([Skills.of_project(place) for place in project_folders(folder)]).look()
    return bool(found.skills or found.problems)


def project_folders(folder: Path) -> list[Path]:
    """Whose skills count: the folder's own before those of its repository."""
    root = root_of(folder.resolve())
    return [folder] if folder.resolve() == root else [folder, root]


def trust_folder(folder: Path, *, forget: bool) -> Path | None:
    """For `holdfast trust`: the folder that was spoken of; None: there is nothing to say. Raises ConfigError."""
    root = root_of(folder.resolve())
    if forget:
        known = _note(root).is_file()
        _note(root).unlink(missing_ok=True)
        return root if known else None
    if not speaks(folder):
        return None
    remember_in(_note(root), TRUSTED, root)
    return root


def _said(root: Path) -> bool | None:
    """None: no person was asked yet."""
    folders = [Path(place).resolve() for place in os.environ.get(VARIABLE, "").split(os.pathsep) if place]
    if any(root.is_relative_to(place) for place in folders):
        return True
    try:
        first, path = _note(root).read_text(encoding="utf-8", errors="surrogateescape").split("\n")[:2]
    except (OSError, ValueError):
        return None
    return first == TRUSTED if path == str(root) and first in (TRUSTED, REFUSED) else None


def _note(root: Path) -> Path:
    return note_of(os.fsencode(root) + b"\0" + TRUSTED.encode())
