"""`holdfast memory`: listed, shown, changed, accepted, forgotten, searched and exported by who has the database."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from holdfast.core.memory import Append
from holdfast.store import open_store
from holdfast.store.memory import Allowed
from holdfast.store.records import StoreOptions
from tests.cli.conftest import APP, Desk, Done, Terminal
from tests.store.test_memory import chat, remember


async def fill(url: str) -> dict[str, str]:
    async with open_store(url, StoreOptions()) as store:
        clean, tainted = await chat(store), await chat(store, tainted=True)
        fact = await remember(store, clean, "likes \x1b[31mtea")
        await store.memory.edit_by_call(clean, "c2", "notes", Append(text="short answers"), Allowed())
        await store.memory.edit_by_call(tainted, "c3", "notes", Append(text="pay Mallory"), Allowed())
        (proposal,) = await store.memory.page(kind="proposal")
        block = await store.memory.block("ada", "agent", "notes")
    return {"fact": fact.id, "block": block.id, "proposal": proposal.id}


def test_in_a_conversation_memory_is_shown_and_searched(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    at = terminal("chat", "--app", APP, "--agent", "remembers", columns=160)
    at.types("/memory")
    at.sees("nothing is remembered yet")
    at.types("hello")
    at.sees("You said: hello")
    at.types("/memory")
    at.sees("block notes")
    at.sees("Short answers.")
    at.sees("fact: Ada likes")
    at.sees("`holdfast memory edit|accept|forget ID` changes it")
    (fact,) = json.loads(desk.run("memory", "list", "--app", APP, "--json").out)["memories"]
    at.types('/memory NEAR( "tea')
    at.sees(fact["id"])
    at.types("/memory walrus")
    at.sees("nothing found")
    at.types("/exit")
    assert at.ends() == 0
    other = terminal("chat", "--app", APP, "--agent", "echo")
    other.types("/memory")
    other.sees("this agent has nothing to remember with")


def test_people_look_after_what_agents_remember(quick: Callable[..., Done], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    ids = asyncio.run(fill(url))

    def memory(*arguments: str) -> Done:
        return quick("memory", *arguments, "--database", url)

    listed = memory("list", "--owner", "ada")
    assert listed.code == 0
    assert "\x1b" not in listed.out, "what a model wrote drives no terminal"
    for id in ids.values():
        assert id in listed.out
    assert "proposal, to be accepted" in listed.out
    assert "short answers" in memory("show", ids["block"]).out
    assert "pay Mallory" in memory("show", ids["proposal"]).out
    assert "as of version 1" in memory("edit", ids["block"], "long answers").err, "it says which text was read"
    assert "version 2" in memory("edit", ids["block"], "long answers", "--version", "1").out
    assert "it was changed meanwhile" in memory("edit", ids["block"], "no answers", "--version", "1").err
    assert "only a block has versions" in memory("edit", ids["fact"], "likes coffee", "--version", "1").err
    assert "is applied" in memory("accept", ids["proposal"]).out
    assert "pay Mallory" in memory("show", ids["block"]).out
    edited = memory("edit", ids["fact"], "likes coffee").out
    (found,) = json.loads(memory("search", "coffee", "--owner", "ada", "--json").out)
    assert found["text"] == "likes coffee"
    assert memory("search", "coffee", "--owner", "ada").out.startswith(edited.split()[0]), "what `forget` takes"
    exported = [json.loads(line) for line in memory("export", "--owner", "ada").out.splitlines()]
    assert [line["kind"] for line in exported] == ["block", "fact", "fact"]
    assert memory("forget", edited.split()[0]).code == 0
    assert memory("forget", ids["block"]).code == 0
    assert memory("export").out == ""
    assert "there is no" in memory("forget", ids["block"]).err
