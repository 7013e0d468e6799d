"""No secret that the process knows reaches the journal, a model or a log; what only looks like one stays data."""

import io
import json
import logging
import re
import sys
from pathlib import Path

import pytest

from holdfast import (
    Agent,
    App,
    Arguments,
    CompactionPolicy,
    Hook,
    McpServer,
    ToolContext,
    diagnostics,
    file_tools,
    redaction,
    tool,
)
from holdfast.errors import ToolFailed
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
        told = [event.raw.decode() async for event in chat.events()]
    asked, *rest = [line for line in told if KEY in line]
    assert "my own words" in asked, "what a person says is theirs"
    assert rest == []
    results = [line for line in told if "[BANK_API_KEY]" in line]
    assert len(results) >= 3, "the result, the error and the progress"
    assert any("not-a-secret-at-all, and sk-looks-like" in line for line in results)
    assert not any(KEY in message.text for message in model.requests[-1].messages if message.role == "tool")


async def test_why_there_is_no_summary_is_told_without_a_secret_in_it(store_url: str) -> None:
    summary = ScriptedModel([Fail(status=400, message=f"no account for {KEY}")], after="repeat")
    app = App(store_url, agents=[Agent("a", ScriptedModel(after="echo"), compaction=CompactionPolicy(model=summary))])
    async with app.worker() as worker:
        chat = await app.create("a", "One.")
        for text in ("Two.", "Three."):
            await chat.send(text)
        await chat.text()
        await chat.compact()
        told = [event.raw.decode() async for event in chat.events()]
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


@pytest.mark.parametrize("value", ["postgres", "password1", "changeme!", "my-database", "Welcome2024", "123456789"])
def test_an_ordinary_word_is_not_taken_out_of_what_a_model_reads(value: str) -> None:
    text = f"host: {value}-host, image: {value}:17"
    assert Secrets({"POSTGRES_PASSWORD": value}).taken_out(text) == text
    assert Secrets({"DATABASE_URL": f"postgresql://{value}:{value}@db/x"}).taken_out(text) == text


def test_the_path_of_a_file_is_not_taken_out_of_what_a_model_reads(tmp_path: Path) -> None:
    file = tmp_path / "server.pem"
    file.write_text("x")
    assert Secrets({"SSL_KEY_FILE": str(file)}).taken_out(f"open {file}") == f"open {file}"


@pytest.mark.parametrize("value", ["hunter2hunter2", "tr0ub4dor", "abcdefghijklmnop", "aB3$aB3$", "12ab34cd"])
def test_what_looks_like_nothing_in_particular_is_a_secret(value: str) -> None:
    assert Secrets({"A_PASSWORD": value}).taken_out(f"x {value} y") == "x [A_PASSWORD] y"


def test_an_edit_never_puts_a_mark_in_the_place_of_what_it_stands_for(tmp_path: Path) -> None:
    secrets = Secrets({"BANK_API_KEY": KEY})
    file = tmp_path / "settings.env"
    file.write_text(f"key = {KEY}\nport = 1\n")
    tools = {made.name: made for made in file_tools(tmp_path)}

    def call(name: str, **arguments: object) -> str:
        return str(tools[name](**tools[name].validate(json.dumps({"path": "settings.env", **arguments}))))

    assert "     1\tkey = [BANK_API_KEY]\n     2\tport = 1\n" in secrets.taken_out(call("read_file"))
    read = "key = [BANK_API_KEY]\nport = 1\n"
    with pytest.raises(ToolFailed, match=r"\[BANK_API_KEY\] stands for a secret"):
        call("write_file", content=read.replace("1", "2"))
    with pytest.raises(ToolFailed, match=r"\[BANK_API_KEY\] stands for a secret"):
        call("edit_file", old=f"key = {KEY}\nport = 1", new="key = [BANK_API_KEY]\nport = 2")
    with pytest.raises(ToolFailed, match=r"\[BANK_API_KEY\] stands for a secret"):
        call("write_file", path="copy.env", content=read)
    call("edit_file", old="port = 1", new="port = 2")
    assert file.read_text() == f"key = {KEY}\nport = 2\n"
    assert not (tmp_path / "copy.env").exists()


def test_a_file_that_has_such_words_of_its_own_is_edited_like_any_other(tmp_path: Path) -> None:
    kept = Secrets({"BANK_API_KEY": KEY})
    (tmp_path / "guide.md").write_text("set [BANK_API_KEY] first\n")
    tools = {made.name: made for made in file_tools(tmp_path)}
    edit = tools["edit_file"]
    arguments = {"path": "guide.md", "old": "first", "new": "at first"}
    assert "Edited" in str(edit(**edit.validate(json.dumps(arguments))))
    assert kept.marks == {"[BANK_API_KEY]"}


