"""The examples of docs/how-to/openai-sdk.md, run as they stand, against a live server."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.server.openai_client import live_server
from tests.server.openai_program import STORY
from tests.support.programs import ROOT

PAGE = ROOT / "docs" / "how-to" / "openai-sdk.md"


def test_every_example_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) == 6
    names: dict[str, Any] = {}
    said = []
    with live_server(f"sqlite:///{tmp_path}/holdfast.db", tmp_path) as server:
        for block, agent in zip(blocks, ("echo", "story", "", "caller", "echo", "judge"), strict=True):
            code = block.replace("http://127.0.0.1:7433", server.url).replace('model="assistant"', f'model="{agent}"')
            code = code.replace('open(".holdfast/token").read().strip()', repr(server.token))
            exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102  our own page
            said.append(capsys.readouterr().out.strip())
        names["client"].close()
    assert said == ["You said: Hello!", "", "", "It rains in both.", "You said: Hello!", "alga"]
    assert names["final"].output_text == STORY
    assert list(names["texts"].values())[-1] == STORY
