"""Pages of other origins: those that are allowed can use the API in a real browser, all others nothing of it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
from playwright.async_api import Page
from starlette.datastructures import Headers

from holdfast import App
from holdfast.errors import ConfigError
from holdfast.server.http import http_app
from holdfast.server.origins import Origins, canonical
from tests.server.test_browser import neighbour
from tests.support.browser import NONE, browser, find
from tests.support.servers import ServerProcess, created, server

APP = "https://app.example"


@contextmanager
def serving(folder: Path, *origins: str) -> Iterator[ServerProcess]:
    settings = {"HOLDFAST_ALLOWED_ORIGINS": ", ".join(origins)}
    with server(f"sqlite:///{folder}/holdfast.db", folder / "home", settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("origins"), APP, "http://localhost:5173") as running:
        yield running


@pytest.fixture
async def client(live: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with live.client() as client:
        yield client


def cors(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


async def test_an_allowed_origin_gets_its_answers_and_its_errors(client: httpx.AsyncClient) -> None:
    site = {"Origin": APP, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
    for path, status, auth in (
        ("/api/agents", 200, {}),
        ("/health", 200, {}),
        ("/client/holdfast.js", 200, {}),
        ("/api/chats/none", 404, {}),
        ("/v1/responses/none", 404, {}),
        ("/api/agents", 401, {"Authorization": "Bearer wrong"}),
    ):
        answer = await client.get(path, headers={**site, **auth})
        assert answer.status_code == status
        told = cors(answer)
        assert told["access-control-allow-origin"] == APP
        assert told["access-control-allow-credentials"] == "true"
        assert "X-Holdfast-Chat" in told["access-control-expose-headers"]
        assert "Origin" in answer.headers["vary"]
    made = await client.post("/api/chats", json={"agent": "echo"}, headers=site)
    assert (made.status_code, cors(made)["access-control-allow-origin"]) == (201, APP)


async def test_a_preflight_of_an_allowed_origin_is_answered_without_a_token(live: ServerProcess) -> None:
    asked = {
        "Origin": APP,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,idempotency-key",
    }
    async with httpx.AsyncClient(base_url=live.url, trust_env=False) as browser:
        answer = await browser.options("/api/chats", headers=asked)
        assert (answer.status_code, answer.content) == (204, b"")
        told = cors(answer)
        assert told["access-control-allow-origin"] == APP
        assert "POST" in told["access-control-allow-methods"]
        assert told["access-control-allow-headers"] == "authorization,content-type,idempotency-key"
        assert {"Origin", "Access-Control-Request-Headers"} <= set(answer.headers["vary"].split(", "))
        plain = await browser.options("/api/chats", headers={"Origin": APP})
        assert plain.status_code == 401, "it is no preflight"
        elsewhere = await browser.options("/api/chats", headers={**asked, "Host": "evil.example"})
        assert elsewhere.status_code == 421


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://app.example",
        "https://app.example.evil.example",
        "https://evil-app.example",
        "https://app.example:8443",
        "https://app.example@evil.example",
        "https://app.example/",
        "https://app.example, https://evil.example",
        "https://sub.app.example",
        "http://localhost:51730",
        "http://localhost",
        "",
        "https://app.examplé",
    ],
)
async def test_an_origin_that_only_looks_like_an_allowed_one_is_refused(
    origin: str, client: httpx.AsyncClient
) -> None:
    answer = await client.get("/api/agents", headers=[(b"Origin", origin.encode())])
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden_origin")
    assert cors(answer) == {}
    assert answer.headers["vary"] == "Origin"


async def test_an_allowed_origin_beside_another_is_no_origin(client: httpx.AsyncClient) -> None:
    answer = await client.get("/api/agents", headers=[("Origin", APP), ("Origin", "https://evil.example")])
    assert (answer.status_code, cors(answer)) == (403, {})


async def test_a_request_without_an_origin_gets_no_header_for_one(client: httpx.AsyncClient) -> None:
    answer = await client.get("/api/agents")
    assert (answer.status_code, cors(answer), answer.headers["vary"]) == (200, {}, "Origin")
    tag = await client.get("/api/agents", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})
    assert tag.status_code == 403, "of no page that says who it is"


def test_origins_are_compared_as_browsers_write_them() -> None:
    assert canonical("HTTPS://App.Example:443") == "https://app.example"
    assert canonical("http://[::1]:7433") == "http://[::1]:7433"
    assert canonical("capacitor://localhost") == "capacitor://localhost"
    assert Origins(["https://APP.example:443"]).allows(Headers({"origin": "https://app.example"}))


@pytest.mark.parametrize("wrong", ["*", "null", "app.example", "https://app.example/path", "https://*.example", ""])
def test_a_setting_that_is_no_origin_is_refused_with_words_that_help(wrong: str, tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/x.db", home=str(tmp_path), allowed_origins=[wrong])
    with pytest.raises(ConfigError, match=r"allowed_origins: .* like https://app\.example"):
        http_app(app)


FETCHED = """async ([url, token]) => {
    const headers = {Authorization: `Bearer ${token}`, "Content-Type": "application/json", "Idempotency-Key": "k1"};
    const body = JSON.stringify({agent: "echo", message: "hello"});
    const made = await fetch(url + "/api/chats", {method: "POST", headers, body});
    const wrong = await fetch(url + "/api/chats/none", {headers});
    return [made.status, made.headers.get("Location"), wrong.status, (await wrong.json()).code];
}"""
FOLLOWED = """([url, chat]) => new Promise(done => {
    const source = new EventSource(`${url}/api/chats/${chat}/events`, {withCredentials: true});
    source.addEventListener("end", () => { source.close(); done("end") });
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) done("kept out") };
})"""
IMPORTED = """async ([url, token]) => {
    const {Holdfast} = await import(url + "/client/holdfast.js");
    const chat = await new Holdfast({url, token}).create("echo", "hello");
    return (await chat.turn()).text;
}"""
KEPT_OUT = (
    "([url, token]) => fetch(url + '/api/agents', {headers: {Authorization: token}}).then(() => 'in', () => 'out')"
)


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    if (program := find()) is None:
        pytest.skip(NONE)
    async with browser(program) as made:
        yield await made.new_page()


async def test_a_page_of_an_allowed_origin_fetches_follows_and_uses_the_client(page: Page, tmp_path: Path) -> None:
    with neighbour() as site, serving(tmp_path, site) as live:
        await live.log_in(page)
        async with live.client() as client:
            chat_id = await created(client, "echo", "hello")
        await page.goto(site)
        status, location, wrong, code = await page.evaluate(FETCHED, [live.url, live.token])
        assert (status, location.startswith("/api/chats/"), wrong, code) == (201, True, 404, "not_found")
        assert await page.evaluate(FOLLOWED, [live.url, chat_id]) == "end", "by the cookie"
        assert "hello" in await page.evaluate(IMPORTED, [live.url, live.token])


async def test_a_page_of_any_other_origin_can_neither_fetch_nor_follow(page: Page, live: ServerProcess) -> None:
    await live.log_in(page)
    async with live.client() as client:
        chat_id = await created(client, "echo", "hello")
    with neighbour() as site:
        await page.goto(site)
        assert await page.evaluate(KEPT_OUT, [live.url, f"Bearer {live.token}"]) == "out"
        assert await page.evaluate(FOLLOWED, [live.url, chat_id]) == "kept out"
