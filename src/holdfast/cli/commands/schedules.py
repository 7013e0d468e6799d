"""`holdfast schedules`: made, shown, paused, triggered, and what became of each instant."""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from holdfast.app import App
from holdfast.cli.app_choice import UsageError, app_with_data, open_app, opened
from holdfast.cli.commands.run import write_line
from holdfast.cli.listing import Field, Row, print_listing
from holdfast.cli.options import Where
from holdfast.cli.words import ago, line
from holdfast.core.instants import iso
from holdfast.core.schedules import Cron, Every, Occurrence, Overlap, ScheduleRecord
from holdfast.declared_schedules import Schedule
from holdfast.errors import InvalidInput, NotFound
from holdfast.schedules import moment
from holdfast.store.schedule_records import OVERLAPS
from holdfast.timetable import local_time, parsed_instant

FOUND_PAGE = 500


class When(NamedTuple):
    cron: str | None
    every_s: float | None
    at: str | None
    zone: str | None


class Wish(NamedTuple):
    """What `add` was told."""

    name: str
    message: str
    agent: str
    when: When
    same_chat: bool
    overlap: str | None
    catch_up_s: float
    jitter_s: float
    pause_after: int | None
    owner: str

    def schedule(self) -> Schedule:
        """Raises ConfigError, InvalidInput."""
        return Schedule(
            name=self.name,
            agent=self.agent,
            message=self.message,
            **_timing(self.when),
            chat="same" if self.same_chat else "new",
            overlap=_policy(self.overlap) or "skip",
            catch_up_s=self.catch_up_s,
            jitter_s=self.jitter_s,
            pause_after=self.pause_after,
            owner=self.owner,
        )


def _timing(when: When) -> dict[str, Any]:
    zone = when.zone or "UTC"
    at = None if when.at is None else moment(parsed_instant("at", when.at, zone))
    return {"cron": when.cron, "every_s": when.every_s, "at": at, "zone": zone}


def _policy(text: str | None) -> Overlap | None:
    if text is None:
        return None
    for known in OVERLAPS:
        if text == known:
            return known
    raise UsageError(f"--overlap {text!r} is none of {', '.join(OVERLAPS)}")


async def _find(app: App, named: str) -> ScheduleRecord:
    """By its id, or by its name where only one has it. Raises NotFound, UsageError."""
    try:
        return await app.schedules.get(named)
    except NotFound:
        found, before = [], None
        while page := await app.schedules.list(before=before, limit=FOUND_PAGE):
            found += [one for one in page if one.name == named]
            before = page[-1].id
        if len(found) > 1:
            ids = ", ".join(one.id for one in found)
            raise UsageError(f"{len(found)} schedules are named {named!r}: say which by its id, {ids}") from None
        if not found:
            raise
        return found[0]


# --- looking --------------------------------------------------------------------------------------------------------


