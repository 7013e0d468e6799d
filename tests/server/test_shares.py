"""How much of a server one client may have: requests per minute, counted where every route passes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from holdfast import App, Principal
from holdfast.errors import TooManyRequests
from holdfast.principals import SCOPES
from holdfast.server.http import http_app
from holdfast.server.shares import COUNTED_MAX, RequestShares
from holdfast.store.tokens import NewToken
from tests.server.program import agents
from tests.server.walk import Ids, every_route, requests_of

ADMIN = "admin-token-of-this-test"
ANN, BOB = Principal(name="laptop", owner="ann"), Principal(name="laptop", owner="bob")


class Shares(RequestShares):
    """With a clock that the test turns."""

    def __init__(self, per_minute_max: int | None) -> None:
        self.now_s = 1_000.0
        super().__init__(per_minute_max, lambda: self.now_s)

    def taken(self, principal: Principal) -> int:
        """How many requests there is room for now."""
        count = 0
        try:
            while True:
                self.take(principal)
                count += 1
        except TooManyRequests:
            return count

    @property
    def counted(self) -> int:
        return int(self.figures()["clients_counted"])


@pytest.mark.parametrize("per_minute", [1, 7, 600])
def test_a_minute_of_requests_may_come_at_once_and_then_they_come_evenly(per_minute: int) -> None:
    shares = Shares(per_minute)
    assert shares.taken(ANN) == per_minute
    with pytest.raises(TooManyRequests) as refused:
        shares.take(ANN)
    assert refused.value.retry_after_s == max(1, -(-60 // per_minute))
    shares.now_s += refused.value.retry_after_s
    assert shares.taken(ANN) == max(1, refused.value.retry_after_s * per_minute // 60)
    shares.now_s += 3_600
    assert shares.taken(ANN) == per_minute


def test_all_tokens_of_an_owner_have_its_share_together_and_others_have_theirs() -> None:
    shares = Shares(4)
    assert shares.taken(ANN) == 4
    assert shares.taken(Principal(name="phone", owner="ann", scopes=SCOPES)) == 0
    assert shares.taken(BOB) == 4
    assert shares.taken(Principal(name="laptop", owner=None)) == 4
    assert shares.taken(Principal(name="laptop", owner=None, expires_at=1)) == 0
    assert shares.taken(Principal(name="ann", owner=None)) == 4


def test_the_tokens_of_one_chat_count_for_its_owner_and_leave_the_owner_most_of_its_share() -> None:
    shares = Shares(8)
    assert shares.taken(Principal(name="page", owner="ann", chat="c1")) == 2
    assert shares.taken(Principal(name="page", owner="ann", chat="c2")) == 2
    assert shares.taken(ANN) == 4
    assert shares.taken(Principal(name="page", owner="ann", chat="c3")) == 0
    assert shares.taken(Principal(name="page", owner="bob", chat="c1")) == 2, "another owner's chat, by its id"
    assert shares.taken(Principal(name="page", owner=None, chat="c1")) == 2


def test_those_who_were_quiet_are_forgotten_and_one_that_hammers_is_not() -> None:
    shares = Shares(2)
    for n in range(COUNTED_MAX + 100):
        shares.take(Principal(name="laptop", owner=f"owner {n}"))
        assert shares.taken(ANN) == (2 if n == 0 else 0)
    assert COUNTED_MAX - 2 < shares.counted <= COUNTED_MAX
    shares.now_s += 3_600
    for _ in range(COUNTED_MAX):
        shares.take(ANN)
        shares.now_s += 30
    assert shares.counted == 1


def test_without_a_limit_nothing_is_counted() -> None:
    shares = Shares(None)
    for _ in range(1_000):
        shares.take(ANN)
    assert shares.counted == 0


# --- over HTTP --------------------------------------------------------------------------------------------------


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with App(url, agents=agents(), home=str(tmp_path), requests_per_owner_minute_max=1) as app:
        yield app


@asynccontextmanager
async def client(api: Any, token: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(app=api)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


async def token_of(app: App, owner: str | None) -> str:
    return (await app.store.tokens.create(NewToken(name="test", owner=owner, scopes=SCOPES)))[1]


async def test_an_owner_over_its_limit_is_refused_on_every_route_that_is_not_public(app: App) -> None:
    api = http_app(app, token=ADMIN)
    ids = Ids("chat_0", "msg_0", "call_0", "tok_0", "rule_0", "ann")
    async with client(api, await token_of(app, "ann")) as ann:
        assert (await ann.get("/api/chats")).status_code == 200
        asked = [(route, next(requests_of(route, ids))) for route in every_route()]
        for route, one in [*asked, (None, asked[0][1]._replace(path="/api/none"))]:
            body = {"content" if isinstance(one.body, bytes) else "json": one.body} if one.body is not None else {}
            answer = await ann.request(one.method, one.path, **body)
            if route is not None and route.need.public:
                assert answer.status_code != 429, one.path
                continue
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "60"), (one.path, answer.text)
            if route is not None and route.of_v1:
                error = answer.json()["error"]
                assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
                assert error["message"].endswith("come back in 60 s")
            else:
                problem = answer.json()
                assert (problem["code"], problem["limit"], problem["retry_after_s"]) == ("too_many_requests", 1, 60)
    async with client(api, await token_of(app, "bob")) as bob, client(api, ADMIN) as admin:
        assert (await bob.get("/api/chats")).status_code == 200
        figures = (await admin.get("/metrics")).text
    refused = [line for line in figures.splitlines() if line.startswith("holdfast_http_refused_total{")]
    assert [line for line in refused if 'reason="too_many_requests"' in line and not line.endswith(" 0.0")]
    assert "ann" not in "".join(refused)


async def test_one_whom_nobody_knows_is_told_so_however_often_it_asks(app: App) -> None:
    async with client(http_app(app, token=ADMIN), "no-token") as stranger:
        assert [(await stranger.get("/api/chats")).status_code for _ in range(3)] == [401] * 3
