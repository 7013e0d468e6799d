"""The native API: every route, used as a client would, against a live server process on SQLite."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.servers import ServerProcess, all_seen, created, ended, reading, server


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("server")
    with server(f"sqlite:///{folder}/holdfast.db", folder / "home") as running:
        yield running


@pytest.fixture
async def client(live: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with live.client() as client:
        yield client


async def waiting_call(client: httpx.AsyncClient, chat_id: str) -> str:
    """The call that the chat waits for, once it does."""
    async with reading(client, chat_id) as events:
        async for event in events:
            if event.event == "turn.waiting":
                call_id: str = event.data["call_ids"][0]
                return call_id
    raise AssertionError("it never waited")


async def texts(client: httpx.AsyncClient, chat_id: str) -> list[str]:
    page = (await client.get(f"/api/chats/{chat_id}/messages")).json()
    return [part.get("text", part.get("content", "")) for message in page["messages"] for part in message["parts"]]


async def test_a_chat_is_created_read_renamed_archived_and_deleted(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/chats", json={"agent": "echo", "message": "hello", "metadata": {"team": "blue"}})
    assert answer.status_code == 201
    chat_id = answer.json()["id"]
    assert answer.headers["location"] == f"/api/chats/{chat_id}"
    chat = await ended(client, chat_id)
    assert (chat["state"], chat["turn"], chat["messages"], chat["metadata"]) == ("idle", 1, 2, {"team": "blue"})
    assert await texts(client, chat_id) == ["hello", "You said: hello"]
    changed = (await client.patch(f"/api/chats/{chat_id}", json={"title": "Greetings", "archived": True})).json()
    assert (changed["title"], changed["archived"]) == ("Greetings", True)
    assert (await client.delete(f"/api/chats/{chat_id}")).json() == {"deleted": [chat_id]}
    gone = await client.get(f"/api/chats/{chat_id}")
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


async def test_chats_are_listed_in_pages_and_found_by_what_they_are(client: httpx.AsyncClient) -> None:
    made = [await created(client, "echo", owner="lister", metadata={"n": n}, title=f"Number {n}") for n in range(5)]
    first = (await client.get("/api/chats", params={"owner": "lister", "limit": 3})).json()
    assert [chat["id"] for chat in first["chats"]] == made[:1:-1]
    rest = (await client.get("/api/chats", params={"owner": "lister", "limit": 3, "before": first["next"]})).json()
    assert ([chat["id"] for chat in rest["chats"]], rest["next"]) == (made[1::-1], None)
    queries: list[dict[str, Any]] = [
        {"search": "number 3"}, {"metadata": "n:3"}, {"metadata": ["n:3"], "state": "idle", "archived": False},
    ]  # fmt: skip
    for query in queries:
        found = (await client.get("/api/chats", params={"owner": "lister", **query})).json()["chats"]
        assert [chat["id"] for chat in found] == [made[3]], query
    bad = await client.get("/api/chats", params={"metadata": "nonsense"})
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid_input")


async def test_a_queue_of_large_messages_comes_in_pages(client: httpx.AsyncClient) -> None:
    """It was answered whole: up to 32 MB for each who asked how the chat stands."""
    chat_id = await created(client, "thinker", "hello")
    letters = "abcde"
    for letter in letters:
        await client.post(f"/api/chats/{chat_id}/messages", json={"message": letter * 600_000})
    shown = await client.get(f"/api/chats/{chat_id}")
    assert (shown.json()["queued"], len(shown.json()["queue"])) == (5, 1)
    found, pages, after = "", 0, None
    while pages == 0 or after is not None:
        pages += 1
        answer = await client.get(f"/api/chats/{chat_id}/queue", params={"after": after} if after else {})
        assert len(answer.content) < 1_300_000
        page = answer.json()
        found += "".join(line["message"]["parts"][0]["text"][0] for line in page["queue"])
        after = page["next"]
    assert (found, pages) == (letters, 5)
    gone = await client.get(f"/api/chats/{chat_id}/queue", params={"after": "msg_that_was_taken"})
    assert gone.json()["queue"] == shown.json()["queue"]
    await client.post(f"/api/chats/{chat_id}/stop", json={"clear_queue": True})


async def test_a_message_is_sent_queued_promoted_withdrawn_and_edited(client: httpx.AsyncClient) -> None:
    chat_id = await created(client, "thinker", "tell me")
    for word in ("one", "two", "three"):
        answer = await client.post(f"/api/chats/{chat_id}/messages", json={"message": word})
        assert answer.json()["state"] == "running"
    queue = (await client.get(f"/api/chats/{chat_id}/queue")).json()["queue"]
    assert [line["message"]["parts"][0]["text"] for line in queue] == ["one", "two", "three"]
    place, key = f"/api/chats/{chat_id}/queue/{queue[0]['id']}", {"Idempotency-Key": f"withdraw {chat_id}"}
    withdrawn = (await client.delete(place, headers=key)).json()
    assert withdrawn["dropped"][0]["id"] == queue[0]["id"]
    assert (await client.delete(place, headers=key)).json() == withdrawn, "asked again, it was taken back"
    await client.post(f"/api/chats/{chat_id}/queue/{queue[2]['id']}/promote")
    stopped = (await client.post(f"/api/chats/{chat_id}/stop", json={"clear_queue": True})).json()
    assert {message["id"] for message in stopped["dropped"]} <= {queue[1]["id"], queue[2]["id"]}
    await client.post(f"/api/chats/{chat_id}/stop", json={"clear_queue": True})
    await ended(client, chat_id)
    page = (await client.get(f"/api/chats/{chat_id}/messages", params={"limit": 1})).json()
    assert page["next"] == 1
    answer = await client.post(
        f"/api/chats/{chat_id}/messages/{page['messages'][0]['id']}/edit", json={"message": "tell me more"}
    )
    assert answer.status_code == 200
    await client.post(f"/api/chats/{chat_id}/stop")
    await ended(client, chat_id)
    assert (await texts(client, chat_id))[0] == "tell me more"


async def test_an_approval_is_given_once_and_a_denial_reaches_the_model(client: httpx.AsyncClient) -> None:
    chat_id = await created(client, "payer", "pay")
    call_id = await waiting_call(client, chat_id)
    assert (await client.get(f"/api/chats/{chat_id}")).json()["calls"][0]["state"] == "asking"
    assert (await client.post(f"/api/chats/{chat_id}/calls/{call_id}/approve")).status_code == 200
    await ended(client, chat_id)
    again = await client.post(f"/api/chats/{chat_id}/calls/{call_id}/approve")
    assert (again.status_code, again.json()["code"]) == (409, "refused")
    assert "paid 7" in await texts(client, chat_id)
    other = await created(client, "payer", "pay")
    call_id = await waiting_call(client, other)
    await client.post(f"/api/chats/{other}/calls/{call_id}/deny", json={"words": "Too much, says Ada."})
    await ended(client, other)
    assert any("Too much, says Ada." in text for text in await texts(client, other))


async def test_a_call_whose_arguments_are_long_is_approved_by_the_digest_of_all_of_them(
    client: httpx.AsyncClient,
) -> None:
    chat_id = await created(client, "spender", "pay")
    call_id = await waiting_call(client, chat_id)
    (listed,) = (await client.get(f"/api/chats/{chat_id}/calls")).json()["calls"]
    assert "PAYLOAD" in listed["arguments"]
    assert listed["whole"] is True
    path = f"/api/chats/{chat_id}/calls/{call_id}"
    assert (await client.get(path)).json() == listed
    assert (await client.get(f"/api/chats/{chat_id}/calls/nope")).status_code == 404
    blind = await client.post(f"{path}/approve")
    assert (blind.status_code, blind.json()["code"], blind.json()["field"]) == (400, "invalid_input", "digest")
    other = await client.post(f"{path}/approve", json={"digest": "0" * 20})
    assert (other.status_code, other.json()["code"]) == (409, "refused")
    assert (await client.post(f"{path}/approve", json={"digest": listed["digest"]})).status_code == 200
    await ended(client, chat_id)
    assert "paid 7" in await texts(client, chat_id)


async def test_a_clients_tool_is_answered_by_its_result_exactly_once(client: httpx.AsyncClient) -> None:
    chat_id = await created(client, "asker", "look")
    call_id = await waiting_call(client, chat_id)
    path = f"/api/chats/{chat_id}/calls/{call_id}/result"
    answers = await asyncio.gather(*(client.post(path, json={"content": f"sky {n}"}) for n in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
    unknown = await client.post(f"/api/chats/{chat_id}/calls/nope/result", json={"content": "x"})
    assert unknown.status_code in (404, 409)
    await ended(client, chat_id)
    assert sum(text.startswith("sky") for text in await texts(client, chat_id)) == 1


async def test_a_client_brings_its_own_tool_for_a_chat_and_for_a_turn(client: httpx.AsyncClient) -> None:
    tool = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
    chat_id = await created(client, "looker", "look", client_tools=[tool])
    call_id = await waiting_call(client, chat_id)
    (call,) = (await client.get(f"/api/chats/{chat_id}/calls")).json()["calls"]
    assert (call["call_id"], call["kind"], call["name"]) == (call_id, "client", "look")
    await client.post(f"/api/chats/{chat_id}/calls/{call_id}/result", json={"content": "a bird"})
    await ended(client, chat_id)
    assert "a bird" in await texts(client, chat_id)
    plain = await created(client, "looker")
    await client.post(f"/api/chats/{plain}/messages", json={"message": "look", "client_tools": [tool]})
    assert await waiting_call(client, plain)
    bad = await client.post("/api/chats", json={"agent": "looker", "client_tools": [{**tool, "name": "no good"}]})
    assert (bad.status_code, "no good" in bad.json()["detail"]) == (400, True)


async def test_a_failed_chat_says_why_and_can_be_tried_again(client: httpx.AsyncClient) -> None:
    chat_id = await created(client, "broken", "hello")
    chat = await ended(client, chat_id)
    assert chat["state"] == "failed"
    assert chat["error"]["code"]
    assert (await client.post(f"/api/chats/{chat_id}/retry")).json()["state"] == "running"
    assert (await ended(client, chat_id))["state"] == "failed"


async def test_a_chat_is_compacted_on_demand_and_keeps_its_messages(client: httpx.AsyncClient) -> None:
    chat_id = await created(client, "echo", "hello")
    await ended(client, chat_id)
    for n in range(6):
        await client.post(f"/api/chats/{chat_id}/messages", json={"message": f"number {n}"})
        await ended(client, chat_id)
    assert (await client.post(f"/api/chats/{chat_id}/compact")).json()["state"] == "running"
    seen = [event.event for event in await all_seen(client, chat_id)]
    assert {"compacted", "compaction.failed"} & set(seen)
    assert len(await texts(client, chat_id)) == 14


async def test_a_fork_has_the_history_and_another_id(client: httpx.AsyncClient) -> None:
    chat_id = await created(client, "echo", "hello")
    await ended(client, chat_id)
    fork = await client.post(f"/api/chats/{chat_id}/fork", json={"upto": 0})
    assert (fork.status_code, fork.json()["forked_from"]) == (201, chat_id)
    assert await texts(client, fork.json()["id"]) == ["hello"]


POSTS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "create": ("/api/chats", {"agent": "echo", "message": "hello"}),
    "send": ("/api/chats/{id}/messages", {"message": [{"kind": "text", "text": "again"}]}),
    "stop": ("/api/chats/{id}/stop", None),
    "fork": ("/api/chats/{id}/fork", None),
}


@pytest.mark.parametrize("name", POSTS)
async def test_the_same_post_under_one_key_does_one_thing(client: httpx.AsyncClient, name: str) -> None:
    chat_id = await created(client, "echo", "hello", owner=f"keys of {name}")
    await ended(client, chat_id)
    path, body = POSTS[name]
    headers = {"Idempotency-Key": f"key of {name}"}
    posts = [client.post(path.format(id=chat_id), json=body, headers=headers) for _ in range(5)]
    answers = await asyncio.gather(*posts)
    assert len({answer.status_code for answer in answers}) == 1
    assert len({answer.json().get("chat_id") or answer.json()["id"] for answer in answers}) == 1
    await ended(client, chat_id)
    assert (await client.get(f"/api/chats/{chat_id}")).json()["turn"] == (2 if name == "send" else 1)
    other = await client.post(path.format(id=chat_id), json={**(body or {}), "owner": "x"}, headers=headers)
    assert other.status_code == 422


async def test_bad_input_is_told_by_name_and_changes_nothing(client: httpx.AsyncClient) -> None:
    chat_id = await created(client, "echo")
    before = (await client.get(f"/api/chats/{chat_id}")).json()
    bodies: list[tuple[dict[str, Any], int, str]] = [
        ({"message": ""}, 400, "says nothing"),
        ({"message": "a\0b"}, 400, "NUL"),
        ({"message": []}, 400, "at least one part"),
        ({"message": "x", "mode": "shout"}, 422, "mode"),
        ({"mesage": "x"}, 422, "mesage"),
        ({"message": "x", "active_tools": ["nothing"]}, 400, "nothing"),
        ({"message": [{"kind": "film"}]}, 422, "kind"),
    ]
    for body, status, words in bodies:
        answer = await client.post(f"/api/chats/{chat_id}/messages", json=body)
        assert (answer.status_code, words in answer.text) == (status, True), (body, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
    raw = await client.post(
        f"/api/chats/{chat_id}/messages", content=b"{", headers={"content-type": "application/json"}
    )
    assert (raw.status_code, raw.json()["code"]) == (400, "invalid_input")
    form = {"content-type": "application/x-www-form-urlencoded"}  # what curl sends unless it is told otherwise
    unsaid = await client.post(f"/api/chats/{chat_id}/messages", content=b'{"message": "x"}', headers=form)
    assert (unsaid.status_code, unsaid.json()["code"]) == (422, "invalid_input")
    assert "send `Content-Type: application/json`" in unsaid.json()["detail"]
    assert (await client.get(f"/api/chats/{chat_id}")).json() == before
    unknown = await client.post("/api/chats", json={"agent": "nobody"})
    assert (unknown.status_code, unknown.json()["code"]) == (400, "unknown_agent")
    assert "echo" in unknown.json()["detail"]


async def test_agents_workers_health_and_metrics_tell_what_is_there_and_there_is_a_page(
    client: httpx.AsyncClient,
) -> None:
    agents = {agent["name"]: agent for agent in (await client.get("/api/agents")).json()["agents"]}
    assert agents["payer"]["tools"] == ["pay"]
    assert (await client.get("/api/agents/payer/slash-commands")).json() == {"slash_commands": []}
    missing = await client.get("/api/agents/nobody/slash-commands")
    assert (missing.status_code, missing.json()["code"]) == (400, "unknown_agent")
    (worker,) = (await client.get("/api/workers")).json()["workers"]
    assert (worker["lease_ttl_ms"], worker["lease_ended"]) == (30_000, None)
    health = await client.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "ok")
    detailed = (await client.get("/api/diagnostics")).json()
    assert detailed["server"]["streams_max"] == 10_000
    assert "holdfast_worker_commits_total" in (await client.get("/metrics")).text
    page = await client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert (await client.get("/page/base.css")).headers["content-type"].startswith("text/css")


async def test_a_reader_of_a_finished_chat_gets_everything_and_a_clean_end(client: httpx.AsyncClient) -> None:
    chat_id = await created(client, "echo", "hello")
    await ended(client, chat_id)
    seen = await all_seen(client, chat_id)
    assert [event.event for event in seen] == [
        "chat.created", "turn.started", "message", "message", "turn.ended", "end",
    ]  # fmt: skip
    assert seen[-1].data == {"state": "idle"}
    assert [event.data["seq"] for event in seen[:-1]] == [1, 2, 3, 4, 5]
    rest = await all_seen(client, chat_id, after=seen[2].id)
    assert rest == seen[3:]
    missing = await client.get("/api/chats/nope/events")
    assert missing.status_code == 404


@pytest.mark.parametrize("how", ["after", "Last-Event-ID"])
async def test_a_cursor_of_another_chat_is_refused_by_a_code_of_its_own(client: httpx.AsyncClient, how: str) -> None:
    one, other = [await created(client, "echo", "hello") for _ in range(2)]
    await ended(client, other)
    cursors = [event.id for event in await all_seen(client, one) if event.id]
    assert cursors
    for cursor in [*cursors, "nonsense", "MS4xLjAuLTE"]:
        options: dict[str, Any] = {"params": {"after": cursor}} if how == "after" else {"headers": {how: cursor}}
        refused = await client.get(f"/api/chats/{other}/events", **options)
        assert (refused.status_code, refused.json()["code"], refused.json()["field"]) == (
            400,
            "wrong_cursor",
            "cursor",
        )
    assert [event.event for event in await all_seen(client, one, cursors[-2])] == ["end"]


async def test_who_uses_a_wrong_method_learns_the_right_ones(client: httpx.AsyncClient) -> None:
    for path, allowed in (
        ("/api/chats", "GET, POST"),
        ("/api/chats/x", "DELETE, GET, PATCH"),
        ("/health", "GET, HEAD"),
        ("/api/openapi.json", "GET, HEAD"),
    ):
        answer = await client.request("OPTIONS", path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    health = await client.head("/health")
    assert (health.status_code, health.content) == (200, b"")


async def test_why_a_chat_stands_where_it_stands_is_told_to_operators(client: httpx.AsyncClient) -> None:
    chat_id = await created(client, "echo", message="hello")
    await ended(client, chat_id)
    found = (await client.get(f"/api/chats/{chat_id}/why")).json()
    assert (found["doing"], found["turn"], found["error"], found["child"]) == ("rests", 1, None, None)
    assert (await client.get("/api/chats/chat_none/why")).status_code == 404
