"""A SQLite file under two names: its locks and its WAL are the file's, whatever name it was opened by."""

from pathlib import Path

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.records import State
from holdfast.errors import StoreTimeout
from holdfast.models.scripted import ScriptedModel
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from tests.support.chats import new_chat
from tests.support.programs import Program


@pytest.fixture
async def names(tmp_path: Path) -> tuple[Path, Path]:
    """The file, and a link in another folder that leads to a link to it."""
    for folder in ("data", "current", "here"):
        (tmp_path / folder).mkdir()
    real, between, link = tmp_path / "data/holdfast.db", tmp_path / "current/db", tmp_path / "here/link.db"
    async with open_store(f"sqlite:///{real}"):
        pass
    between.symlink_to("../data/holdfast.db")
    link.symlink_to(between)
    return real, link


async def test_who_opened_a_file_by_a_link_waits_for_the_write_lock_of_the_file(names: tuple[Path, Path]) -> None:
    real, link = names
    async with open_store(f"sqlite:///{link}", StoreOptions(deadline_s=1.0)) as store:
        assert Path(store.lock_folder).parent == real.parent
        with Program("tests.store.holder", str(real)) as holder:
            assert holder.hear() == "held"
            with pytest.raises(StoreTimeout):
                await store.create_chat(new_chat(id="c1"))
            holder.say("go")
            holder.finish()
        await store.create_chat(new_chat(id="c2"))
    assert [path.name for path in link.parent.iterdir()] == ["link.db"], "nothing lies beside the link"


async def test_a_worker_on_a_file_and_an_app_on_a_link_to_it_work_on_one_database(names: tuple[Path, Path]) -> None:
    real, link = names
    with Program("tests.worker.lone", f"sqlite:///{real}", "quick", "30000", "60") as worker:
        assert worker.hear() == "ready"
        async with App(f"sqlite:///{link}", [Agent("lone", ScriptedModel())]) as app:
            chat = await app.create("lone", "go")
            assert await chat.wait(60.0) is State.IDLE
            assert await chat.text() == "Done."


async def test_a_link_to_a_file_that_is_not_there_yet_makes_it(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "made.db")
    async with open_store(f"sqlite:///{link}") as store:
        await store.create_chat(new_chat(id="c1"))
    async with open_store(f"sqlite:///{tmp_path}/made.db") as store:
        assert (await store.read_chat("c1")).chat.id == "c1"
