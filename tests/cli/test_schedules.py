"""`holdfast schedules`: made with its next instants shown, found by name, paused, triggered, and told of."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Desk, Done


def test_a_schedule_is_made_and_followed_in_the_terminal(quick: Callable[..., Done], tmp_path: Path) -> None:
    place = ("--database", f"sqlite:///{tmp_path}/holdfast.db")
    spec = ("--agent", "scripted", "--cron", "30 2 * * *", "--zone", "Europe/Berlin")
    made = quick("schedules", "add", "report", "Report of {date}", *spec, *place)
    assert made.code == 0, made.err
    assert made.out.count("  next ") == 5
    assert made.out.splitlines()[-1].endswith(" is made")
    listed = json.loads(quick("schedules", "list", "--json", *place).out)
    assert [(one["name"], one["state"], one["source"]) for one in listed] == [("report", "active", "made")]
    assert "report" in quick("schedules", "list", *place).out
    assert "30 2 * * * Europe/Berlin" in quick("schedules", "show", "report", *place).out
    assert len(quick("schedules", "next", "report", "-n", "3", *place).out.splitlines()) == 3
    assert quick("schedules", "pause", "report", "--note", "until Monday", *place).out == "report is paused\n"
    assert "until Monday" in quick("schedules", "show", listed[0]["id"], *place).out
    assert quick("schedules", "resume", "report", *place).out.startswith("report is active, next 20")
    assert quick("schedules", "trigger", "report", *place).out.startswith("fired: chat_")
    assert quick("schedules", "trigger", "report", *place).out == "skipped: overlap\n"
    window = ("--since", "2026-03-28", "--until", "2026-03-30T12:00")
    filled = quick("schedules", "backfill", "report", *window, *place)
    assert filled.out == "3 instants are fired from now on, 0 were already\n", filled.err
    history = quick("schedules", "history", "report", *place).out.splitlines()
    assert [row.split("\t")[2] for row in history] == ["skipped overlap", "fired", "held", "held", "held"]
    assert [row.split("\t")[0] for row in history[2:]] == [
        "2026-03-30T02:30:00+02:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-28T02:30:00+01:00",
    ]
    assert quick("schedules", "remove", "report", *place).out == "report is removed; its chats stay\n"
    assert quick("schedules", "show", "report", *place).code != 0


def test_instants_are_shown_without_anything_being_saved_and_what_is_wrong_is_said(
    quick: Callable[..., Done], tmp_path: Path
) -> None:
    shown = quick("schedules", "next", "--every", "3600", "-n", "4")
    assert len(shown.out.splitlines()) == 4
    assert not list(tmp_path.iterdir())
    for wrong, words in (
        (("--cron", "0 0 30 2 *"), "never comes"),
        (("--cron", "0 0 * * *", "--zone", "Europe/Berln"), "did you mean Europe/Berlin?"),
        (("--every", "5", "--cron", "0 0 * * *"), "give one of"),
        (("--at", "soon"), "is no instant"),
        (("--at", "2020-01-01T09:00"), "at: is in the past"),
        ((), "give one of"),
    ):
        refused = quick("schedules", "next", *wrong)
        assert refused.code != 0
        assert words in refused.err
    zoned = quick("schedules", "next", "report", "--zone", "Europe/Berlin")
    assert (zoned.code, "a saved schedule has its own" in zoned.err) == (2, True)
    for timing in (("--cron", "0 0 * * *"), ("--every", "5"), ("--at", "2126-01-01T09:00")):
        both = quick("schedules", "next", "report", *timing)
        assert (both.code, "name a schedule, or give one of --cron" in both.err) == (2, True)


def test_schedules_of_the_settings_are_checked_when_they_are_read(desk: Desk) -> None:
    wrong = {
        'corn = "0 9 * * *"': "did you mean cron?",
        'cron = "0 0 30 2 *"': "never comes",
        "": "give one of",
    }
    for text, words in wrong.items():
        (desk.folder / "holdfast.toml").write_text(
            f'[schedules.report]\nagent = "scripted"\nmessage = "go"\n{text}\n'
        )
        refused = desk.run("permissions", "list")
        assert refused.code != 0
        assert words in refused.err
