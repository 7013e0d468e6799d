"""`holdfast serve` and `holdfast worker`."""

from typing import Any

from holdfast.cli.app_choice import open_app
from holdfast.cli.demo_agent import NAME as DEMO
from holdfast.cli.demo_agent import demo_agent
from holdfast.log_context import logger
from holdfast.server.serve import serve as serve_app

log = logger("holdfast.cli")


async def serve(app_name: str | None, *, worker: bool = True, **settings: Any) -> None:
    app = open_app(app_name, **settings)
    if worker and not (app_name or app.config.app):
        app.agents[DEMO] = demo_agent(app)
    await serve_app(app, worker=worker)


async def work(app_name: str | None, **settings: Any) -> None:
    app = open_app(app_name, **settings)
    log.info("starting", extra={"action": "worker.starting", "agents": ", ".join(app.agents)})
    await app.run_worker()
