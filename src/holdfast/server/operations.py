"""The routes for operators: health, metrics, agents, workers; and who it is that asks."""

from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from holdfast import __version__
from holdfast.health.prometheus import CONTENT_TYPE
from holdfast.server import views
from holdfast.server.chats import PROBLEMS, as_json
from holdfast.server.guarded import Routes
from holdfast.server.owned_app import AppOf

routes = Routes(tags=["operations"], responses=PROBLEMS)


@routes.head("/health", public=True, include_in_schema=False)
@routes.get("/health", public=True, response_model=views.Health, responses={503: {"model": views.Health}})
async def health(app: AppOf) -> Response:
    """Public: how this server is; of several processes on one port, all of them. 503 says that it should get no work:
    it drains, or cannot do any. A token without an owner that has the scope `operate` gets the figures, too.
    """
    found = await app.health()
    return as_json(found, 200 if found["status"] in ("ok", "degraded") else 503)


@routes.get("/api/diagnostics", scope="operate", all_owners=True, response_model=views.Diagnostics)
async def diagnostics(app: AppOf) -> Response:
    """Everything this server knows of itself: for operators."""
    return as_json(await app.diagnosis())


@routes.get(
    "/metrics",
    scope="operate",
    all_owners=True,
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
)
async def metrics(app: AppOf) -> Response:
    """For Prometheus. Where several processes answer on one port, each figure has the label `process`."""
    return Response(await app.metrics(), media_type=CONTENT_TYPE)


@routes.get("/api/me", any_scope=True, response_model=views.PrincipalShown)
async def read_me(app: AppOf) -> Response:
    """Whom the token, or the login, of this request stands for, and what that one may do."""
    me = app.principal
    told = {"name": me.name, "owner": me.owner, "scopes": sorted(me.scopes), "chat": me.chat}
    return as_json({**told, "operates": app.operates, "expires_at": me.expires_at, "version": __version__})


@routes.get("/api/agents", scope="read", response_model=views.AgentList)
async def list_agents(app: AppOf) -> Response:
    return as_json({"agents": [views.agent_of(agent) for agent in app.agents.values()]})


@routes.get("/api/agents/{name:path}/slash-commands", scope="read", response_model=views.SlashCommandList)
async def list_slash_commands(app: AppOf, name: Annotated[str, Path(max_length=512)]) -> Response:
    """What people can call with `/name arguments` at the beginning of a message to this agent."""
    found = await app.slash_commands(name)
    return as_json({"slash_commands": [views.slash_command_of(command) for command in found]})


@routes.get("/api/workers", scope="operate", all_owners=True, response_model=views.WorkerList)
async def list_workers(app: AppOf) -> Response:
    """All workers that hold a lease on this store, in any process."""
    return as_json(
        {
            "workers": [
                {
                    "id": lease.worker,
                    "pid": lease.pid,
                    "started_at": lease.started_at,
                    "lease_ttl_ms": lease.ttl_ms,
                    "lease_renewed_at": lease.renewed_at,
                    "lease_ended": lease.ended,
                    "info": lease.info,
                }
                for lease in await app.workers()
            ]
        }
    )


@routes.get("/api/chats/{chat_id}/why", scope="read", response_model=views.StandingShown)
async def why(chat_id: str, app: AppOf) -> Response:
    """What the chat does or waits for, since when, under which deadline, and what happens next. What
    tools and hooks raised is told to tokens with the scope `operate` alone.
    """
    return as_json(views.standing_of(await app.chat(chat_id).why()))
