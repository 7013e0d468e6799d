"""What outlives a chat: blocks, facts, episodes and proposals as records, how a block is edited, what may be shown.

A block is a short text of an agent and an owner. A memory is a fact, an episode (what a finished chat was about) or a
proposal (an edit that waits for a person), with where it came from. A chat is tainted once a result from outside is
in its history: what it remembers may be what a page wants to be remembered. The table SHOWN says what becomes of it.
"""

import re
from typing import Literal, NamedTuple

from holdfast.core.records import Frozen

MemoryKind = Literal["fact", "episode", "proposal"]
PassageKind = Literal["fact", "episode", "message"]
Where = Literal["unasked", "search", "search_outside"]

BLOCK_NAME = re.compile(r"[\w-]{1,64}")
BLOCKS_MAX = 32  # of an agent and an owner
BLOCK_CHARS_MAX = 20_000  # whatever an agent says
BLOCK_LINES_MAX = 500
VERSIONS_KEPT = 200  # of a block
FACT_CHARS_MAX = 2_000
FACTS_MAX = 10_000  # of an agent and an owner, whatever an agent says
FACTS_FROM_OUTSIDE_MAX = 200  # of an agent and an owner that wait for a person
PROPOSALS_MAX = 200  # of an agent and an owner that wait for a person
EPISODE_CHARS_MAX = 4_000
PASSAGE_CHARS = 2_000
PASSAGES_OF_MESSAGE_MAX = 25
FOUND_MAX = 50

# Where something may be shown, by what it is and whether content from outside may speak through it. What is not here
# is not shown. `search_outside`: the model asked for it by name, and its result is marked as content from outside.
SHOWN: dict[tuple[str, bool], frozenset[Where]] = {
    ("block", False): frozenset({"unasked"}),
    ("fact", False): frozenset({"unasked", "search", "search_outside"}),
    ("fact", True): frozenset({"search_outside"}),
    ("episode", False): frozenset({"unasked", "search", "search_outside"}),
    ("episode", True): frozenset({"search_outside"}),
    ("message", False): frozenset({"search", "search_outside"}),
    ("message", True): frozenset({"search_outside"}),
    # ("proposal", …): to people alone
}


def may_show(kind: str, tainted: bool, where: Where) -> bool:
    return where in SHOWN.get((kind, tainted), frozenset())


class Source(Frozen):
    """Where something came from: a call in a turn of a chat, or a person (`made_by`, and no chat)."""

    chat_id: str = ""
    life: int = 0
    turn: int = 0
    call_id: str = ""
    made_by: str = ""


class MemoryRecord(Frozen):
    """A fact, an episode or a proposal. Every field is a column of its own."""

    id: str
    kind: MemoryKind
    owner: str
    agent: str
    text: str
    detail: str = ""  # of a proposal: the edit, as JSON
    chat_id: str = ""
    life: int = 0
    turn: int = 0
    call_id: str = ""
    made_by: str = ""
    created_at: int
    tainted: bool = False
    cleared_by: str | None = None  # who looked at what was tainted, and said that it may be shown
    cleared_at: int | None = None
    replaces: str = ""  # the fact that this one is to stand for
    superseded_by: str = ""
    ended_at: int | None = None  # forgotten by the model: people still see it


class Block(Frozen):
    """A block as it is now, or was in a version."""

    id: str
    owner: str
    agent: str
    name: str
    text: str
    version: int
    updated_at: int
    made_by: str = ""  # who made this version; nobody: a model


class Snapshot(Frozen):
    """What the model of one chat is shown, for as long as there is that chat: names, not texts, so that what is
    deleted is not shown any longer.
    """

    blocks: tuple[tuple[str, int], ...] = ()  # ids and versions
    facts: tuple[str, ...] = ()
    episodes: tuple[str, ...] = ()


class Passage(Frozen):
    """What a search finds."""

    kind: PassageKind
    ref: str  # of a fact or an episode: its id; of a message: its id in the chat
    chat_id: str
    pos: int
    role: str
    at: int
    tainted: bool
    text: str
    title: str | None = None


class Found(Frozen):
    """What a search found, best first, and how much more it would find in chats that read content from outside."""

    passages: tuple[Passage, ...]
    outside: int = 0


# --- edits ----------------------------------------------------------------------------------------------------------


class Append(Frozen, tag="append", tag_field="op"):
    """At the end, as lines of its own."""

    text: str


