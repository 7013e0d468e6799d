"""No secret that the process knows reaches the journal, a model or a log; what only looks like one stays data."""

import io
import logging
import re
from pathlib import Path

import pytest

from holdfast import Agent, App, ToolContext, redaction, tool
from holdfast.redaction import LOG_CHARS_MAX, Secrets, SecretsFilter
from holdfast.testing import Call, Fail, ScriptedModel

KEY = "hunter2-hunter2-hunter2"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK_API_KEY", KEY)
    monkeypatch.setenv("BANK_NAME", "not-a-secret-at-all")


@tool
async def leak(context: ToolContext) -> str:
    """Say too much."""
    context.progress(f"using {KEY}")
    return f"key {KEY} of not-a-secret-at-all, and sk-looks-like-a-key-but-is-data"


@tool
async def fall() -> str:
    """Fail with too many words."""
    raise RuntimeError(f"refused: {KEY}")


async def test_what_a_tool_says_reaches_neither_journal_nor_model_with_a_secret_in_it(store_url: str) -> None:
    model = ScriptedModel([Call(name="leak"), Call(name="fall")], "Done.")
    app = App(store_url, agents=[Agent("a", model, tools=[leak, fall])])
    async with app.worker():
        chat = await app.create("a", f"my own words: {KEY}")
        assert await chat.text() == "Done."
        told = [item.body.decode() async for item in chat.events()]
    asked, *rest = [line for line in told if KEY in line]
    assert "my own words" in asked, "what a person says is theirs"
    assert rest == []
    results = [line for line in told if "[BANK_API_KEY]" in line]
    assert len(results) >= 3, "the result, the error and the progress"
    assert any("not-a-secret-at-all, and sk-looks-like" in line for line in results)
    assert not any(KEY in message.text for message in model.requests[-1].messages if message.role == "tool")


async def test_why_there_is_no_summary_is_told_without_a_secret_in_it(store_url: str) -> None:
    summary = ScriptedModel([Fail(status=400, message=f"no account for {KEY}")], after="repeat")
    app = App(store_url, agents=[Agent("a", ScriptedModel(after="echo"), summary_model=summary)])
    async with app.worker() as worker:
        chat = await app.create("a", "One.")
        for text in ("Two.", "Three."):
            await chat.send(text)
        await chat.text()
        await chat.compact()
        told = [item.body.decode() async for item in chat.events()]
    assert any("no account for [BANK_API_KEY]" in line for line in told)
    assert not any(KEY in line for line in told)
    assert "[BANK_API_KEY]" in (worker.compactions.last_error or "")


def test_a_log_line_holds_no_secret_in_its_words_its_fields_or_its_traceback() -> None:
    secrets = Secrets({"DB_PASSWORD": "correct horse battery"})
    secrets.add_url("database password", "postgresql://ada:p%40ssword-long@host/db")
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(message)s %(where)s"))
    handler.addFilter(SecretsFilter(secrets))
    logger = logging.getLogger("tests.secrets")
    logger.propagate = False
    logger.addHandler(handler)
    try:
        raise ValueError("correct horse battery")
    except ValueError:
        logger.exception("connect %s with %s", "postgresql://ada:p%40ssword-long@host/db", "p@ssword-long",
                         extra={"where": "Bearer abcdefghijkl and sk-abcdefghijklmnopqrstuvwx"})  # fmt: skip
    logger.removeHandler(handler)
    told = out.getvalue()
    for secret in ("correct horse", "p%40ss", "p@ss", "abcdefghijkl"):
        assert secret not in told, told
    assert "[DB_PASSWORD]" in told
    assert "Traceback" in told


def test_a_line_of_any_length_is_bounded() -> None:
    assert len(Secrets().taken_out_of_log("x" * 10_000_000)) < LOG_CHARS_MAX + 100


def test_short_values_are_no_secrets() -> None:
    assert Secrets({"A_TOKEN": "yes"}).taken_out("yes, said yes") == "yes, said yes"


def test_no_pattern_repeats_inside_a_repetition() -> None:
    """What makes a regular expression slow is a repetition of something that repeats: there is none to be found."""
    source = Path(redaction.__file__).read_text(encoding="utf-8")
    patterns = re.findall(r'r"([^"]*)"', source)
    assert patterns
    for pattern in patterns:
        assert not re.search(r"\)[*+{]", pattern), pattern
        assert not re.search(r"[*+}][*+{]", pattern), pattern
