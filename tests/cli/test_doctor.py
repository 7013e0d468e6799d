"""`holdfast doctor` on a bad day: what is wrong is a row with what to do, and the other rows are there as well."""

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.commands.doctor import _chats
from holdfast.core.records import Lease
from holdfast.store import open_store
from holdfast.store.incidents import FAILED_OVER, WENT_BACK, Incident
from holdfast.store.records import Held, StoreOptions
from holdfast.system.clock import FakeClock
from tests.cli.conftest import Desk, Done
from tests.support.chats import Hand, new_chat
from tests.support.looptime import LoopTime
from tests.support.postgres import SCRAM_OWNER, PostgresServer
from tests.support.waiting import until

Quick = Callable[..., Done]


def found(done: Done) -> list[dict[str, Any]]:
    """What is wrong; and every check was made, each said in one row."""
    assert done.code == 1, done.out + done.err
    assert done.err == ""
    told = json.loads(done.out)
    assert told["ok"] is False
    assert {finding["what"] for finding in told["findings"]} >= {"python", "sqlite", "settings", "home", "token"}
    assert {finding["what"] for finding in told["findings"]} >= {"keys", "local", "model", "store"}
    return [finding for finding in told["findings"] if finding["wrong"]]


def test_a_file_of_settings_that_is_no_toml_hides_nothing_else(desk: Desk) -> None:
    (desk.folder / "holdfast.toml").write_text("port = 1\ngrace_s 7\n")
    (wrong,) = found(desk.run("doctor", "--json"))
    assert (wrong["what"], wrong["code"]) == ("settings", "config")
    assert "line 2" in wrong["detail"]
    assert wrong["advice"]
    told = desk.run("doctor").out
    assert "✗ settings config: holdfast.toml cannot be read" in told
    assert "✓ store    " in told
    assert told.endswith("1 finding\n")


def test_settings_that_were_trusted_and_cannot_be_read_hide_nothing_else(desk: Desk) -> None:
    del desk.environ["HOLDFAST_TRUSTED"]
    settings = desk.folder / "holdfast.toml"
    settings.touch()
    assert desk.run("trust").code == 0
    settings.unlink()
    settings.mkdir()
    (wrong,) = found(desk.run("doctor", "--json"))
    assert (wrong["what"], wrong["code"]) == ("settings", "config")
    assert wrong["detail"] == f"{settings} cannot be read: it is no regular file"


