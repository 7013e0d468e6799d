"""A database goes back in time under a running fleet: a backup is restored, a standby that lagged is promoted.

What was acknowledged since then is gone, and can be named. No unsafe call is begun twice, no model is asked without
end, no chat stays behind, and `holdfast doctor` says what happened.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.app import App
from holdfast.core.records import State, ToolResult
from holdfast.errors import NotFound, StoreError
from tests.long.crew import CALM_S, Crew, create, doctor, registered, renewed, rest
from tests.long.going_back import FileRestored, Rewind, holdfast, rewinding
from tests.support.chats import user
from tests.support.tallies import Figures
from tests.support.waiting import eventually, until

SAME_REQUESTS_MAX = 3  # before, after, and one that was under way when its worker found that the database went back
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["file", "backup", "standby"])
def rewind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rewind]:
    with rewinding(request.param, tmp_path) as rewind:
        yield rewind


@pytest.fixture
def crew(rewind: Rewind, tmp_path: Path) -> Iterator[Crew]:
    with Crew(rewind.url, tmp_path) as crew:
        yield crew


@pytest.fixture
async def app(crew: Crew) -> AsyncIterator[App]:
    async with App(crew.url, [], lease_ttl_s=crew.ttl_s) as app:
        yield app


@pytest.mark.parametrize("rewind", ["standby"], indirect=True)
async def test_the_doctor_knows_of_a_standby_that_was_promoted_while_every_chat_rested(
    rewind: Rewind, crew: Crew, app: App, tmp_path: Path
) -> None:
    member = crew.launch()
    await registered(crew.url, [member])
    await rest(app, await create(app, "payer", 1))
    assert "database_failed_over" not in codes(crew, tmp_path)
    rewind.mark()
    rewind.go_back()
    await until(lambda: "database_failed_over" in codes(crew, tmp_path), CALM_S)
    await rest(app, await create(app, "payer", 1))
    assert member.stop() == 0


async def test_a_database_that_went_back_has_nothing_doubled_looping_or_stranded(
    rewind: Rewind, crew: Crew, app: App, tmp_path: Path, figures: Figures
) -> None:
    members = [crew.launch() for _ in range(3)]
    await registered(crew.url, members)
    settled = await create(app, "payer", 3)
    talkers = await create(app, "talker", 3)
    await rest(app, settled + talkers)
    ending, late = await create(app, "gated", 6), await create(app, "late", 3)
    await crew.at_the_gate(6 + 9)
    rewind.mark()

    # All of this will be lost.
    crew.open_gate("a")
    await rest(app, ending)
    gone = await create(app, "payer", 4)
    sent = {chat_id: user("and again") for chat_id in settled}
    for chat_id, message in sent.items():
        await app.chat(chat_id).send(message)
    await rest(app, gone + settled)
    await crew.at_the_gate(
        6 + 9 + 8 + 6 + 3
    )  # the late ones stand at their second gate, in a body that nobody will know
    asked = crew.asked()
    for chat_id in talkers:
        await app.chat(chat_id).send("go on")
    await until(lambda: crew.asked() >= asked + len(talkers), CALM_S)
    asked = crew.asked()
    rewind.go_back()

    left = settled + talkers + ending + late
    await eventually(lambda: answers(app, settled[0]), CALM_S)
    lost = [chat_id for chat_id in gone if not await exists(app, chat_id)]
    lost_messages = [
        chat_id for chat_id, message in sent.items() if message.id not in await message_ids(app, chat_id)
    ]
    crew.open_gate("b")
    for chat_id in ending[:2]:
        await app.chat(chat_id).stop()
    took_s = await rest(app, left)
    asked_again = crew.asked() - asked
    await renewed(crew.url, (await registered(crew.url, members)).values(), times=4)

    assert lost == gone
    assert lost_messages == settled
    unrecorded = await bodies_without_a_record(app, crew, left)
    assert unrecorded == {"charge": 2 * len(gone) + 2 * len(settled), "pass_gate": len(late)}
    begun = Counter(line.chat_id for line in crew.evidence() if line.what == "entered")
    assert {begun[chat_id] for chat_id in ending} == {1}, "what was known to be begun was begun again"
    assert {begun[chat_id] for chat_id in late} == {3}, "the second gate is passed again: nobody knows that it was"
    twice = {call_id: count for call_id, count in crew.entered().items() if count > 1}
    assert not twice, "a body that may be begun once was begun again"
    assert crew.asked() == asked + asked_again, "a model is asked though every chat rests"
    same = Counter(tuple(line.ids) for line in crew.evidence() if line.what == "asked")
    assert max(same.values()) <= SAME_REQUESTS_MAX
    figures(
        "acknowledged and lost", f"{len(lost)} chats, {len(lost_messages) + len(talkers)} messages, 6 ends of turns"
    )
    figures("model requests after it went back, until all chats rest", asked_again)
    figures("all chats at rest again after", took_s, "s")
    figures("unsafe bodies whose record was lost", sum(unrecorded.values()))
    figures("of these, begun again under another call", len(late))
    await until(lambda: "database_went_back" in codes(crew, tmp_path), CALM_S)  # who noticed tells in its next sweep
    assert [member.stop() for member in members] == [0, 0, 0]


async def test_a_file_is_restored_by_the_command_once_its_workers_are_gone(tmp_path: Path) -> None:
    with rewinding("file", tmp_path) as rewind, Crew(rewind.url, tmp_path) as crew:
        assert isinstance(rewind, FileRestored)
        members = [crew.launch() for _ in range(2)]
        async with App(crew.url, [], lease_ttl_s=crew.ttl_s) as app:
            ending = await create(app, "gated", 4)
            await crew.at_the_gate(4)
            rewind.mark()
            crew.open_gate("a")
            await rest(app, ending)
            gone = await create(app, "payer", 1)
            await rest(app, gone)
        restore = ("restore", rewind.backup, "--force", "--database", crew.url)
        assert holdfast(*restore) != 0, "restored though workers have it open"
        for member in members:
            member.kill()
        assert holdfast(*restore) == 0
        heir = crew.launch()
        async with App(crew.url, [], lease_ttl_s=crew.ttl_s) as app:
            await rest(app, ending)
            assert not await exists(app, gone[0])
            begun = Counter(line.chat_id for line in crew.evidence() if line.what == "entered")
            assert {begun[chat_id] for chat_id in ending} == {1}
        assert "database_went_back" in codes(crew, tmp_path)
        assert heir.stop() == 0


def codes(crew: Crew, home: Path) -> set[str]:
    """What the doctor finds; no chat is ever among it."""
    _, found = doctor(crew.url, home)
    assert [finding for findings in found.values() for finding in findings if finding["what"] == "chat"] == []
    return set(found)


async def bodies_without_a_record(app: App, crew: Crew, chat_ids: list[str]) -> Counter[str]:
    """By tool: those that really ran, and that no history knows of any more."""
    messages = [message for chat_id in chat_ids for message in await app.chat(chat_id).messages()]
    known = {part.call_id for message in messages for part in message.parts if isinstance(part, ToolResult)}
    entered = [line for line in crew.evidence() if line.what == "entered"]
    return Counter(line.tool for line in entered if line.call_id not in known)


async def answers(app: App, chat_id: str) -> bool:
    try:
        return (await app.chat(chat_id).state()) is State.IDLE
    except StoreError:
        return False


async def exists(app: App, chat_id: str) -> bool:
    try:
        await app.store.read_chat(chat_id)
    except NotFound:
        return False
    return True


async def message_ids(app: App, chat_id: str) -> set[str]:
    return {message.id for message in await app.chat(chat_id).messages()}
