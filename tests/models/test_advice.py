"""A provider's refusal says what to do about it: the variable to set, or the setting to change. On every wire."""

from contextlib import aclosing

import pytest
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.retry import Kind
from holdfast.errors import ModelCallFailed, ProviderError
from holdfast.models.advice import BY_KIND, Access, advice_on
from holdfast.models.base import Model, Request, StreamPart
from holdfast.models.calls import Caller, failure_of
from holdfast.models.resolve import Models
from tests.models.conftest import CALM, ENOUGH_S, KEY, Serve, asking
from tests.support.chat_server import ChatServer, Stall, refusing
from tests.support.chat_server import Reply as ServerReply
from tests.support.speakers import Anthropic, Chat, Gemini, Responses, Speaker

pytestmark = pytest.mark.timeout(60)


class Route(Struct, frozen=True):
    """A provider as users name it, and the variables that are its own."""

    model: str
    speaker: Speaker
    key: str
    url: str | None = None  # None: it is in the model's name

    def on(self, server: ChatServer, **environ: str) -> Models:
        base = server.root if self.speaker.kind.endswith(("google", "anthropic")) else server.url
        return Models({**environ, **({} if self.url is None else {self.url: base})})

    def name(self, server: ChatServer) -> str:
        return self.model.replace("@", f"@{server.root if 'google' in self.model else server.url}")