async def list_schedules(where: Where, owner: str | None, limit: int, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        found = await app.schedules.list(owner=owner, limit=limit)
    if json:
        write_line(msgspec.json.encode([_told(one) for one in found]))
        return
    heads = ("schedule", "name", "when", "agent", "state", "next", "fired", "skipped", "owner", "note")
    print_listing(heads, [_row(one) for one in found])


def _told(schedule: ScheduleRecord) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(schedule)
    told.pop("stamp")
    return told


def when_words(schedule: ScheduleRecord) -> str:
    timing = schedule.timing
    if isinstance(timing, Cron):
        return f"{timing.expression} {timing.zone}"
    if isinstance(timing, Every):
        return f"every {timing.ms / 1000:g} s"
    return f"once {local_time(timing.at, timing.zone)}"


def _row(schedule: ScheduleRecord) -> Row:
    at = schedule.next_at
    return (
        Field(shown=schedule.id),
        Field(shown=line(schedule.name, 60), plain=schedule.name),
        Field(shown=line(when_words(schedule), 60)),
        Field(shown=line(schedule.agent, 40)),
        Field(shown=schedule.state),
        Field(shown=local_time(at, schedule.timing.zone) if at is not None else ""),
        Field(shown=str(schedule.fired)),
        Field(shown=str(schedule.skipped)),
        Field(shown=line(schedule.owner, 40)),
        Field(shown=line(schedule.note, 80)),
    )


async def show(where: Where, named: str, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        found = await _find(app, named)
        coming = app.schedules.next(found)
    if json:
        write_line(msgspec.json.encode({**_told(found), "next": coming}))
        return
    whose_chat = "one chat that goes on" if found.chat == "same" else "a new chat each time"
    times = f"catch-up {found.catch_up_ms / 1000:g} s, jitter {found.jitter_ms / 1000:g} s"
    print(f"{line(found.name, 100)}  {found.id}  {found.state}  {line(found.note, 200)}".rstrip())
    print(f"  when      {line(when_words(found), 200)}")
    print(f"  agent     {line(found.agent, 100)}, {whose_chat}")
    print(f"  message   {line(found.message, 200)}")
    print(f"  overlap   {found.overlap}, {times}")
    print(f"  became    {found.fired} fired, {found.skipped} skipped, {found.failures} failures in a row")
    _print_instants(coming, found.timing.zone)


def _print_instants(coming: Sequence[datetime], zone: str) -> None:
    for at in coming:
        print(f"  next      {local_time(round(at.timestamp() * 1000), zone)}")


async def next_instants(where: Where, named: str | None, when: When, count: int, *, json: bool) -> None:
    """Raises UsageError, InvalidInput."""
    if named is not None:
        if (when.cron, when.every_s, when.at) != (None, None, None):
            raise UsageError("name a schedule, or give one of --cron, --every and --at, not both")
        if when.zone is not None:
            raise UsageError("--zone goes with --cron, --every and --at: a saved schedule has its own")
        async with opened(app_with_data(where)) as app:
            found = await _find(app, named)
            coming, zone = app.schedules.next(found, count), found.timing.zone
    else:
        draft = Schedule(name="draft", agent="draft", message="draft", **_timing(when))
        coming, zone = App().schedules.preview(draft, count), draft.zone
        if when.at is not None and not coming:
            raise InvalidInput("at", "is in the past: give an instant that is still to come")
    if json:
        write_line(msgspec.json.encode([local_time(round(at.timestamp() * 1000), zone) for at in coming]))
        return
    for at in coming:
        print(local_time(round(at.timestamp() * 1000), zone))


async def history(where: Where, named: str, limit: int, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        found = await _find(app, named)
        rows = await app.schedules.history(found.id, limit=limit)
    if json:
        write_line(msgspec.json.encode(rows))
        return
    heads = ("instant", "kind", "what", "chat", "ended", "detail")
    print_listing(heads, [_occurrence_row(one, found.timing.zone) for one in rows])


def _occurrence_row(occurrence: Occurrence, zone: str) -> Row:
    many = f" to {local_time(occurrence.upto, zone)}, {occurrence.count} of them" if occurrence.count > 1 else ""
    what = " ".join(filter(None, (str(occurrence.state), occurrence.reason or occurrence.outcome)))
    ended = occurrence.ended_at
    return (
        Field(shown=local_time(occurrence.at, zone) + many),
        Field(shown=occurrence.kind),
        Field(shown=what),
        Field(shown=occurrence.chat_id or ""),
        Field(shown=ago(ended) if ended is not None else "", plain=iso(ended) if ended is not None else ""),
        Field(shown=line(occurrence.detail, 200)),
    )


# --- changing -------------------------------------------------------------------------------------------------------


async def add(where: Where, wish: Wish, *, yes: bool, json: bool) -> None:
    """In a terminal a person is asked once the next instants are shown."""
    schedule = wish.schedule()
    async with opened(open_app(where.app, home=where.home, database=where.database)) as app:
        app.agent(schedule.agent)
        coming = app.schedules.preview(schedule)
        if not json:
            _print_instants(coming, schedule.zone)
            if not yes and sys.stdin.isatty() and not _confirmed():
                print("nothing was saved")
                return
        made = await app.schedules.create(schedule, by="terminal")
    _say(made, f"{made.id} is made", json=json)


def _confirmed() -> bool:
    return input("Save it? [y/N] ").strip().lower() in ("y", "yes")


def _say(schedule: ScheduleRecord, words: str, *, json: bool) -> None:
    if json:
        write_line(msgspec.json.encode(_told(schedule)))
    else:
        print(line(words, 300))


async def pause(where: Where, named: str, note: str, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        done = await app.schedules.pause((await _find(app, named)).id, note)
    _say(done, f"{done.name} is paused", json=json)


async def resume(where: Where, named: str, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        done = await app.schedules.resume((await _find(app, named)).id)
    at = f", next {local_time(done.next_at, done.timing.zone)}" if done.next_at is not None else ""
    _say(done, f"{done.name} is {done.state}{at}", json=json)


async def trigger(where: Where, named: str, overlap: str | None, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        done = await app.schedules.trigger((await _find(app, named)).id, overlap=_policy(overlap))
    if json:
        write_line(msgspec.json.encode(done))
        return
    what = {"fired": f"fired: {done.chat_id}", "held": "it waits until the open one has ended"}
    print(what.get(str(done.state), f"skipped: {done.reason} {line(done.detail, 200)}".rstrip()))


async def backfill(where: Where, named: str, since: str, until: str, overlap: str | None, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        found = await _find(app, named)
        zone = found.timing.zone
        times = [moment(parsed_instant(name, text, zone)) for name, text in (("since", since), ("until", until))]
        done = await app.schedules.backfill(found.id, *times, overlap=_policy(overlap) or "queue_all")
    if json:
        write_line(msgspec.json.encode({"waiting": done.waiting, "known": done.known}))
    else:
        print(f"{done.waiting} instants are fired from now on, {done.known} were already")


async def remove(where: Where, named: str, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        done = await app.schedules.remove((await _find(app, named)).id)
    _say(done, f"{done.name} is removed; its chats stay", json=json)
