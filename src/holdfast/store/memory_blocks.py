"""The texts of blocks in the database. A version is a list of lines, and each line knows the chat that wrote it: what
a chat wrote goes with the chat, from every version.
"""

import json
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core import memory as core
from holdfast.core.memory import Block, Edit, EditLimits, Misfit, Source
from holdfast.core.records import Frozen
from holdfast.errors import InvalidInput, LimitReached, RefusedError
from holdfast.store.budgets import StepRunner, Steps
from holdfast.store.memory_statements import MemoryStatements, block_values
from holdfast.store.rows import Row


class Unfit(RefusedError):
    """An edit does not fit the block as it is now: `block` is that."""

    def __init__(self, why: str, block: Block) -> None:
        super().__init__(f"block {block.name!r} is as it was: {why}", reason="unfit", state="", command="edit")
        self.why = why
        self.block = block


class BlockVersion(Frozen):
    version: int
    text: str
    made_by: str
    at: int


def check_name(name: str) -> None:
    if not core.BLOCK_NAME.fullmatch(name):
        raise InvalidInput("block", "a name has 1 to 64 letters, digits, - and _")


class BlockTexts:
    """Of one store. What edits is a piece of a transaction that holds the lock of the agent and the owner."""

    def __init__(self, runner: StepRunner, statements: MemoryStatements) -> None:
        self._runner = runner
        self._sql = statements

    async def read(self, block_id: str, version: int) -> str:
        """As it was then; where that version was dropped, the oldest that is kept. Version 0 is empty."""
        if version == 0:
            return ""
        found = await self._runner.named_rows(self._sql.version, id=block_id, version=version)
        if not found:
            return ""
        _, lines, _, _ = found[0]
        rows = await self._runner.named_rows(self._sql.lines, id=block_id, numbers=lines)
        return joined(json.loads(lines), rows)

    async def versions(self, block: Block, before: int, limit: int) -> list[BlockVersion]:
        """Newest first. A read for each, and one more."""
        rows = await self._runner.named_rows(self._sql.versions, id=block.id, before=before, limit=limit)
        made = []
        for version, listed, made_by, at in rows:
            lines = await self._runner.named_rows(self._sql.lines, id=block.id, numbers=listed)
            text = joined(json.loads(listed), lines)
            made.append(BlockVersion(version=version, text=text, made_by=made_by, at=at))
        return made

    def edit(
        self,
        drawn: str,
        owner: str,
        agent: str,
        name: str,
        edit: Edit,
        source: Source,
        limits: EditLimits,
        now: int,
    ) -> Steps[Block]:
        """On the newest text. An edit that changes nothing makes no version. Raises Unfit, LimitReached."""
        of = {"owner": owner, "agent": agent}
        found = yield self._sql.block, of | {"name": name}
        if found:
            values = block_values(found[0])
        else:
            others = yield self._sql.blocks, of | {"after": "", "limit": core.BLOCKS_MAX}
            if len(others) >= core.BLOCKS_MAX:
                raise LimitReached("blocks of an agent and an owner", len(others), core.BLOCKS_MAX, "remove some")
            values = {"id": drawn, **of, "name": name, "version": 0, "lines_made": 0}
            values |= {"created_at": now, "updated_at": now}
            yield self._sql.insert_block, values
        ids, lines, made_by = yield from self._newest_lines(values)
        block = block_of(values, "\n".join(lines), made_by)
        try:
            after = core.edited(block.text, block.version, edit, limits)
        except Misfit as error:
            raise Unfit(str(error), block) from None
        if after == block.text:
            return block
        numbers, made = numbered(ids, lines, after.split("\n") if after else [], values["lines_made"])
        version = block.version + 1
        row = {"block_id": block.id, "at": now, **provenance(source)}
        for number, text in made:
            yield self._sql.insert_line, row | {"line": number, "text": text}
        listed = json.dumps(numbers)
        version_row = {"block_id": block.id, "version": version, "lines": listed, "made_by": source.made_by}
        yield self._sql.insert_version, version_row | {"at": now}
        moved = {"id": block.id, "was": block.version, "version": version, "updated_at": now}
        yield self._sql.move_block, moved | {"lines_made": values["lines_made"] + len(made)}
        if version % 50 == 0:
            yield from self._drop_old_versions(block.id, version)
        return replace(block, text=after, version=version, updated_at=now, made_by=source.made_by)

    def _newest_lines(self, values: dict[str, Any]) -> Steps[tuple[list[int], list[str], str]]:
        found = yield self._sql.version, {"id": values["id"], "version": values["version"]}
        if not found:
            return [], [], ""
        _, listed, made_by, _ = found[0]
        rows = yield self._sql.lines, {"id": values["id"], "numbers": listed}
        texts = {line: text for line, text, _ in rows}
        ids = [line for line in json.loads(listed) if line in texts]
        return ids, [texts[line] for line in ids], made_by

    def _drop_old_versions(self, block_id: str, version: int) -> Steps[None]:
        yield self._sql.drop_versions, {"id": block_id, "version": version - core.VERSIONS_KEPT}
        before = version + 1
        rows = yield self._sql.versions, {"id": block_id, "before": before, "limit": core.VERSIONS_KEPT + 1}
        used = sorted({line for _, listed, _, _ in rows for line in json.loads(listed)})
        yield self._sql.drop_lines, {"id": block_id, "numbers": json.dumps(used)}


def provenance(source: Source) -> dict[str, Any]:
    return {name: getattr(source, name) for name in Source.__struct_fields__}


def joined(numbers: list[int], rows: Sequence[Row]) -> str:
    texts = {line: text for line, text, _ in rows}
    return "\n".join(texts[line] for line in numbers if line in texts)


def block_of(values: dict[str, Any], text: str, made_by: str) -> Block:
    kept = {name: values[name] for name in ("id", "owner", "agent", "name", "version", "updated_at")}
    return Block(text=text, made_by=made_by, **kept)


def numbered(
    ids: list[int], before: list[str], after: list[str], made: int
) -> tuple[list[int], list[tuple[int, str]]]:
    """The numbers of the lines of the new text, and the new ones among them: a line that stays, or moves, is still of
    the chat that wrote it. In one pass: the database waits for this.
    """
    shorter = min(len(before), len(after))
    head = next((n for n in range(shorter) if before[n] != after[n]), shorter)
    tail = next((n for n in range(shorter - head) if before[-1 - n] != after[-1 - n]), shorter - head)
    kept: dict[str, deque[int]] = defaultdict(deque)
    for id, text in zip(ids[head : len(ids) - tail], before[head : len(before) - tail], strict=True):
        kept[text].append(id)
    middle: list[int] = []
    new: list[tuple[int, str]] = []
    for text in after[head : len(after) - tail]:
        if kept[text]:
            middle.append(kept[text].popleft())
            continue
        made += 1
        new.append((made, text))
        middle.append(made)
    return [*ids[:head], *middle, *ids[len(ids) - tail :]], new