ROUTES = [
    Route("openai:gpt-6.1-terra", Responses(), "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    Route("openai-chat:gpt-4o", Chat(), "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    Route("anthropic:claude-sonnet-5-5", Anthropic(), "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    Route("google:gemini-3.8-flash", Gemini(), "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
    Route("compatible:m@", Chat(), "COMPATIBLE_API_KEY"),
    Route("compatible-responses:m@", Responses(), "COMPATIBLE_API_KEY"),
    Route("compatible-anthropic:m@", Anthropic(), "COMPATIBLE_API_KEY"),
    Route("compatible-google:m@", Gemini(), "COMPATIBLE_API_KEY"),
]


@pytest.fixture(params=ROUTES, ids=lambda route: route.model)
def route(request: pytest.FixtureRequest) -> Route:
    made: Route = request.param
    return made


async def refusal(serve: Serve, route: Route, reply: ServerReply, *, key: str = KEY) -> ProviderError:
    server = await serve(reply)
    models = route.on(server, **({route.key: key} if key else {}))
    try:
        return await error_of(models.get(route.name(server)))
    finally:
        await models.aclose()


async def asked(model: Model, request: Request) -> list[StreamPart]:
    async with aclosing(model.stream(request)) as parts:
        return [part async for part in parts]


async def error_of(model: Model, request: Request | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await asked(model, request or asking())
    return caught.value


def words(route: Route, **by_kind: tuple[int, str, str]) -> ServerReply:
    """In the dialect of the route's provider; `other` is for those that are not named."""
    dialect = type(route.speaker).__name__.lower()
    return route.speaker.refusing(*by_kind.get(dialect, by_kind["other"]))


async def test_a_wrong_key_names_its_variable(serve: Serve, route: Route) -> None:
    reply = words(
        route,
        anthropic=(401, "authentication_error", "invalid x-api-key"),
        gemini=(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
        other=(401, "invalid_request_error", "Incorrect API key provided"),
    )
    error = await refusal(serve, route, reply)
    assert error.code == "authentication"
    assert error.advice.startswith(f"the key in {route.key} is not accepted: set {route.key} to one that is valid at")
    assert KEY not in error.advice


async def test_a_key_that_may_not_use_the_model_says_so(serve: Serve, route: Route) -> None:
    error = await refusal(serve, route, route.speaker.refusing(403, "permission_error", "not for you"))
    assert error.code == "authentication"
    assert f"the key in {route.key} may not use {route.model.partition('@')[0]}" in error.advice
    assert "--model, or the agent's `model`" in error.advice


async def test_an_account_without_credit_is_told_from_a_wrong_key(serve: Serve, route: Route) -> None:
    reply = words(
        route,
        anthropic=(400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        gemini=(402, "FAILED_PRECONDITION", "billing is not enabled"),
        other=(429, "insufficient_quota", "You exceeded your current quota, please check your plan"),
    )
    error = await refusal(serve, route, reply)
    assert error.code == "payment"
    assert f"the account of the key in {route.key} has no credit left" in error.advice


def test_who_sent_no_key_is_not_told_of_the_account_of_one() -> None:
    access = Access(model="compatible:m@http://127.0.0.1:1/v1", url="http://127.0.0.1:1/v1", key_variables=("K",))
    told = advice_on(ProviderError("pay first", code=str(Kind.PAYMENT)), access)
    assert told.startswith("the account at 127.0.0.1:1 has no credit left")
    keyed = advice_on(ProviderError("pay first", code=str(Kind.PAYMENT)), replace(access, keyed=True))
    assert "the account of the key in K has no credit left" in keyed


async def test_a_model_that_is_not_there_names_what_to_check(serve: Serve, route: Route) -> None:
    reply = words(
        route,
        anthropic=(404, "not_found_error", "model: m"),
        gemini=(404, "NOT_FOUND", "models/m is not found for API version v1beta"),
        other=(404, "invalid_request_error", "The model `m` does not exist"),
    )
    error = await refusal(serve, route, reply)
    assert error.code == "not_found"
    assert "--model, or the agent's `model`" in error.advice
    assert (route.url or "the URL of the model") in error.advice


async def test_a_place_that_is_not_served_names_the_ways_out(serve: Serve, route: Route) -> None:
    body = {"error": {"code": "unsupported_country_region_territory", "message": "Country not supported"}}
    reply = words(
        route,
        gemini=(400, "FAILED_PRECONDITION", "User location is not supported for the API use."),
        other=(403, "request_forbidden", "no"),
    )
    error = await refusal(serve, route, reply if isinstance(route.speaker, Gemini) else refusing(403, body))
    assert error.code == "region"
    assert "set HTTPS_PROXY" in error.advice


async def test_a_history_that_is_too_long_names_the_setting(serve: Serve, route: Route) -> None:
    error = await refusal(serve, route, route.speaker.refusing(400, "invalid_request_error", "prompt is too long"))
    assert error.code == "context_too_long"
    assert "`context_limit` in [models." in error.advice
    assert "holdfast chats compact" in error.advice


async def test_a_rate_limit_names_whose_it_is(serve: Serve, route: Route) -> None:
    error = await refusal(serve, route, route.speaker.refusing(429, "rate_limit_error", "slow down"))
    assert error.code == "rate_limit"
    assert f"the account of the key in {route.key} allows no more requests" in error.advice
    assert "`fallbacks`" in error.advice


async def test_an_address_where_no_server_listens_names_where_it_comes_from(serve: Serve, route: Route) -> None:
    server = await serve()
    models = route.on(server, **{route.key: KEY})
    name = route.name(server)
    await server.__aexit__(None, None, None)
    error = await error_of(models.get(name))
    await models.aclose()
    await server.__aenter__()  # which the fixture ends
    assert error.code == "connection"
    assert (route.url or "the URL in the model's name") in error.advice


async def test_a_server_without_a_key_that_wants_one_names_the_variable(serve: Serve) -> None:
    route = ROUTES[4]
    error = await refusal(serve, route, route.speaker.refusing(401, "unauthorized", "who are you?"), key="")
    assert error.advice.endswith("wants a key: set COMPATIBLE_API_KEY")


async def test_a_name_with_a_slip_gets_the_nearest_one_that_is_known(serve: Serve) -> None:
    route = Route("anthropic:claude-sonet-5-5", Anthropic(), "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
    error = await refusal(serve, route, route.speaker.refusing(404, "not_found_error", "model: claude-sonet-5-5"))
    assert error.advice.endswith("did you mean anthropic:claude-sonnet-5-5?")


async def test_a_deadline_names_itself(serve: Serve) -> None:
    server = await serve(ServerReply(steps=(Stall(),), status=0))
    models = ROUTES[4].on(server, COMPATIBLE_API_KEY=KEY)
    model = models.get(ROUTES[4].name(server))
    error = await error_of(model, asking(deadlines=replace(CALM, first_byte_s=ENOUGH_S)))
    await models.aclose()
    assert "raise `first_byte_s` in the agent's `deadlines`" in error.advice


async def test_the_failure_of_a_call_has_the_advice_of_each_model_once(serve: Serve) -> None:
    openai, anthropic = ROUTES[0], ROUTES[2]
    first = await serve(openai.speaker.refusing(401, "invalid_request_error", "no"))
    second = await serve(anthropic.speaker.refusing(404, "not_found_error", "no"))
    urls = {"OPENAI_BASE_URL": first.url, "ANTHROPIC_BASE_URL": second.root}
    models = Models({**urls, "OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY})
    with pytest.raises(ModelCallFailed) as caught:
        await Caller().call([models.get(openai.model), models.get(anthropic.model)], asking())
    await models.aclose()
    failure = failure_of(caught.value)
    assert failure.advice.count("OPENAI_API_KEY") == 2
    assert "ANTHROPIC_BASE_URL" in failure.advice
    assert len(failure.chain) == 2


def test_every_kind_of_failure_has_its_row() -> None:
    assert set(BY_KIND) == set(Kind)
    access = Access(model="compatible:m@http://h/v1", url="http://h/v1", key_variables=("K",), keyed=True)
    silent = {kind for kind in Kind if not advice_on(ProviderError("x", code=kind), access)}
    assert silent == {Kind.MODEL_BROKE}
    assert advice_on(ProviderError("x", code="a word of its own"), access) == ""
