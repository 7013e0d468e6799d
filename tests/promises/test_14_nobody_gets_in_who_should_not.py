"""Promise 14, as far as tools go: no secret in their environment, no way out of a root, no request to what is inside.

What a model asks for goes through an agent and a worker, as everywhere. The routes of the server are judged with it;
the table of hostile inputs is `tests/tools/hostile.py`.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Permissions, shell_tool, tool
from holdfast.testing import Call, ScriptedModel
from holdfast.tools.files.tools import file_tools
from holdfast.tools.web.fetch import fetch_tool
from tests.promises.surface import WAIT_S, app_of, tool_texts
from tests.tools.sites import INSIDE, Names, site

SECRET = "sk-a-secret-of-the-worker"
# Their values would be taken out of a result, and their names put there instead: neither may be in one.
NAMES = ("ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "GITHUB_TOKEN")


async def results(url: str, tools: list[Any], *calls: Call, rules: Permissions | None = None) -> list[str]:
    """What the model is told of these calls."""
    app = app_of(url, Agent("a", ScriptedModel(list(calls), "Done."), tools=tools, permissions=rules))
    async with app, app.worker():
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) == "idle"
        return tool_texts(await chat.messages())


@tool(isolation="process")
def surroundings() -> list[str]:
    """What a body in a process of its own can read of its environment."""
    return [f"{name}={value}" for name, value in os.environ.items()]


async def test_no_secret_of_the_worker_is_in_a_tools_environment(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, SECRET)
    shell = shell_tool(root=str(tmp_path), contained=True)
    texts = await results(
        store_url,
        [shell, surroundings],
        Call(name="shell", arguments={"command": "env; cat /proc/self/environ"}),
        Call(name="surroundings", arguments={}),
        rules=Permissions(mode="edit", rules=["allow call(surroundings)", "allow read(/proc/**)"]),
    )
    assert "PATH=" in texts[0]
    assert "PATH=" in texts[1]
    assert not any(name in text for name in (SECRET, *NAMES) for text in texts)


async def test_no_path_and_no_symlink_leads_out_of_the_root(store_url: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    (root / "link").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    (root / "up").symlink_to("..")
    reading = [
        "../outside/secret",
        str(outside / "secret"),
        "link",
        "folder/secret",
        "up/outside/secret",
        "/dev/zero",
    ]
    writing = ["../outside/secret", "link", "folder/secret", "folder/new", "up/outside/new"]
    texts = await results(
        store_url,
        list(file_tools(str(root))),
        *(Call(name="read_file", arguments={"path": path}) for path in reading),
        *(Call(name="write_file", arguments={"path": path, "content": "mine"}) for path in writing),
        Call(name="list_files", arguments={"path": "folder"}),
        Call(name="search_files", arguments={"pattern": "secret", "path": "folder"}),
    )
    assert SECRET not in "".join(texts)
    assert (outside / "secret").read_text() == SECRET
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]


async def test_no_request_goes_to_an_internal_address_however_it_is_spelt(store_url: str) -> None:
    async with site() as served:
        spelt = [
            f"http://127.0.0.1:{served.port}/secret",
            f"http://2130706433:{served.port}/secret",
            f"http://[::ffff:127.0.0.1]:{served.port}/secret",
            f"http://localhost:{served.port}/secret",
            f"http://loop.test:{served.port}/secret",
            f"http://mixed.test:{served.port}/secret",
            "http://169.254.169.254/latest/meta-data/",
            "http://10.0.0.1/",
            "file:///etc/passwd",
        ]
        redirected = [
            f"http://site.test:{served.port}/{path}" for path in ("to-loopback", "to-inside", "to-metadata")
        ]
        fetch = fetch_tool(resolve=Names())
        texts = await results(
            store_url,
            [fetch],
            *(Call(name="fetch", arguments={"urls": [url]}) for url in (*spelt, *redirected)),
            rules=Permissions(rules=[f"allow reach(site.test:{served.port})", "allow reach(*:*)"]),
        )
        assert served.hits["/secret"] == 0
    assert all("Failed: " in text for text in texts)
    assert INSIDE not in "".join(texts)
