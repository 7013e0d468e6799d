"""The programs and commands of docs/how-to/auth.md, run as they stand there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from holdfast import load_config
from holdfast.jwt_issuer import JwtIssuer
from tests.support.issuer import Issuer
from tests.support.servers import created, ended

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "auth.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def holdfast(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_the_page_make_list_and_rotate_tokens(tmp_path: Path) -> None:
    (block,) = re.findall(r"```console\n(.*?)```", PAGE, re.S)
    told = [holdfast(tmp_path, *shlex.split(line.removeprefix("$ holdfast "))) for line in block.strip().split("\n")]
    assert re.fullmatch(r"hf_tok_\S+\n", told[0])
    assert '"scopes":["operate","read"]' in told[1]
    assert "ann's laptop" in told[2]
    assert told[0].strip() not in told[2]
    assert "dashboard" not in told[2]
    token_id = told[2].partition("\t")[0]
    assert holdfast(tmp_path, "tokens", "revoke", token_id) == f"{token_id} is revoked\n"
    assert "revoked" in holdfast(tmp_path, "tokens", "list")


def test_a_program_makes_a_token_for_a_page(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[0]], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "True\n", done.stderr


async def test_a_mounting_program_says_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    exec(PROGRAMS[2], names)  # noqa: S102  our own page
    program = names["program"]

    def client(session: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=program)
        return httpx.AsyncClient(
            transport=transport, base_url="http://localhost/agents", headers={"X-Session": session}, timeout=30.0
        )

    async with (
        program.router.lifespan_context(program),
        client("s-ann") as ann,
        client("s-bob") as bob,
        client("s-eve") as eve,
    ):
        chat_id = await created(ann, "echo", "hello")
        assert (await ended(ann, chat_id))["owner"] == "ann"
        assert (await bob.get(f"/api/chats/{chat_id}")).status_code == 404
        assert (await bob.get("/api/chats")).json()["chats"] == []
        assert (await eve.get("/api/chats")).status_code == 401
        assert (await ann.get("/metrics")).status_code == 403


async def test_bearers_of_the_issuers_tokens_come_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    async with Issuer().listening() as issuer:
        exec(PROGRAMS[1].replace("https://login.example.com/", issuer.url), names)  # noqa: S102  our own page
        async with (
            names["app"],
            httpx.AsyncClient(transport=httpx.ASGITransport(app=names["api"]), base_url="http://localhost") as client,
        ):
            client.headers["Authorization"] = f"Bearer {issuer.token(scope='openid holdfast:read')}"
            assert (await client.get("/api/chats")).json()["chats"] == []
            assert (await client.post("/api/chats", json={"agent": "echo"})).status_code == 403


def test_the_table_of_the_page_has_every_key_of_an_issuer_and_its_file_is_read(tmp_path: Path) -> None:
    section = PAGE.partition("## JWTs of an issuer")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(JwtIssuer.__struct_fields__)
    (block,) = re.findall(r"```toml\n(.*?)```", section, re.S)
    (variable,) = re.findall(r'HOLDFAST_JWT="(.*?)"', section)
    (tmp_path / "holdfast.toml").write_text(block)
    expected = JwtIssuer(issuer="https://login.example.com/", audience="holdfast", scope_prefix="holdfast:")
    assert load_config(tmp_path / "holdfast.toml", {}).jwt == expected
    from_environment = load_config(environ={"HOLDFAST_JWT": variable}).jwt
    assert from_environment == JwtIssuer(issuer=expected.issuer, audience=expected.audience)
