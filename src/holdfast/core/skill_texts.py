"""The text of a skill as a model reads it, how it is found again in a history, and what outlives a compaction. Pure.

    <skill_content name="review" digest="0123456789abcdef" allowed-tools="Read">
    …
    </skill_content>

It stands in a message, as the expansion of a slash command, or in the result of the tool `skill`. What is in the tag
is all that is ever asked of an activation, so it does not matter what became of the file. When a compaction covers
activations, the newest text of each skill is carried in its record, as far as there is room.
"""

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from msgspec.structs import replace

from holdfast.core.records import Expansion, Frozen, Message, Role, ToolResult

SKILL_TOOL = "skill"  # the tool that activates
SKILL_SOURCE = "skill"  # of an expansion
CARRIED_TOKENS_MAX = 25_000  # of all skills that a compaction carries
_CARRIED = "[Skills that are active: their instructions are still in force.]"
_DROPPED = "[Not shown any more for want of room, and to be activated again when they are needed: {}]"
_BOUND = "[This task comes from a chat in which this skill is active: its lists of tools count here, too.]"
_OPENING = re.compile(
    r'<skill_content name="([^"<>\n]{1,200})" digest="([0-9a-f]{16})"'
    r'(?: allowed-tools="([^"\n]*)")?(?: disallowed-tools="([^"\n]*)")?>\n'
)
_CLOSING = "\n</skill_content>"
_TAG = re.compile(r"<(/?)skill_content", re.IGNORECASE)


class ActiveSkill(Frozen):
    """An activation. `allowed` and `disallowed` are the lists of tools as they stand in its tag; None: no list."""

    name: str
    digest: str
    text: str  # with its tags
    allowed: str | None = None
    disallowed: str | None = None


def skill_text(name: str, body: str, allowed: str | None = None, disallowed: str | None = None) -> str:
    """As the model reads it. What a body writes like a tag of ours ends nothing."""
    body = unmarked(body)
    digest = blake2b(body.encode("utf-8", "replace"), digest_size=8).hexdigest()
    lists = "".join(
        f' {kind}="{attribute(words)}"'
        for kind, words in (("allowed-tools", allowed), ("disallowed-tools", disallowed))
        if words is not None
    )
    return f'<skill_content name="{attribute(name)}" digest="{digest}"{lists}>\n{body}{_CLOSING}'


def unmarked(text: str) -> str:
    """The same without what would make a skill of it, or of a part of it."""
    return _TAG.sub(r"<\1skill-content", text).replace(_CARRIED, "…")


def attribute(text: str) -> str:
    return re.sub(r'["<>\n]', "'", text)


def skill_in(text: str) -> ActiveSkill | None:
    """The one that a text begins with."""
    return _at(_OPENING.match(text), text)


def _at(opening: re.Match[str] | None, text: str) -> ActiveSkill | None:
    if opening is None or (end := text.find(_CLOSING, opening.end() - 1)) < 0:
        return None
    name, digest, allowed, disallowed = opening.groups()
    whole = text[opening.start() : end + len(_CLOSING)]
    return ActiveSkill(name=name, digest=digest, text=whole, allowed=allowed, disallowed=disallowed)


def parted(text: str) -> tuple[str, str, str] | None:
    """The opening tag of the skill that a text begins with, what it says, and its closing tag."""
    opening = _OPENING.match(text)
    if opening is None or (end := text.find(_CLOSING, opening.end())) < 0:
        return None
    return text[: opening.end()], text[opening.end() : end], text[end:]


def bound(message: Message, skills: Iterable[ActiveSkill]) -> Message:
    """What is said to a child, with the lists of tools that narrow its parent's turn: they bind the child, too."""
    texts = [skill_text(skill.name, _BOUND, skill.allowed, skill.disallowed) for skill in skills]
    lists = [
        Expansion(name=made.name, source=SKILL_SOURCE, text=text, digest=made.digest)
        for text in texts
        if (made := skill_in(text)) is not None
    ]
    first, *others = message.parts  # a skill's own text comes after them, and counts
    return replace(message, parts=(first, *lists, *others))


def is_bound(text: str) -> bool:
    """Whether a text only brings the lists of a chat above: no person called that skill here, nor is it shown."""
    pieces = parted(text)
    return pieces is not None and pieces[1] == _BOUND


def activation(part: object) -> ActiveSkill | None:
    """What a part of a message activates. Only our own tool, and what a person called, do."""
    if isinstance(part, Expansion):
        return skill_in(part.text) if part.source == SKILL_SOURCE else None
    if not isinstance(part, ToolResult) or part.name != SKILL_TOOL:
        return None
    return None if part.error or part.synthetic is not None or part.untrusted else skill_in(part.content)


def activations(messages: Iterable[Message]) -> list[ActiveSkill]:
    return [
        found
        for message in messages
        if message.role is not Role.ASSISTANT
        for part in message.parts
        if (found := activation(part)) is not None
    ]


# --- over a compaction ------------------------------------------------------------------------------


def carried(record: str) -> list[ActiveSkill]:
    """What the text of a compaction's record carries, oldest first."""
    _, mark, rest = record.rpartition(_CARRIED)
    if not mark:
        return []
    return [found for opening in _OPENING.finditer(rest) if (found := _at(opening, rest)) is not None]


def without_carried(record: str) -> str:
    return record.rpartition(_CARRIED)[0].rstrip() if _CARRIED in record else record


def active_skills(record: str, messages: Iterable[Message]) -> dict[str, ActiveSkill]:
    """By name, the newest of each, the one that was activated longest ago first."""
    found: dict[str, ActiveSkill] = {}
    for skill in (*carried(record), *activations(messages)):
        if is_bound(skill.text):
            continue
        found.pop(skill.name, None)
        found[skill.name] = skill
    return found


def with_carried(text: str, active: Sequence[ActiveSkill], tokens: int, bytes_per_token: int) -> str:
    """A compaction's text and below it the skills, the newest that fit. What a model wrote cannot pass for one."""
    text = unmarked(text)
    if not active:
        return text
    kept: list[ActiveSkill] = []
    room = min(tokens, CARRIED_TOKENS_MAX) * bytes_per_token
    for skill in reversed(active):
        room -= len(skill.text.encode("utf-8", "replace"))
        if room < 0:
            break
        kept.insert(0, skill)
    dropped = [skill.name for skill in active if skill not in kept]
    told = [_DROPPED.format(", ".join(dropped))] if dropped else []
    return "\n\n".join([text, _CARRIED, *(skill.text for skill in kept), *told])
