"""`holdfast serve` and `holdfast worker`, in one process: this one, or each of several under a supervisor."""

from typing import Any

from holdfast import __version__
from holdfast.app import App
from holdfast.cli.app_choice import open_app
from holdfast.cli.demo_agent import NAME as DEMO
from holdfast.cli.demo_agent import demo_agent
from holdfast.config import load_config
from holdfast.errors import ConfigError
from holdfast.health.checks import diagnose, verdict
from holdfast.log_context import logger
from holdfast.server.serve import serve as serve_app
from holdfast.system.supervised import Supervised, supervised
from holdfast.worker.member import Member, run_as_member

log = logger("holdfast.cli")


async def serve(app_name: str | None, *, worker: bool = True, **settings: Any) -> None:
    place = supervised()
    app = _app(app_name, settings)
    if worker and not (app_name or app.config.app):
        app.agents[DEMO] = demo_agent(app)
    await serve_app(app, worker=worker, place=place)


async def work(app_name: str | None, **settings: Any) -> None:
    place = supervised()
    app = _app(app_name, settings)
    log.info("starting", extra={"action": "worker.starting", "agents": ", ".join(app.agents)})
    if place is None:
        await app.run_worker()
    else:
        await _work_as_member(app, place)


def _app(name: str | None, settings: dict[str, Any]) -> App:
    app = open_app(name, **settings)
    if app.config.processes != load_config().processes:
        raise ConfigError(
            "App(processes=…) comes too late: the command starts its processes before it loads the app. Say "
            "--processes, HOLDFAST_PROCESSES, or processes in holdfast.toml"
        )
    return app


async def _work_as_member(app: App, place: Supervised) -> None:
    async with app.open_patiently():
        worker = app.new_worker()
        app.workers.append(worker)
        try:
            member = Member(worker, place, worker, app.store.bell, lambda detailed: _told(app, detailed))
            await run_as_member(member, place, worker.config.grace_s)
        finally:
            app.workers.remove(worker)


def _told(app: App, detailed: bool) -> dict[str, Any]:
    return diagnose([app], __version__, detailed=True) if detailed else verdict([app], __version__)
