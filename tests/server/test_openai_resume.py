"""A background response outlives its readers and its server; who resumes sees every event once, in order."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
    assert len({reader.events[-1].sequence_number for reader in (dropped, steady, late)}) == 1
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


def test_a_drained_server_does_not_keep_those_who_wait_for_an_answer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    hello: Any = [{"role": "user", "content": "hello"}]
    with live_server(url, tmp_path) as server, server.client() as client, ThreadPoolExecutor(2) as pool:
        completion = pool.submit(client.chat.completions.create, model="stuck", messages=hello)
        response = pool.submit(client.responses.create, model="stuck", input="hello")
        asyncio.run(until(lambda: len(chats(client)) == 2, 30))
        server.program.process.terminate()
        with pytest.raises(openai.InternalServerError, match="the turn goes on in chat") as caught:
            completion.result(30)
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert response.result(30).status == "in_progress"
        server.program.finish()


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
