"""The JavaScript client as browsers get it from the server: the modules of the folder `client`, open to anyone.

The same folder is an npm package, with types. There is nothing in it that the source does not tell everybody.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from holdfast.server.assets import Assets
from holdfast.server.guarded import Routes

FOLDER = Path(__file__).parent / "client"
MODULES = Assets(FOLDER, ".js")
PATHS = frozenset(f"/client/{name}" for name in MODULES.names)

routes = Routes(include_in_schema=False)


@routes.get("/client/{name}", public=True)
async def client_file(name: str, request: Request) -> Response:
    return MODULES.answer(name, request)