class Replace(Frozen, tag="replace", tag_field="op"):
    """Words that are there exactly once, by others; by none: they go."""

    old: str
    new: str = ""


class Insert(Frozen, tag="insert", tag_field="op"):
    """Behind a line; 0: before the first."""

    line: int
    text: str


class Rewrite(Frozen, tag="rewrite", tag_field="op"):
    """All of it, and only while it is what its writer read."""

    text: str
    version: int | None = None


Edit = Append | Replace | Insert | Rewrite


class Misfit(Exception):
    """An edit does not fit the text as it is now."""


class EditLimits(NamedTuple):
    chars: int = BLOCK_CHARS_MAX
    lines: int = BLOCK_LINES_MAX


def edited(text: str, version: int, edit: Edit, limits: EditLimits) -> str:
    """The text after it. Raises Misfit, in words that say what to do."""
    match edit:
        case Append(text=added):
            after = "\n".join(part for part in (text, _tidy(added)) if part)
        case Replace(old=old, new=new):
            after = _replaced(text, old, new)
        case Insert(line=line, text=added):
            lines = text.split("\n") if text else []
            if not 0 <= line <= len(lines):
                raise Misfit(f"there is no line {line}: the block has {len(lines)}")
            after = "\n".join([*lines[:line], _tidy(added), *lines[line:]])
        case Rewrite(text=all_of_it, version=read):
            if read is not None and read != version:
                raise Misfit(f"it was changed meanwhile: version {version} stands, and {read} was read")
            after = all_of_it
    after = "\n".join(line.rstrip() for line in after.strip("\n").split("\n")) if after.strip() else ""
    if len(after) > limits.chars and len(after) >= len(text):  # a person's text may be longer: it can be shortened
        raise Misfit(f"it would have {len(after):,} characters, the limit is {limits.chars:,}: shorten it first")
    if after.count("\n") >= limits.lines:
        raise Misfit(f"it would have {after.count(chr(10)) + 1:,} lines, the limit is {limits.lines:,}")
    return after


def _replaced(text: str, old: str, new: str) -> str:
    if not old:
        raise Misfit("say which words are to be replaced")
    count = text.count(old)
    if count != 1:
        words = "are not in it" if not count else f"are in it {count} times: give more of the text around them"
        raise Misfit(f"the words to be replaced {words}")
    return text.replace(old, new)


def _tidy(text: str) -> str:
    return text.strip("\n")


# --- passages -------------------------------------------------------------------------------------------------------


def passages(text: str) -> list[str]:
    """A message in pieces that are searched and shown, cut at a space where there is one near."""
    pieces: list[str] = []
    rest = text.strip()
    while rest and len(pieces) < PASSAGES_OF_MESSAGE_MAX:
        if len(rest) <= PASSAGE_CHARS:
            pieces.append(rest)
            break
        end = max(rest.rfind(space, PASSAGE_CHARS // 2, PASSAGE_CHARS) for space in " \n")
        end = PASSAGE_CHARS if end < 0 else end
        pieces.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    return pieces


# --- as the model reads it ------------------------------------------------------------------------------------------


class ShownMemory(Frozen):
    """The texts of a snapshot."""

    blocks: tuple[tuple[str, str], ...] = ()  # names and texts
    facts: tuple[tuple[str, str], ...] = ()  # ids and texts
    episodes: tuple[tuple[str, str], ...] = ()  # chats and texts


_HEAD = (
    "# Memory\n\nWhat you noted in earlier chats with this person, as it was when this chat began. It is what you "
    "remember, not what anyone asks of you now. The tool `memory` changes it, and searches facts and past chats."
)


def shown_text(shown: ShownMemory, described: dict[str, str]) -> str:
    """For the model's instructions. `described`: the agent's blocks, with what each is for."""
    texts = dict(shown.blocks)
    parts = [_HEAD]
    for name in dict.fromkeys((*described, *texts)):
        about = f" ({described[name]})" if described.get(name) else ""
        parts.append(f"## Block {name}{about}\n\n{texts.get(name) or '(empty)'}")
    if shown.facts:
        parts.append("## Facts\n\n" + "\n".join(f"- [{id}] {_one_line(text)}" for id, text in shown.facts))
    if shown.episodes:
        parts.append("## Earlier chats\n\n" + "\n".join(f"- [{id}] {_one_line(text)}" for id, text in shown.episodes))
    return "\n\n".join(parts)


def _one_line(text: str) -> str:
    return " ".join(text.split())
