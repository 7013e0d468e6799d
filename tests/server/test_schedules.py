"""Schedules by the API: shown before they are made, paused, triggered, backfilled, and seen by their owner alone."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, App
from holdfast.server.http import http_app
from holdfast.testing import ScriptedModel
from tests.server.test_kept_rules import ADMIN, House

DAILY = {
    "name": "daily",
    "agent": "echo",
    "message": "Report of {date}",
    "cron": "30 2 * * *",
    "zone": "Europe/Berlin",
}


@pytest.fixture
async def house(store_url: str, tmp_path: Path) -> AsyncIterator[House]:
    app = App(store_url, [Agent("echo", ScriptedModel(after="echo"))], home=str(tmp_path / "home"))
    async with app:
        yield House(app, http_app(app, token=ADMIN))


async def test_a_schedule_is_previewed_made_once_for_its_key_shown_changed_and_removed(house: House) -> None:
    async with house.client() as ada:
        after = 1_774_730_000_000  # 28 March 2026: the clocks change in the next night
        preview = await ada.post(f"/api/schedules/preview?count=2&after={after}", json=DAILY)
        assert preview.json() == {"next": [1_774_746_000_000, 1_774_830_600_000]}, preview.text
        made = [await ada.post("/api/schedules", json=DAILY, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [answer.status_code for answer in made] == [201, 201], made[0].text
        assert made[0].json() == made[1].json()
        schedule = made[0].json()
        told = {name: schedule[name] for name in ("owner", "cron", "zone", "state", "source", "overlap", "every_s")}
        assert told == {
            "owner": "ada", "cron": "30 2 * * *", "zone": "Europe/Berlin", "state": "active", "source": "made",
            "overlap": "skip", "every_s": None,
        }  # fmt: skip
        assert len(schedule["next"]) == 5
        path = f"/api/schedules/{schedule['id']}"
        assert (await ada.get(path)).json() == schedule
        hourly = DAILY | {"cron": None, "every_s": 3600, "overlap": "queue_one"}
        changed = (await ada.put(path, json=hourly)).json()
        assert (changed["every_s"], changed["cron"], changed["overlap"]) == (3600.0, None, "queue_one")
        assert (await ada.get("/api/schedules")).json() == {"schedules": [changed], "next": None}
        paused = (await ada.post(f"{path}/pause", json={"note": "until Monday"})).json()
        assert (paused["state"], paused["note"], paused["paused_by"], paused["next"]) == (
            *("paused", "until Monday", "person"),
            [],
        )
        assert (await ada.post(f"{path}/resume")).json()["state"] == "active"
        assert (await ada.delete(path)).status_code == 200
        assert (await ada.get(path)).status_code == 404


async def test_a_trigger_fires_once_for_its_key_and_the_history_tells_of_it(house: House) -> None:
    async with house.client() as ada:
        schedule = (await ada.post("/api/schedules", json=DAILY)).json()
        path = f"/api/schedules/{schedule['id']}"
        fired = [await ada.post(f"{path}/trigger", json={}, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert fired[0].json() == fired[1].json()
        assert (fired[0].json()["state"], fired[0].json()["kind"]) == ("fired", "triggered")
        skipped = (await ada.post(f"{path}/trigger", json={})).json()
        assert (skipped["state"], skipped["reason"]) == ("skipped", "overlap")
        rows = (await ada.get(f"{path}/occurrences")).json()["occurrences"]
        assert [row["state"] for row in rows] == ["skipped", "fired"]
        chat = (await ada.get(f"/api/chats/{fired[0].json()['chat_id']}")).json()
        assert chat["metadata"]["schedule"] == schedule["id"]
        day = 86_400_000
        now = fired[0].json()["decided_at"]
        filled = await ada.post(f"{path}/backfill", json={"since": now - 3 * day, "until": now})
        assert filled.json() == {"waiting": 3, "known": 0}, filled.text
        first = (await ada.get(f"{path}/occurrences?limit=2")).json()
        rest = (await ada.get(f"{path}/occurrences?before={first['next']}")).json()
        assert (len(first["occurrences"]), len(rest["occurrences"]), rest["next"]) == (2, 3, None)


async def test_a_key_that_comes_back_with_another_body_is_refused(house: House) -> None:
    key = {"Idempotency-Key": "k"}
    async with house.client() as ada:
        made = [(await ada.post("/api/schedules", json=DAILY, headers=key)).json() for _ in range(2)]
        assert made[0] == made[1]
        path = f"/api/schedules/{made[0]['id']}"
        await ada.put(path, json=DAILY | {"message": "changed since"})
        again = await ada.post("/api/schedules", json=DAILY, headers=key)
        assert (again.status_code, again.json()["message"]) == (201, "changed since")
        for answer in (
            await ada.post("/api/schedules", json=DAILY | {"name": "another"}, headers=key),
            await _twice(ada, f"{path}/trigger", key),
        ):
            assert (answer.status_code, answer.json()["code"]) == (422, "key_reused")
        assert len((await ada.get("/api/schedules")).json()["schedules"]) == 1


async def _twice(client: Any, path: str, key: dict[str, str]) -> Any:
    await client.post(path, json={}, headers=key)
    return await client.post(path, json={"overlap": "allow"}, headers=key)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cron": "0 0 30 2 *"}, "never comes"),
        ({"zone": "Europe/Berln"}, "did you mean Europe/Berlin?"),
        ({"message": "{year}"}, "{year} is no placeholder"),
        ({"every_s": 60}, "give one of cron, every_s and at"),
        ({"cron": None, "at": 5}, "in the past"),
        ({"agent": "nobody"}, "there is no agent 'nobody'"),
        ({"overlap": "never"}, "overlap"),
        ({"owner": "bob"}, "of the owner 'ada'"),
    ],
)
async def test_what_is_wrong_is_refused_with_the_reason(house: House, wrong: dict[str, Any], words: str) -> None:
    async with house.client() as ada:
        answer = await ada.post("/api/schedules", json=DAILY | wrong)
        assert 400 <= answer.status_code < 500
        assert words in answer.json()["detail"], answer.text
        assert (await ada.get("/api/schedules")).json()["schedules"] == []


async def test_a_schedule_is_there_for_its_owner_and_for_who_sees_all_and_for_nobody_else(house: House) -> None:
    async with house.client("ada") as ada, house.client("bob") as bob, house.client(None) as admin:
        schedule = (await ada.post("/api/schedules", json=DAILY)).json()
        path = f"/api/schedules/{schedule['id']}"
        window = {"since": 1, "until": 2}
        for method, rest, body in (
            ("GET", "", None),
            ("GET", "/occurrences", None),
            ("PUT", "", DAILY),
            ("DELETE", "", None),
            ("POST", "/pause", {}),
            ("POST", "/resume", None),
            ("POST", "/trigger", {}),
            ("POST", "/backfill", window),
        ):
            answer = await bob.request(method, path + rest, json=body)
            assert answer.status_code == 404, f"{method} {rest}: {answer.text}"
        assert (await bob.get("/api/schedules")).json()["schedules"] == []
        assert (await ada.get(path)).json() == schedule
        assert [one["id"] for one in (await admin.get("/api/schedules?owner=ada")).json()["schedules"]] == [
            schedule["id"]
        ]
    async with house.client("ada", scopes=frozenset({"read"})) as reader:
        assert (await reader.get(path)).status_code == 200
        assert (await reader.post(f"{path}/trigger", json={})).status_code == 403
    chat = await house.app.create("echo", owner="ada")
    async with house.client("ada", chat=chat.id) as guest:
        assert (await guest.get("/api/schedules")).status_code == 403