def test_each_setting_that_is_wrong_is_told_and_the_others_count(
    quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("holdfast.toml").write_text('prot = 1\ngrace_s = "x"\nhome = "kelp"\n')
    monkeypatch.setenv("HOLDFAST_PORTT", "1")
    done = quick("doctor", "--json")
    assert [wrong["detail"].partition(";")[0] for wrong in found(done)] == [
        "holdfast.toml: prot is no key of holdfast",
        "holdfast.toml: grace_s does not fit: Expected `float`, got `str`",
        "HOLDFAST_PORTT is no environment variable of holdfast",
    ]
    assert "kelp/holdfast.db" in done.out


def test_a_wrong_password_is_told_without_the_password(
    quick: Quick, postgres_server: PostgresServer, postgres_url: str
) -> None:
    url = postgres_server.url(postgres_url.rpartition("/")[2], user=SCRAM_OWNER, password="n0tThis")
    done = quick("doctor", "--json", "--database", url)
    (wrong,) = found(done)
    assert (wrong["what"], wrong["code"]) == ("store", "store_auth")
    assert "check the user, the password" in wrong["detail"]
    assert "n0tThis" not in done.out


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("postgresql://me@127.0.0.1:1/x", "store_unavailable", "start the server, or correct its address"),
        ("mysql://me@host/x", "config", "use sqlite:///path/to/file.db"),
        ("sqlite:///no/such/folder/x.db", "config", "create it, or name another path"),
    ],
)
def test_a_database_that_is_not_there_is_told_with_what_to_do(
    quick: Quick, monkeypatch: pytest.MonkeyPatch, url: str, code: str, says: str
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE_DEADLINE_S", "0.5")
    done = quick("doctor", "--json", "--database", url)
    told = json.loads(done.out)["findings"]
    (wrong,) = [finding for finding in told if finding["wrong"]]
    assert (done.code, wrong["code"]) == (1, code)
    assert says in wrong["detail"] + wrong["advice"]


def test_a_database_of_a_newer_holdfast_is_told(quick: Quick, tmp_path: Path) -> None:
    assert quick("tokens", "create", "any").code == 0
    with closing(sqlite3.connect(tmp_path / ".holdfast" / "holdfast.db")) as newer, newer:
        newer.execute("UPDATE meta SET value = 99")
    (wrong,) = found(quick("doctor", "--json"))
    assert (wrong["what"], wrong["code"]) == ("store", "schema")
    assert "upgrade holdfast on this machine" in wrong["detail"]


MODELS = """
from holdfast import Agent, App
b = Agent("b", "openai:gpt-5", fallbacks=["anthropic:claude-sonnet-4-5"])
app = App(agents=[Agent("a", "local:/no/such.gguf"), b])
"""


def test_weights_and_keys_that_are_missing_are_told_for_each_model_of_each_agent(desk: Desk) -> None:
    (desk.folder / "models.py").write_text(MODELS)
    wrong = found(desk.run("doctor", "--json", "--app", "models:app"))
    assert {finding["code"] for finding in wrong} == {"model_unusable"}
    weights, key, other = (finding["detail"] for finding in wrong)
    assert weights.startswith("a: ")
    assert "there is no file /no/such.gguf; name a GGUF file" in weights
    assert key == "b: model 'openai:gpt-5' needs a key: set the environment variable OPENAI_API_KEY"
    assert other.endswith("set the environment variable ANTHROPIC_API_KEY")


def test_an_app_that_cannot_be_imported_hides_nothing_else(desk: Desk) -> None:
    (desk.folder / "broken.py").write_text("import kelp_that_is_not\n")
    (wrong,) = found(desk.run("doctor", "--json", "--app", "broken:app"))
    assert wrong["what"] == "app"
    assert "kelp_that_is_not" in wrong["detail"]


def test_a_home_that_is_a_file_is_told(quick: Quick, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = {wrong["what"]: wrong for wrong in found(quick("doctor", "--json", "--home", "file"))}
    assert told["home"]["detail"] == f"{tmp_path}/file is not a folder"
    assert "--home" in told["home"]["advice"]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize(("incident", "wrong"), [(WENT_BACK, True), (FAILED_OVER, False)])
def test_what_befell_a_database_is_told_for_a_day(
    quick: Quick, tmp_path: Path, store: str, request: pytest.FixtureRequest, incident: Incident, wrong: bool
) -> None:
    url = f"sqlite:///{tmp_path}/h.db" if store == "sqlite" else request.getfixturevalue("postgres_url")

    async def notice(at_ms: int) -> None:
        async with open_store(url, StoreOptions(clock=FakeClock(wall_ms=at_ms))) as opened:
            opened.incidents.tell(incident, "a test says so")
            await opened.sweep()

    def found() -> list[bool]:
        told = json.loads(quick("doctor", "--json", "--database", url).out)
        return [finding["wrong"] for finding in told["findings"] if finding["code"] == incident]

    now_ms = int(time.time() * 1000)
    asyncio.run(notice(now_ms - 2 * 86_400_000))
    assert found() == []
    asyncio.run(notice(now_ms))
    assert found() == [wrong]


async def test_a_worker_that_holds_chats_and_is_silent_is_told_and_one_that_renews_is_not(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No clock says that it is gone, and ending its lease is for another worker: until then all is not well."""
    async with open_store(store_url, StoreOptions(lease_ttl_ms=600_000)) as store:
        silent, living = Hand(store), Hand(store)
        for hand in (silent, living):
            await store.create_chat(new_chat(id=f"held-by-{hand.name}"))
            await hand.claim()
        looks: list[int] = []
        under_way: list[str] = []
        look, look_closer = store.list_workers, store.held_chats

        async def look_and_note() -> list[Lease]:
            under_way.append("leases")
            leases = await look()
            under_way.remove("leases")
            looks.extend(lease.renewal for lease in leases if lease.worker == living.name)
            return leases

        async def look_closer_and_note(worker: str) -> set[Held]:
            under_way.append(worker)
            held = await look_closer(worker)
            under_way.remove(worker)
            return held

        monkeypatch.setattr(store, "list_workers", look_and_note)
        monkeypatch.setattr(store, "held_chats", look_closer_and_note)
        over = threading.Event()
        renewing = asyncio.ensure_future(asyncio.to_thread(_renew_until, over, living))
        loop_time = LoopTime()
        looking = asyncio.ensure_future(_chats(store))
        await until(lambda: len(set(looks)) > 1)  # the doctor saw that it lives
        over.set()
        await renewing
        await until(lambda: not under_way)  # a look that is under way has a deadline, which would pass with the time
        loop_time.advance(600.0)
        findings = await looking
    assert [finding.detail.split()[0] for finding in findings if finding.code == "lease_silent"] == [silent.name]


def _renew_until(over: threading.Event, hand: Hand) -> None:
    while not over.wait(0.05):
        hand.line.renew(hand.name)
