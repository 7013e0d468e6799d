"""`holdfast prune` and `holdfast vacuum`: what no reader can reach goes, and its room back to the disk."""

import asyncio
import re
import time
from contextlib import aclosing
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.cli.app_choice import UsageError, app_with_data, look_at_app, opened
from holdfast.cli.commands.run import write_line
from holdfast.cli.options import Where
from holdfast.cli.progress import ProgressLine, megabytes
from holdfast.config import Retention
from holdfast.safe_text import safe
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.receipts import PRUNED_MAX
from holdfast.store.records import Size
from holdfast.store.retention import Amount, PrunedKind, Pruning, cutoffs_of
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.sqlite.vacuum import GaveUp
from holdfast.store.sqlite.vacuum import vacuum as vacuum_file

WORDS: dict[PrunedKind, str] = {
    "attempts": "streamed text of ended attempts",
    "calls": "calls of earlier steps",
    "compactions": "summaries that a later one covers",
    "archived_chats": "archived chats",
    "receipts": "answers to clients of seven days ago",
}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([dh]?)")
_DAYS = {"d": 1.0, "": 1.0, "h": 1 / 24}


async def prune(where: Where, *, older_than: str | None, archived_chats: bool, dry_run: bool, json: bool) -> int:
    app = look_at_app(where) if dry_run else app_with_data(where)
    policy = _policy(app, older_than, archived_chats=archived_chats)
    began = time.monotonic()
    async with opened(app):
        before = await app.store.measure()
        pruning = Pruning(app.store, cutoffs_of(policy, app.store.now_ms()), dry_run=dry_run)
        interrupted = True
        try:
            with ProgressLine("looking" if dry_run else "pruning") as shown:
                await _walk(app, pruning, shown, dry_run=dry_run)
            interrupted = False
        finally:
            after = await app.store.measure()
            told = _Told(pruning.freed, before, after, time.monotonic() - began, dry_run, interrupted)
            told.as_json() if json else told.as_text(app)
    return 0


def _policy(app: App, older_than: str | None, *, archived_chats: bool) -> Retention:
    if older_than is None:
        if archived_chats:
            raise UsageError("--archived-chats needs --older-than AGE: the setting `retention` has its own")
        if not app.config.retention.is_set:
            raise UsageError("no retention is set: say --older-than 30d, or set one (docs/operating.md)")
        return app.config.retention
    days = days_of("--older-than", older_than)
    return Retention(
        attempts_days=days,
        calls_days=days,
        compactions_days=days,
        archived_chats_days=days if archived_chats else None,
    )


def days_of(option: str, age: str) -> float:
    """Raises UsageError."""
    found = _AGE.fullmatch(age.strip())
    if found is None:
        raise UsageError(f"{option} {safe(age)} is no age: write 30d or 12h")
    return float(found[1]) * _DAYS[found[2]]


async def _walk(app: App, pruning: Pruning, shown: ProgressLine, *, dry_run: bool) -> None:
    more = not dry_run
    while more:
        count = await app.store.prune_receipts()
        pruning.add("receipts", Amount(count))
        more = count >= PRUNED_MAX
    while await pruning.run_once():
        rows = sum(amount.rows for amount in pruning.freed.values())
        shown.say(f"{pruning.chats_seen:,} chats looked at, {rows:,} rows")


class _Told:
    """What came of it."""

    def __init__(
        self,
        freed: dict[PrunedKind, Amount],
        before: Size,
        after: Size,
        took_s: float,
        dry_run: bool,
        interrupted: bool,
    ) -> None:
        self._freed = freed
        self._before, self._after = before, after
        self._took_s = took_s
        self._dry_run, self._interrupted = dry_run, interrupted

    def as_json(self) -> None:
        write_line(
            msgspec.json.encode(
                {
                    "dry_run": self._dry_run,
                    "interrupted": self._interrupted,
                    "freed": {kind: amount._asdict() for kind, amount in self._freed.items()},
                    "database": {"before": self._before._asdict(), "after": self._after._asdict()},
                    "seconds": round(self._took_s, 3),
                }
            )
        )

    def as_text(self, app: App) -> None:
        if self._interrupted:
            print("interrupted; what is done is done:", flush=True)
        gone = {kind: amount for kind, amount in self._freed.items() if amount.rows}
        for kind, amount in gone.items():
            size = f", {megabytes(amount.bytes)} of text" if amount.bytes else ""
            print(f"{WORDS[kind]}: {amount.rows:,} {'rows' if kind != 'archived_chats' else 'chats'}{size}")
        if not gone:
            print("nothing to remove")
        done = "would go" if self._dry_run else "removed"
        print(f"{safe(str(app.store))}: {done} in {self._took_s:.1f} s; {_sizes(self._before, self._after)}")


def _sizes(before: Size, after: Size) -> str:
    words = f"{megabytes(before.total)} before, {megabytes(after.total)} after"
    return words if after.free is None else f"{words}, {megabytes(after.free)} of it free to be used again"


async def vacuum(where: Where, *, json: bool) -> int:
    app = app_with_data(where)
    began = time.monotonic()
    if isinstance(app.store, SqliteStore):
        told: dict[str, Any] = await _vacuum_file(app.store)
    else:
        assert isinstance(app.store, PostgresStore)
        told = await _vacuum_tables(app, app.store)
    took_s = time.monotonic() - began
    if json:
        write_line(msgspec.json.encode({**told, "seconds": round(took_s, 3)}))
    else:
        sizes = f"{megabytes(told['before'])} before, {megabytes(told['after'])} after"
        print(f"{safe(str(app.store))}: {sizes}, in {took_s:.1f} s")
    return 0


async def _vacuum_file(store: SqliteStore) -> dict[str, Any]:
    task = asyncio.current_task()
    assert task is not None
    with ProgressLine("building it anew") as shown:
        try:
            done = vacuum_file(store.path, shown.update, gave_up=lambda: task.cancelling() > 0)
        except GaveUp:
            await asyncio.sleep(0)  # where the cancellation comes
            raise
    return done._asdict()


async def _vacuum_tables(app: App, store: PostgresStore) -> dict[str, Any]:
    async with opened(app):
        before = await store.measure()
        with ProgressLine("vacuum") as shown:
            async with aclosing(store.vacuum()) as tables:
                async for table in tables:
                    shown.say(f"{table} is done")
        return {"before": before.total, "after": (await store.measure()).total}
