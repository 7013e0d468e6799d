"""A real receiver of traces takes what we send: Phoenix, from its registry."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.install import NotInstalled
from tests.support.carrying import carried
from tests.support.phoenix import phoenix
from tests.support.waiting import until

Figures = Callable[[str, float, str], None]


@pytest.mark.timeout(1200)
async def test_phoenix_shows_a_turn_that_three_workers_carried_as_one_trace(
    store_url: str, tmp_path: Path, figures: Figures
) -> None:
    try:
        async with phoenix(tmp_path) as found:

            async def before_kill(life: int) -> None:
                await until(lambda: any(span["attributes"]["holdfast.fence"] == life for span in found.spans()))

            after = await carried(store_url, found.environ, before_kill)
            await until(lambda: any(span["parent_id"] is None for span in found.spans()))
            spans = found.spans()
    except NotInstalled as error:
        pytest.skip(f"Phoenix: {error}")
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    (root,) = [span for span in spans if span["parent_id"] is None]
    assert (root["name"], root["span_kind"]) == ("invoke_agent travel", "AGENT")
    ids = [span["context"]["span_id"] for span in spans]
    assert [span["name"] for span in spans if span["parent_id"] not in (None, *ids)] == []
    fences = [span["attributes"]["holdfast.fence"] for span in spans if span["name"] == "claim"]
    assert fences == [1, 2, 3]
    kinds = {span["name"]: span["span_kind"] for span in spans}
    assert (kinds["chat travel-model"], kinds["execute_tool book"]) == ("LLM", "TOOL")
    sessions = {span["attributes"]["session.id"] for span in spans}
    assert sessions == {after.chat.id}, "the chat is what Phoenix calls a session"
    figures("spans of a turn that three workers carried, in Phoenix", len(spans), "")
