"""`http_app(app)`: the HTTP API of an App as an ASGI program, to be served or mounted."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from holdfast import __version__
from holdfast.app import App
from holdfast.jwt_issuer import JwtIssuer
from holdfast.server import (
    approval_pages,
    budgets,
    chats,
    client_files,
    kept_rules,
    login,
    memory,
    operations,
    page_files,
    problems,
    schedules,
    tokens,
    transfers,
    webhooks,
)
from holdfast.server.access import Access, AccessMiddleware, load_token
from holdfast.server.bodies import BodyMiddleware
from holdfast.server.described import described
from holdfast.server.grants import AdminToken, Authenticate, Grants
from holdfast.server.guarded import check_guarded
from holdfast.server.openai import routes as openai
from holdfast.server.openai import stored_conversations
from holdfast.server.openai.errors import ErrorsMiddleware
from holdfast.server.origins import Origins, OriginsMiddleware
from holdfast.server.problems import FaultsMiddleware
from holdfast.server.proxies import Proxies, ProxiesMiddleware
from holdfast.server.sessions import Lifetime, Sessions
from holdfast.server.shares import RequestShares, StreamShares
from holdfast.server.streams import GoingMiddleware, Streams
from holdfast.server.trace_context import TraceContextMiddleware
from holdfast.server.traffic import TrafficMiddleware
from holdfast.server.uploads import Uploads

if TYPE_CHECKING:
    from holdfast.server.jwt_tokens import JwtTokens

ROUTERS = (
    chats.routes.router,
    operations.routes.router,
    tokens.routes.router,
    kept_rules.routes.router,
    schedules.routes.router,
    budgets.routes.router,
    memory.routes.router,
    webhooks.routes.router,
    approval_pages.routes.router,
    transfers.routes.router,
    openai.routes.router,
    stored_conversations.routes.router,
    page_files.routes.router,
    login.routes.router,
    client_files.routes.router,
)
# FastAPI's spans of requests hold the query, and with it the token of a login link.
NO_SPANS_OF_ITS_OWN: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
DESCRIPTION = "Durable chats with agents. Times are milliseconds since 1970; errors are RFC 9457 problem details."


def http_app(
    app: App, *, token: str | None = None, hosts: Iterable[str] = (), authenticate: Authenticate | None = None
) -> FastAPI:
    """For uvicorn, or for `program.mount("/agents", http_app(app))` in a FastAPI or Starlette program.

    The program that serves it opens the app: `async with app.worker(): …` in the program's lifespan, or `async with
    app: …` where workers are other processes.

    Without a `token` for the admin the one of the app's home is used, made if need be; it may be rotated meanwhile.
    `hosts` are names under which it is reached beside the local ones and those of the setting `allowed_hosts`.
    `authenticate(request)` says who asks, where no token of ours does: a Principal, or None for one who may not. It
    may be async; it has 10 seconds, and a request that it raises for stays out.
    """
    config = app.config
    path = Path(config.home) / "token" if token is None else None
    admin = AdminToken(token or (lambda: load_token(config.home)[0]), path, app.secrets)
    app.at_opening.append(lambda: admin.value)
    grants = Grants(app, admin, authenticate, _tokens_of(config.jwt))
    origins = Origins(config.allowed_origins)
    browsers = Sessions(app.store, grants, Lifetime(config.session_s, config.session_idle_s))
    requests = RequestShares(config.requests_per_owner_minute_max)
    access = Access(grants, browsers, origins, requests, {*hosts, *config.allowed_hosts, config.host})
    api = FastAPI(
        title="holdfast",
        version=__version__,
        description=DESCRIPTION,
        openapi_url="/api/openapi.json",
        docs_url=None,  # they load scripts from elsewhere, which the page's policy forbids
        redoc_url=None,
        redirect_slashes=False,
        telemetry=NO_SPANS_OF_ITS_OWN,  # older ones take it as something that they need not know
    )
    api.state.holdfast = app
    api.state.grants = grants
    api.state.sessions = browsers
    shares = StreamShares(config.streams_max, config.streams_per_client_max)
    uploads = Uploads(Path(config.home), config.import_bytes_max)
    api.state.streams = Streams(app.store, grants, shares, requests, uploads)
    problems.install(api, [*api.router.routes, *(route for router in ROUTERS for route in router.routes)])
    api.openapi = lambda: described(api)  # type: ignore[method-assign]
    for router in ROUTERS:
        check_guarded(router)
        # Its routes, not the router: FastAPI looks for the route of a request once in each router, and once more in
        # the one that has it.
        api.router.routes.extend(router.routes)
    api.add_middleware(FaultsMiddleware)
    api.add_middleware(BodyMiddleware)
    api.add_middleware(AccessMiddleware, access=access)  # judges first
    api.add_middleware(GoingMiddleware, streams=api.state.streams)
    if config.traces:
        api.add_middleware(TraceContextMiddleware)
    api.add_middleware(TrafficMiddleware, traffic=api.state.streams.traffic, access_log=config.access_log)
    api.add_middleware(ErrorsMiddleware)  # it tells anew what any layer below refuses
    api.add_middleware(OriginsMiddleware, origins=origins)
    api.add_middleware(
        ProxiesMiddleware, proxies=Proxies(config.trusted_proxies, config.proxy_headers)
    )  # first of all
    return api


def _tokens_of(issuer: JwtIssuer | None) -> "JwtTokens | None":
    if issuer is None:
        return None
    from holdfast.server.jwt_tokens import JwtTokens  # noqa: PLC0415  only who has an issuer waits for PyJWT

    return JwtTokens(issuer)
