"""The routes for operators: health, metrics, agents, workers."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from holdfast import __version__
from holdfast.health.checks import diagnose
from holdfast.health.prometheus import CONTENT_TYPE, prometheus
from holdfast.server import views
from holdfast.server.chats import PROBLEMS, AppOf, as_json, streams_of

router = APIRouter(tags=["operations"], responses=PROBLEMS)


@router.head("/health", include_in_schema=False)
@router.get("/health", response_model=views.Health, responses={503: {"model": views.Health}})
async def health(request: Request) -> Response:
    """Public and short. 503 says that this process should get no work: it drains, or cannot do any."""
    found = _diagnosis(request, detailed=False)
    return as_json(found, 200 if found["status"] in ("ok", "degraded") else 503)


@router.get("/api/diagnostics", response_model=views.Health)
async def diagnostics(request: Request) -> Response:
    """Everything this process knows of itself: for operators."""
    return as_json(_diagnosis(request, detailed=True))


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(prometheus(_diagnosis(request, detailed=True)), media_type=CONTENT_TYPE)


@router.get("/api/agents", response_model=views.AgentList)
async def list_agents(app: AppOf) -> Response:
    return as_json({"agents": [views.agent_of(agent) for agent in app.agents.values()]})


@router.get("/api/workers", response_model=views.WorkerList)
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
                for lease in await app.store.list_workers()
            ]
        }
    )


def _diagnosis(request: Request, *, detailed: bool) -> dict[str, Any]:
    found = diagnose([request.app.state.holdfast], __version__, detailed=detailed)
    if detailed:
        found["server"] = streams_of(request).figures()
    return found
