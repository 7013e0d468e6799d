"""The judge of the clients lets nothing pass that a user would call wrong, and the table hides no failure."""

import pytest

from tests.clients.__main__ import reasons, table
from tests.clients.cases import CASES, FIRE, STORY, Told
from tests.clients.clients import Client
from tests.clients.matrix import Cell, expected

JUDGES = {case.name: case.judge for case in CASES}
WHOLE = {"text": "once upon a time"}


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("text", Told()),
        ("text", Told(error="APIError: no")),
        ("text", Told(got={"text": ""})),
        ("stream", Told(got={"text": STORY, "streamed": STORY, "pieces": 1})),
        ("stream", Told(got={"text": STORY, "streamed": STORY[:-1], "pieces": 9})),
        ("tool", Told(got={"text": "rain in Bern, rule-desk rule-brief", "ran": 2})),
        ("tool", Told(got={"text": "rain in Bern, rule-desk", "ran": 1})),
        ("structured", Told(got={"value": {"celsius": "7"}})),
        ("second", Told(got={"text": "heard kelp-two"})),
        ("second", Told(got={"text": "heard kelp-one kelp-two", "also": "heard kelp-two"})),
        ("error", Told(got={"text": ""}, notes=1)),
        ("error", Told(error="InternalServerError", notes=1)),
        ("error", Told(error=FIRE, notes=3)),
        ("broken", Told(got={"text": STORY})),
        ("deploy", Told(got={"text": ""}, notes=1, kept=WHOLE["text"])),
        ("deploy", Told(got=WHOLE, notes=2, kept=WHOLE["text"])),
        ("going", Told(got={"text": "once upon "}, notes=1, kept=WHOLE["text"])),
        ("killed", Told(error="gone", notes=1, kept=None)),
        ("killed", Told(notes=1, kept=WHOLE["text"])),
    ],
)
def test_what_a_user_would_call_wrong_has_a_reason(case: str, told: Told) -> None:
    assert JUDGES[case](told)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("text", Told(got={"text": "heard kelp-one"})),
        ("error", Told(error=f"BadRequestError: {FIRE}", notes=1)),
        ("deploy", Told(got=WHOLE, notes=1, kept=WHOLE["text"])),
        ("killed", Told(error="gone", notes=1, kept=WHOLE["text"])),
    ],
)
def test_what_is_as_it_should_be_has_none(case: str, told: Told) -> None:
    assert JUDGES[case](told) is None


def test_a_known_reason_is_shown_and_one_that_is_not_true_any_more_is_a_failure() -> None:
    client = Client("pydantic-ai, responses", "kelp", "kelp.py")
    assert expected(client, "approval", Cell(reason="asks again")).way.startswith("no: passes over the item")
    assert not expected(client, "approval", Cell()).is_good
    assert not expected(client, "text", Cell(reason="refused")).is_good


def test_the_table_names_what_is_bad_and_what_is_known() -> None:
    cases = CASES[:2]
    rows = {"kelp": {"text": Cell(reason="took '' for the answer"), "stream": Cell(way="no: it has none")}}
    assert "| kelp   | BAD  | no     |" in table(rows, cases)
    assert reasons(rows, cases) == ["kelp, text: took '' for the answer", "kelp, stream: no: it has none"]
