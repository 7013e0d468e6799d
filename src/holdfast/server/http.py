"""`http_app(app)`: the HTTP API of an App as an ASGI program, to be served or mounted."""

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from holdfast import __version__
from holdfast.app import App
from holdfast.server import chats, operations, page, problems, views
from holdfast.server.access import Access, AccessMiddleware, load_token
from holdfast.server.limits import BodyMiddleware
from holdfast.server.openai import routes as openai
from holdfast.server.openai.errors import ErrorsMiddleware
from holdfast.server.streams import Streams

ROUTERS = (chats.router, operations.router, openai.router, page.router)
DESCRIPTION = "Durable chats with agents. Times are milliseconds since 1970; errors are RFC 9457 problem details."


def http_app(app: App, *, token: str | None = None, hosts: Iterable[str] = ()) -> FastAPI:
    """For uvicorn, or for `program.mount("/agents", http_app(app))` in a FastAPI or Starlette program.

    The program that serves it opens the app: `async with app.worker(): …` in the program's lifespan, or `async with
    app: …` where workers are other processes. Without a `token` the one of the app's home is used, made if need be.
    `hosts` are names under which it is reached beside the local ones and those of the setting `allowed_hosts`.
    """
    config = app.config
    token = token or load_token(config.home)[0]
    app.secrets.add("server token", token)
    access = Access(token, {*hosts, *config.allowed_hosts, config.host})
    api = FastAPI(
        title="holdfast",
        version=__version__,
        description=DESCRIPTION,
        openapi_url="/api/openapi.json",
        docs_url=None,  # they load scripts from elsewhere, which the page's policy forbids
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    api.state.holdfast = app
    api.state.access = access
    api.state.streams = Streams(
        app.store, streams_max=config.streams_max, per_client_max=config.streams_per_client_max
    )
    problems.install(api, [route for router in ROUTERS for route in router.routes])
    api.openapi = lambda: _described(api)  # type: ignore[method-assign]
    for router in ROUTERS:
        api.include_router(router)
    api.add_middleware(BodyMiddleware)
    api.add_middleware(AccessMiddleware, access=access)  # judges first
    api.add_middleware(ErrorsMiddleware)  # added last: it tells anew what any layer below refuses
    return api


def _described(api: FastAPI) -> dict[str, Any]:
    """The OpenAPI description: as FastAPI writes it, with the shape of problems and the token."""
    if api.openapi_schema is None:
        found = get_openapi(title=api.title, version=api.version, description=api.description, routes=api.routes)
        parts = found["components"]
        parts["schemas"]["Problem"] = views.Problem.model_json_schema()
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
        found["paths"]["/health"]["get"]["security"] = []
        api.openapi_schema = found
    return api.openapi_schema
