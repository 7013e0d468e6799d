"""The tools of skills: `skill` activates one, `read_skill_file` reads what lies in its folder.

An activation is answered in the commit of its call, with the text as it is at that moment: it is in the history from
then on, whatever becomes of the file. A skill that forks is handed to a child chat, and the call is answered with
what that one says.
"""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core.codec import decode_json, storable
from holdfast.core.records import Expansion, External, Message, NewChat, Replay, Role, Text
from holdfast.core.skill_texts import SKILL_SOURCE, SKILL_TOOL, ActiveSkill, skill_in
from holdfast.errors import ConfigError, ToolFailed
from holdfast.ids import new_id
from holdfast.skills.shelf import Catalogue
from holdfast.skills.skill import Skill
from holdfast.tools.base import Answered, Delegation, Tool, ToolOutput, tool
from holdfast.tools.context import ToolContext
from holdfast.tools.files import pictures
from holdfast.tools.files.root import Root
from holdfast.tools.outside import does_nothing

READER = "read_skill_file"
NAMES = (SKILL_TOOL, READER)
ARGUMENTS_CHARS_MAX = 20_000
READ_BYTES_MAX = 60_000
LISTED_MAX = 200

Active = Callable[[], Mapping[str, ActiveSkill]]
AgentFor = Callable[[str | None], str]  # who runs a skill that forks, by the name in its SKILL.md
Forbidden = Callable[[str], str | None]  # why a file may not be read, if a rule says so
ToolsFor = Callable[[str], tuple[str, ...] | None]  # of the agent that runs a skill that forks; None: all it has


def skill_tools(
    catalogue: Catalogue,
    active: Active,
    agent_for: AgentFor,
    called: frozenset[str] = frozenset(),
    shown: Collection[str] = (),
    forbidden: Forbidden = lambda _: None,
    tools_for: ToolsFor = lambda _: None,
) -> dict[str, Tool]:
    """None where there is nothing that a model may call, and nothing `shown` to it whose files it may read."""
    offered = {skill.name: skill for skill in catalogue.for_model(called)}
    readable = {**offered, **{name: catalogue.skills[name] for name in shown if name in catalogue.skills}}
    tools = {SKILL_TOOL: _activator(offered, active, agent_for, tools_for)} if offered else {}
    return {**tools, READER: _reader(readable, forbidden)} if readable else {}


def _activator(offered: Mapping[str, Skill], active: Active, agent_for: AgentFor, tools_for: ToolsFor) -> Tool:
    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> Answered | Delegation:
        skill = offered[arguments["name"]]
        words = storable(arguments.get("arguments", ""))
        text = skill.text(words)
        known = active().get(skill.name)
        if known is not None and known == skill_in(text):
            return Answered(content=f"The skill {skill.name} is active already, with this very text: go on with it.")
        if not skill.forks:
            return Answered(content=text)
        agent = agent_for(skill.agent)
        message = _task(skill, text, words, now)
        child = NewChat(
            id=new_id("chat"),
            agent=agent,
            owner=context.owner,
            active_tools=tools_for(agent),
            message=message,
        )
        return Delegation(external=External.CHILD, child_id=child.id, spawn=child)

    return does_nothing(
        Tool(
            name=SKILL_TOOL,
            description="Activate a skill: returns its instructions, or the answer of one that has its own chat.",
            schema=_schema(list(offered)),
            function=_never,
            validate=lambda text: _validated(text, offered),
            replay=Replay.PURE,  # nothing of it runs here
            delegate=delegate,
        )
    )


def _task(skill: Skill, text: str, arguments: str, now: int) -> Message:
    made = skill_in(text)
    assert made is not None
    part = Expansion(name=skill.name, source=SKILL_SOURCE, text=text, digest=made.digest)
    said = Text(text=f"/{skill.name} {arguments}".strip())
    return Message(id=new_id("msg"), role=Role.USER, parts=(said, part), created_at=now)


def _schema(names: list[str]) -> Raw:
    properties = {
        "name": {"type": "string", "enum": names},
        "arguments": {"type": "string", "description": "What the skill is to work on, if it takes something."},
    }
    schema = {"type": "object", "properties": properties, "required": ["name"], "additionalProperties": False}
    return Raw(msgspec.json.encode(schema))