def test_no_pattern_repeats_inside_a_repetition() -> None:
    """What makes a regular expression slow is a repetition of something that repeats: there is none to be found."""
    source = Path(redaction.__file__).read_text(encoding="utf-8")
    patterns = re.findall(r'r"([^"]*)"', source)
    assert patterns
    for pattern in patterns:
        assert not re.search(r"\)[*+{]", pattern), pattern
        assert not re.search(r"[*+}][*+{]", pattern), pattern


def test_a_secret_that_begins_like_another_leaves_nothing_of_the_other() -> None:
    secrets = Secrets({"A_TOKEN": "hunter2-hunter2", "B_TOKEN": "hunter2-hunter2-and-more"})
    assert secrets.taken_out("x hunter2-hunter2-and-more y") == "x [B_TOKEN] y"


def test_the_password_in_any_url_of_the_environment_is_a_secret_and_a_key_of_lines_is_one_in_json_too() -> None:
    key = "-----BEGIN\nabcdefgh\n-----END"
    odd = {"ODD": "http://[@/", "PLAIN": "http://host/at@home"}
    secrets = Secrets(
        {"DATABASE_URL": "mysql://ada:s3cret-s3cret@db/x", "SIGNING_KEY": key, "GH_PAT": "a1b2c3d4e", **odd}
    )
    assert secrets.taken_out("no route: ada s3cret-s3cret") == "no route: ada [password in DATABASE_URL]"
    assert secrets.taken_out(json.dumps({"key": key})) == '{"key": "[SIGNING_KEY]"}'
    assert secrets.taken_out("a1b2c3d4e http://host/at@home") == "[GH_PAT] http://host/at@home"


def test_a_log_line_holds_no_secret_in_a_field_that_is_no_text() -> None:
    record = logging.LogRecord("kelp", logging.WARNING, "kelp.py", 1, "it %s", ("broke",), None)
    vars(record).update(why=ValueError(KEY), count=7, names=[KEY])
    SecretsFilter(Secrets({"A_KEY": KEY})).filter(record)
    assert (vars(record)["why"], vars(record)["count"], vars(record)["names"]) == ("[A_KEY]", 7, "['[A_KEY]']")


async def test_what_a_hook_puts_into_a_call_is_told_to_readers_without_a_secret_in_it(store_url: str) -> None:
    @tool
    async def pay(amount: int, key: str = "") -> str:
        """Pay."""
        used.append(key)
        return "paid"

    used: list[str] = []
    model = ScriptedModel([Call(name="pay", arguments={"amount": 7})], "Done.")
    hook = Hook("before_tool", lambda _, call: Arguments(text=json.dumps({"amount": 7, "key": KEY})))
    app = App(store_url, agents=[Agent("a", model, tools=[pay], hooks=[hook])])
    async with app.worker():
        chat = await app.create("a", "go")
        assert await chat.text() == "Done."
        told = [event.raw.decode() async for event in chat.events()]
    assert used == [KEY]
    assert not any(KEY in line for line in told)
    assert any("[BANK_API_KEY]" in line for line in told)


async def test_who_approves_a_call_is_shown_what_a_hook_made_of_it_without_a_secret_in_it(store_url: str) -> None:
    @tool(needs_approval=True)
    async def pay(amount: int, key: str = "") -> str:
        """Pay."""
        used.append((amount, key))
        return "paid"

    used: list[tuple[int, str]] = []
    model = ScriptedModel([Call(name="pay", arguments={"amount": 5})], "Done.")
    hook = Hook("before_tool", lambda *_: Arguments(text=json.dumps({"amount": 7, "key": KEY})))
    app = App(store_url, agents=[Agent("a", model, tools=[pay], hooks=[hook])])
    async with app.worker():
        chat = await app.create("a", "go")
        assert await chat.wait(30.0) == "waiting"
        (asked,) = await chat.open_calls()
        await asked.approve()
        assert await chat.text() == "Done."
        told = [event.raw.decode() async for event in chat.events()]
    assert json.loads(asked.arguments) == {"amount": 7, "key": "[BANK_API_KEY]"}
    (asking,) = [json.loads(line) for line in told if '"asking"' in line]
    assert json.loads(asking["arguments"]) == {"amount": 7, "key": "[BANK_API_KEY]"}
    assert not any(KEY in line for line in told)
    assert used == [(7, KEY)]


async def test_diagnostics_show_neither_what_a_tool_server_said_of_its_key_nor_what_a_runner_died_of(
    tmp_path: Path,
) -> None:
    code = f"import sys; sys.exit('bad key {KEY}')"
    server = McpServer("t", command=sys.executable, args=["-I", "-S", "-c", code])
    app = App(f"sqlite:///{tmp_path}/holdfast.db", agents=[Agent("a", ScriptedModel("Hi."), tools=[server])])
    async with app.worker() as worker:
        assert await (await app.create("a", "go")).text() == "Hi."
        worker.errors.append(RuntimeError(KEY))
        told = json.dumps(diagnostics(detailed=True))
    assert "bad key [BANK_API_KEY]" in told
    assert KEY not in told
