"""`holdfast memory`: what agents remember, listed, shown, changed, accepted, forgotten, searched and exported."""

import getpass
import sys
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.cli.app_choice import UsageError, app_with_data, opened
from holdfast.cli.commands.run import write_line
from holdfast.cli.listing import Field, Row, print_listing
from holdfast.cli.options import Where
from holdfast.cli.words import ago, line
from holdfast.core.instants import iso
from holdfast.core.memory import Block, MemoryRecord, Passage
from holdfast.errors import NotFound
from holdfast.safe_text import safe

PAGE = 500
SHOWN_MAX = 1_000


async def list_memory(where: Where, owner: str | None, agent: str | None, *, every: bool, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        blocks = await app.memory.blocks(owner=owner, agent=agent, limit=PAGE)
        found: list[MemoryRecord] = []
        while len(found) < SHOWN_MAX and (
            page := await app.memory.list(
                owner=owner, agent=agent, everything=every, before=found[-1].id if found else None, limit=PAGE
            )
        ):
            found += page
    if json:
        write_line(msgspec.json.encode({"blocks": blocks, "memories": found}))
        return
    rows = [_block_row(block) for block in blocks] + [_row(record) for record in found]
    print_listing(("id", "what", "agent", "owner", "made", "text"), rows)


def _block_row(block: Block) -> Row:
    return _fields(block.id, f"block {block.name}", block.agent, block.owner, block.updated_at, block.text)


def _row(record: MemoryRecord) -> Row:
    return _fields(record.id, kind_of(record), record.agent, record.owner, record.created_at, record.text)


def kind_of(record: MemoryRecord) -> str:
    """With what keeps it from being shown."""
    if record.kind == "proposal":
        return "proposal, to be accepted"
    notes = [
        note
        for note, holds in (
            ("from outside", record.tainted),
            ("replaced", bool(record.superseded_by)),
            ("forgotten", record.ended_at is not None),
        )
        if holds
    ]
    return ", ".join((record.kind, *notes))


def _fields(id: str, kind: str, agent: str, owner: str, at: int, text: str) -> Row:
    return (
        Field(shown=id),
        Field(shown=kind),
        Field(shown=line(agent, 40), plain=agent),
        Field(shown=line(owner, 40), plain=owner),
        Field(shown=ago(at), plain=iso(at)),
        Field(shown=line(text, 200), plain=text),
    )


async def show(where: Where, id: str, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        if id.startswith("block_"):
            block = await _block(app, id)
            versions = await app.memory.versions(block)
            told: dict[str, Any] = {**msgspec.to_builtins(block), "versions": msgspec.to_builtins(versions)}
        else:
            told = msgspec.to_builtins(await app.memory.get(id))
    if json:
        write_line(msgspec.json.encode(told))
        return
    for version in told.pop("versions", ()):
        print(f"version {version['version']}, {iso(version['at'])}, by {line(version['made_by'] or 'a model', 40)}:")
        print(safe(version["text"]) + "\n")
    for name, value in told.items():
        if value not in ("", None) and name != "life":
            shown = iso(value) if name.endswith("_at") else safe(str(value))
            print(f"{name}: {shown}")


async def _block(app: App, id: str) -> Block:
    after = ""
    while page := await app.memory.blocks(after=after, limit=PAGE):
        for block in page:
            if block.id == id:
                return block
        after = page[-1].id
    raise NotFound("block", id)


async def edit(where: Where, id: str, text: str, version: int | None) -> None:
    said = sys.stdin.read() if text == "-" else text
    async with opened(app_with_data(where)) as app:
        by = getpass.getuser()
        if id.startswith("block_"):
            old = await _block(app, id)
            if version is None:
                told = f"`holdfast memory show {id}` shows it, as of version {old.version} now"
                raise UsageError(
                    f"say with --version which text you have read, so that no other edit is lost: {told}"
                )
            of = {"owner": old.owner, "agent": old.agent}
            block = await app.memory.edit_block(old.name, said, **of, version=version, by=by)
            print(f"{block.id} is version {block.version} now: new chats are shown it")
        else:
            if version is not None:
                raise UsageError("only a block has versions: leave --version out")
            if (await app.memory.get(id)).kind != "fact":
                raise UsageError("only a block or a fact is edited; a proposal is accepted or forgotten")
            made = await app.memory.edit(id, said, by=by)
            print(f"{made.id} stands for {id} from now on")


async def accept(where: Where, id: str) -> None:
    async with opened(app_with_data(where)) as app:
        done = await app.memory.accept(id, by=getpass.getuser())
    print(f"{id} is applied" if done.kind == "proposal" else f"{id} counts like any other from now on")


async def forget(where: Where, id: str) -> None:
    async with opened(app_with_data(where)) as app:
        if id.startswith("block_"):
            block = await _block(app, id)
            await app.memory.remove_block(block.name, owner=block.owner, agent=block.agent)
        else:
            await app.memory.forget(id)
    print(f"{id} is gone")


async def search(where: Where, query: str, owner: str, agent: str | None, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        found = await app.memory.search(query, owner=owner, agent=agent)
    if json:
        write_line(msgspec.json.encode(found.passages))
        return
    print_listing(("where", "what", "when", "text"), [_passage(one) for one in found.passages])


def place_of(one: Passage) -> str:
    """What the next command takes: the id of a fact or an episode, or the chat of a message."""
    return one.chat_id if one.kind == "message" else one.ref


def _passage(one: Passage) -> Row:
    kind = f"{one.kind if one.kind != 'message' else one.role}{', from outside' if one.tainted else ''}"
    return (
        Field(shown=place_of(one)),
        Field(shown=kind),
        Field(shown=ago(one.at), plain=iso(one.at)),
        Field(shown=line(one.text, 300), plain=one.text),
    )


async def export(where: Where, owner: str | None, agent: str | None) -> None:
    async with opened(app_with_data(where)) as app:
        async for record in app.memory.export(owner=owner, agent=agent):
            write_line(msgspec.json.encode(record))
