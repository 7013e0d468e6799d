"""The page: `/` for who is logged in, and the modules, styles and pictures of the folder `page`, open to anyone.

It is a client of the API like any other: whatever it shows, it asks for, with the rights of the session that it has.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from holdfast.server.assets import Assets
from holdfast.server.guarded import Routes
from holdfast.server.login import TELLS_ORIGIN

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
FILES = Assets(FOLDER)
PATHS = frozenset(f"/page/{name}" for name in FILES.names)

routes = Routes(include_in_schema=False)


@routes.get("/", scope="read")
async def page(request: Request) -> Response:
    return FILES.answer(INDEX, request, TELLS_ORIGIN)


@routes.get("/page/{name}", public=True)
async def page_file(name: str, request: Request) -> Response:
    return FILES.answer(name, request)
