"""What a firing sends: the chat it makes, the commands to one that is there, and what endpoints outside hear of."""

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from holdfast.core.codec import encode
from holdfast.core.commands import Command, Send, Stop, Withdraw
from holdfast.core.instants import iso
from holdfast.core.notices import Notice, NoticeKind
from holdfast.core.records import Message, NewChat
from holdfast.core.schedules import Fire, Occurrence, ScheduleRecord


def new_chat(schedule: ScheduleRecord, message: Message, occurrence: Occurrence) -> NewChat:
    return NewChat(
        id=str(occurrence.chat_id),
        agent=schedule.agent,
        owner=schedule.owner,
        metadata=metadata_of(schedule, occurrence),
        message=message,
    )


def metadata_of(schedule: ScheduleRecord, occurrence: Occurrence) -> Raw:
    told = {"schedule": schedule.id, "schedule_name": schedule.name, "occurrence_at": iso(occurrence.at)}
    return Raw(encode(told))


def commands(fire: Fire, chat_id: str, message: Message) -> tuple[Command, ...]:
    """To a chat that goes on: behind what it does, or in its place."""
    if not fire.cancels:
        return (Send(message=message),)
    queued = [one.occurrence for one in fire.cancels if one.queued and one.occurrence.chat_id == chat_id]
    gone = tuple(Withdraw(message_id=one.message_id) for one in queued if one.message_id is not None)
    return (*gone, Send(message=message, mode="interrupt"))


def calling_off(fire: Fire, same: str | None) -> list[tuple[str, tuple[Command, ...]]]:
    """For each other chat in which something is open: what waits there is withdrawn, and what runs is stopped.
    Several are in one where the schedule sent to a chat that went on before it was changed.
    """
    found: dict[str, list[Command]] = {}
    for one in sorted(fire.cancels, key=lambda one: not one.queued):
        occurrence = one.occurrence
        if occurrence.chat_id is None or occurrence.chat_id == same:
            continue
        withdrawn = one.queued and occurrence.message_id is not None
        what = Withdraw(message_id=str(occurrence.message_id)) if withdrawn else Stop(turn=occurrence.turn)
        found.setdefault(occurrence.chat_id, []).append(what)
    return [(chat_id, tuple(commands)) for chat_id, commands in found.items()]


def notices_of(
    schedule: ScheduleRecord, skipped: Sequence[Occurrence], now: int, *, paused: bool
) -> tuple[Notice, ...]:
    about = {"schedule_id": schedule.id, "schedule": schedule.name, "agent": schedule.agent}
    if schedule.owner:
        about["owner"] = schedule.owner
    told: list[tuple[NoticeKind, dict[str, Any]]] = []
    for one in skipped:
        what = {"at": one.at, "upto": one.upto, "count": one.count, "reason": one.reason}
        told.append(("schedule.skipped", what))
    if paused:
        told.append(("schedule.paused", {"reason": schedule.note, "failures": schedule.failures}))
    return tuple(
        Notice(kind=kind, owner=schedule.owner, at=now, data=Raw(encode(about | what))) for kind, what in told
    )
