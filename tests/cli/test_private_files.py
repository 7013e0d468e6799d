"""What is said is for the eyes of this user alone, in a home that others made before us, too."""

import stat
from collections.abc import Callable
from pathlib import Path

from holdfast.store import open_store
from holdfast.system.disk import have_private_file
from tests.cli.conftest import APP, CTRL_D, Desk, Done, Terminal

Opened = Callable[..., Terminal]
Quick = Callable[..., Done]


def open_to_others(folder: Path) -> set[str]:
    found = [folder, *folder.rglob("*")]
    return {path.name for path in found if path != folder and stat.S_IMODE(path.lstat().st_mode) & 0o077}


def test_every_file_in_a_home_that_was_there_before_is_for_this_user_alone(desk: Desk, terminal: Opened) -> None:
    home = desk.folder / ".holdfast"
    home.mkdir(mode=0o755)
    at = terminal("chat", "--app", APP, "--agent", "echo")
    at.types("hello")
    at.sees("You said: hello")
    assert {"holdfast.db", "holdfast.db-wal", "holdfast.db-shm", "history"} <= {path.name for path in home.iterdir()}
    assert open_to_others(home) == set()
    at.presses(CTRL_D)
    assert at.ends() == 0
    assert desk.run("backup", "copy.db").code == 0
    assert stat.S_IMODE((desk.folder / "copy.db").stat().st_mode) == 0o600
    assert open_to_others(home) == set()


async def test_a_database_is_private_from_its_first_moment_and_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    have_private_file(str(tmp_path / "link.db"))
    assert stat.S_IMODE((tmp_path / "real.db").stat().st_mode) == 0o600
    async with open_store(f"sqlite:///{tmp_path}/link.db"):
        assert open_to_others(tmp_path) <= {"link.db"}


def test_doctor_tells_of_a_database_that_everybody_can_read(quick: Quick, tmp_path: Path) -> None:
    home = tmp_path / ".holdfast"
    home.mkdir(mode=0o755)
    quick("run", "hello", "--agent", "scripted")
    assert "database_exposed" not in quick("doctor").out
    (home / "holdfast.db").chmod(0o644)
    found = quick("doctor")
    assert found.code == 1
    assert f"chmod o-rwx {home}/holdfast.db" in found.out
    home.chmod(0o700)
    assert "database_exposed" not in quick("doctor").out, "nobody gets that far"


def test_an_exposed_database_is_not_closed_to_a_group_that_shares_it(quick: Quick, tmp_path: Path) -> None:
    quick("run", "hello", "--agent", "scripted")
    database = tmp_path / ".holdfast" / "holdfast.db"
    database.chmod(0o660)
    assert quick("chats", "list").code == 0
    assert stat.S_IMODE(database.stat().st_mode) == 0o660
    assert "database_exposed" not in quick("doctor").out
