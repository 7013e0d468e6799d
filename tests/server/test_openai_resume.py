"""A background response outlives its readers and its server; who resumes sees every event once, in order."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai import OpenAI

from tests.server.openai_client import chats, live_server
from tests.server.openai_program import STORY
from tests.support.waiting import until


class Reader:
    """A client that remembers what it was told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    @property
    def place(self) -> int:
        return int(self.events[-1].sequence_number)

    @property
    def response_id(self) -> str:
        return str(self.events[0].response.id)

    def read(self, stream: Any, deltas: int | None = None) -> None:
        """So many pieces of text, or all there is; then it leaves."""
        heard = 0
        for event in stream:
            self.events.append(event)
            heard += event.type == "response.output_text.delta"
            if heard == deltas:
                break
        stream.close()

    def resume(self, client: OpenAI, deltas: int | None = None) -> None:
        stream = client.responses.retrieve(self.response_id, stream=True, starting_after=self.place)
        self.read(stream, deltas)

    def check(self) -> None:
        numbers = [event.sequence_number for event in self.events]
        assert numbers == sorted(set(numbers))
        assert self.events[-1].type == "response.completed"
        assert self.events[-1].response.output_text == STORY
        texts: dict[str, str] = {}
        for event in self.events:
            if event.type == "response.output_text.delta":
                texts[event.item_id] = texts.get(event.item_id, "") + event.delta
        *lost, last = texts.values()
        assert last == STORY
        assert all(STORY.startswith(text) for text in lost)
        done = [event.item for event in self.events if event.type == "response.output_item.done"]
        assert [item.status for item in done] == ["incomplete"] * len(lost) + ["completed"]
        assert [item.id for item in done] == list(texts)


@pytest.mark.timeout(180)
def test_a_response_is_resumed_after_its_server_was_killed(tmp_path: Path) -> None:
    url, gate = f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "gate"
    dropped, steady = Reader(), Reader()
    with live_server(url, tmp_path) as server, server.client() as client:
        stream = client.responses.create(model="cliffhanger", input=str(gate), background=True, stream=True)
        dropped.read(stream, deltas=3)
        with client.responses.retrieve(dropped.response_id, stream=True) as other:
            told = iter(other)
            while len([event for event in steady.events if event.type == "response.output_text.delta"]) < 5:
                steady.events.append(next(told))
            server.kill()
            with pytest.raises(openai.APIConnectionError):
                steady.events.extend(told)
    with live_server(url, tmp_path) as server, server.client() as client:
        dropped.resume(client, deltas=4)
        gate.touch()
        steady.resume(client)
        dropped.resume(client)
        late = Reader()
        late.read(client.responses.retrieve(dropped.response_id, stream=True))
        final = client.responses.retrieve(dropped.response_id)
    for reader in (dropped, steady, late):
        reader.check()
        assert reader.events[-1].response == final
    assert len(steady.events) > len(late.events)  # it was told what was lost, and that it was


def test_a_response_begun_on_one_server_is_resumed_on_another(postgres_url: str, tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("one", "two")]
    reader, whole = Reader(), Reader()
    with (
        live_server(postgres_url, homes[0]) as one,
        live_server(postgres_url, homes[1]) as two,
        one.client() as first,
        two.client() as second,
    ):
        reader.read(first.responses.create(model="story", input="tell", background=True, stream=True), deltas=3)
        for client in (second, first, second):
            reader.resume(client, deltas=3)
        reader.resume(first)
        whole.read(second.responses.retrieve(reader.response_id, stream=True))
    for told in (reader, whole):
        told.check()
    assert reader.events[-1] == whole.events[-1]
    assert {event.sequence_number for event in whole.events if "delta" not in event.type} == {
        event.sequence_number for event in reader.events if "delta" not in event.type
    }


def test_a_drained_server_has_no_empty_answer_for_those_who_wait(tmp_path: Path) -> None:
    """Without a key a client that tried again would begin another turn: it is told where the answer will be."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    hello: Any = [{"role": "user", "content": "hello"}]
    with live_server(url, tmp_path) as server, ThreadPoolExecutor(2) as pool, server.client() as once:
        client = once.with_options(max_retries=2)
        completion = pool.submit(client.chat.completions.create, model="stuck", messages=hello)
        response = pool.submit(client.responses.create, model="stuck", input="hello")
        asyncio.run(until(lambda: len(chats(once)) == 2, 30))
        server.program.process.terminate()
        for waited, words in ((completion, "the turn goes on in chat"), (response, "retrieve the response resp_1_")):
            with pytest.raises(openai.APIStatusError, match=words) as caught:
                waited.result(30)
            assert (caught.value.status_code, caught.value.code) == (425, "not_yet")
        server.program.finish()


class Following(httpx.BaseTransport):
    """As a load balancer does: to whichever server is there."""

    def __init__(self) -> None:
        self.url = httpx.URL()
        self.keys: list[str] = []
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.keys.append(request.headers["idempotency-key"])
        request.url = request.url.copy_with(port=self.url.port)
        request.headers["host"] = f"{self.url.host}:{self.url.port}"
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()


def test_a_client_with_keys_waits_through_a_deploy_and_nothing_runs_twice(tmp_path: Path) -> None:
    """The SDK makes a key for each request, and keeps it when it tries again, once it knows the header's name."""
    url, gate = f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "gate"
    hello: Any = [{"role": "user", "content": str(gate)}]
    way = Following()
    with ThreadPoolExecutor(2) as pool, httpx.Client(transport=way) as http:
        with live_server(url, tmp_path) as server, server.client() as other:
            way.url = httpx.URL(server.url)
            client = server.client(http_client=http, max_retries=10)
            client._idempotency_header = "Idempotency-Key"
            completion = pool.submit(client.chat.completions.create, model="cliffhanger", messages=hello)
            response = pool.submit(client.responses.create, model="cliffhanger", input=str(gate))
            asyncio.run(until(lambda: len(chats(other)) == 2, 30))
            server.program.process.terminate()
            server.program.finish()
        with live_server(url, tmp_path) as server, server.client() as other:
            way.url = httpx.URL(server.url)
            gate.touch()
            assert completion.result(60).choices[0].message.content == STORY
            assert response.result(60).output_text == STORY
            assert len(chats(other)) == 2
    assert (len(set(way.keys)), len(way.keys) >= 4) == (2, True)


def test_a_drained_server_tells_its_readers_to_come_back(tmp_path: Path) -> None:
    url, gate = f"sqlite:///{tmp_path}/holdfast.db", tmp_path / "gate"
    reader = Reader()
    with live_server(url, tmp_path) as server, server.client() as client:
        stream = client.responses.create(model="cliffhanger", input=str(gate), background=True, stream=True)
        events = iter(stream)
        reader.events += [next(events) for _ in range(6)]
        server.program.process.terminate()
        with pytest.raises(openai.APIError, match="goes on") as caught:
            reader.events.extend(events)
        assert caught.value.code == "reconnect"
        server.program.finish()
    gate.touch()
    with live_server(url, tmp_path) as server, server.client() as client:
        reader.resume(client)
    reader.check()
