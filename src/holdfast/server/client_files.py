"""The JavaScript client as browsers get it from the server: the modules of the folder `client`, open to anyone.

The same folder is an npm package, with types. There is nothing in it that the source does not tell everybody.
"""

from pathlib import Path

from starlette.responses import Response

from holdfast.server.guarded import Routes

FOLDER = Path(__file__).parent / "client"
PATHS = frozenset(f"/client/{file.name}" for file in FOLDER.glob("*.js"))
AGE_S = 300  # a browser may keep them so long; modules of two versions are not mixed for longer

routes = Routes(include_in_schema=False)


@routes.get("/client/{name}", public=True)
async def client_file(name: str) -> Response:
    if f"/client/{name}" not in PATHS:
        return Response(status_code=404)
    headers = {"Cache-Control": f"public, max-age={AGE_S}"}
    return Response((FOLDER / name).read_bytes(), headers=headers, media_type="text/javascript")
