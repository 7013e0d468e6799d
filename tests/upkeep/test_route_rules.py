"""No module of routes reaches around the owner check, and the rule is seen to catch what it is for."""

from pathlib import Path

import pytest

from tests.upkeep.route_rules import declares_routes, reaches_around

SERVER = Path(__file__).resolve().parents[2] / "src" / "holdfast" / "server"
# They make the check, or what it stands on.
INFRASTRUCTURE = {"guarded.py"}


def route_modules() -> list[Path]:
    files = set(SERVER.rglob("*.py"))
    declaring = {file for file in files if declares_routes(file.read_text(encoding="utf-8"))}
    return sorted({*declaring, *(SERVER / "openai").glob("*.py")} - {SERVER / name for name in INFRASTRUCTURE})


def test_no_module_of_routes_reaches_around_the_owner_check() -> None:
    files = route_modules()
    assert {"chats.py", "operations.py", "page_files.py", "placement.py"} <= {file.name for file in files}
    findings = {file.name: found for file in files if (found := reaches_around(file.read_text(encoding="utf-8")))}
    assert findings == {}


@pytest.mark.parametrize(
    "source",
    [
        "from holdfast.app import App",
        "from holdfast import app",
        "import holdfast.app as a",
        "from holdfast.store.contract import Store",
        "from holdfast.store import open_store",
        "from holdfast.store.sqlite.store import SqliteStore",
        "def route(request): return request.app.state.holdfast",
        "def route(app): return app._app.store.read_chat('x')",
        "def route(app): return app.store._store.read_chat('x')",
        "def route(app): return getattr(app, '_' + 'app')",
    ],
)
def test_what_reaches_around_it_is_found(source: str) -> None:
    assert len(reaches_around(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from holdfast.server.owned_app import AppOf, OwnedApp",
        "from holdfast.store.records import Key",
        "async def route(app): return await app.store.read_chat('x')",
        "class Following:\n    def read(self): return self._store.read_chat('x')",
        "def state_of(turn): return turn.state",
    ],
)
def test_what_goes_through_it_is_no_finding(source: str) -> None:
    assert reaches_around(source) == []


def test_a_module_that_makes_a_router_counts_as_one_of_routes() -> None:
    assert declares_routes("routes = Routes(prefix='/api')")
    assert declares_routes("router = fastapi.APIRouter()")
    assert not declares_routes("from holdfast.server.guarded import Routes")