def _validated(text: str, offered: Mapping[str, Skill]) -> dict[str, Any]:
    try:
        given = msgspec.convert(decode_json(text or "{}"), dict[str, str])
    except ValueError as error:
        raise ToolFailed(f"The arguments do not fit: {error}") from None
    if given.get("name") not in offered:
        raise ToolFailed(f"There is no skill {given.get('name', '')[:80]!r} now. There are: {', '.join(offered)}.")
    if unknown := set(given) - {"name", "arguments"}:
        raise ToolFailed(f"The arguments do not fit: {', '.join(sorted(unknown))[:80]} is none of them.")
    if len(given.get("arguments", "")) > ARGUMENTS_CHARS_MAX:
        raise ToolFailed(f"The arguments are longer than {ARGUMENTS_CHARS_MAX:,} characters.")
    return dict(given)


def _never(*_: Any, **__: Any) -> Any:
    raise ToolFailed("This tool is answered by the runtime; it has no body to call.")


def _reader(readable: Mapping[str, Skill], forbidden: Forbidden) -> Tool:
    def read_skill_file(name: str, path: str, start: int = 0) -> ToolOutput:
        """Read a file of a skill, or list one of its folders: `path` is relative to the skill's own folder, `.` is
        that folder. A long text ends with a note on how to go on: `start` is the byte to begin with."""
        skill = readable.get(name)
        if skill is None:
            raise ToolFailed(f"There is no skill {name[:80]!r} now. There are: {', '.join(readable)}.")
        if (why_not := forbidden(str(Path(skill.folder) / path))) is not None:
            raise ToolFailed(why_not)
        try:
            return _read(Root(skill.folder, real=True), path, start)
        except ConfigError as error:
            raise ToolFailed(f"The folder of {name} is gone: {error}") from error

    return tool(name=READER, replay="pure", deadline_s=30.0, acts=lambda _: ())(read_skill_file)


def _read(root: Root, path: str, start: int) -> ToolOutput:
    """Confined to the folder, symlinks and all, as the file tools are."""
    if path.strip() in ("", ".", "./") or os.path.isdir(f"{root.path}/{path}"):  # noqa: PTH112  it never raises
        return ToolOutput(text=_listing(root, path))
    with root.place(path) as place, place.opened() as (file, found):
        head = os.pread(file, 16, 0)
        if (kind := pictures.media_type(head)) is not None:
            shown = pictures.shown_file(file, found.st_size, kind, place.shown)
            return ToolOutput(text=f"[{place.shown}: {kind}, {found.st_size:,} bytes]", files=(shown,))
        if not 0 <= start <= found.st_size:
            raise ToolFailed(f"{place.shown} has {found.st_size:,} bytes: there is no byte {start:,}")
        data = _whole_letters(os.pread(file, READ_BYTES_MAX, start), more=start + READ_BYTES_MAX < found.st_size)
        if b"\x00" in data:
            raise ToolFailed(f"{place.shown} is no text: {found.st_size:,} bytes")
        end = start + len(data)
        rest = f"\n[… {found.st_size - end:,} bytes more: go on with start={end} …]" if end < found.st_size else ""
        return ToolOutput(text=data.decode("utf-8", "replace") + rest)


def _whole_letters(data: bytes, *, more: bool) -> bytes:
    """Without the beginning of a letter whose rest comes after it."""
    for back in range(1, 4):
        if more and data[-back:][:1] >= b"\xc0":
            return data[:-back]
    return data


def _listing(root: Root, path: str) -> str:
    if path.strip() in ("", ".", "./"):
        folder = root.open()
        try:
            return _names_in(folder)
        finally:
            os.close(folder)
    with root.place(path) as place, place.opened_folder() as folder:
        return _names_in(folder)


def _names_in(folder: int) -> str:
    with os.scandir(folder) as entries:
        found = [entry for _, entry in zip(range(LISTED_MAX), entries, strict=False)]
        names = sorted(f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in found)
    return "\n".join(names) or "(it is empty)"
