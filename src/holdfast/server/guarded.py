"""Routes that say what they need: a scope, or nothing because they are public. The check is here, before anything of
the request is looked at; a route that declares neither is an error when its module is imported.
"""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from holdfast.core.records import Frozen
from holdfast.errors import Forbidden, Unauthorized
from holdfast.principals import SCOPES, Principal
from holdfast.principals import Scope as TokenScope
from holdfast.server.bodies import DecodedRequest
from holdfast.server.grants import Grant
from holdfast.server.owned_store import need

SCHEME = "token"  # of the description
ALL_OWNERS = "x-all-owners"  # in the description: for tokens without an owner
GRANT = "holdfast.grant"  # in the scope of a request

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Need(Frozen):
    """What a route asks of who calls it. `scope`: None is for whoever it is. `all_owners`: it tells of the chats of
    every owner, as a whole. `public`: nothing is asked for, not even a token.
    """

    scope: TokenScope | None
    all_owners: bool = False
    public: bool = False

    def check(self, principal: Principal) -> None:
        """Raises Forbidden."""
        if self.scope is not None:
            need(principal, self.scope)
        if self.all_owners and not principal.sees_all:
            raise Forbidden("this tells of the chats of every owner: it needs a token without an owner")


def need_of(route: APIRoute) -> Need:
    """Raises TypeError for a route that declares nothing."""
    extra = route.openapi_extra or {}
    if "security" not in extra:
        raise TypeError(f"the route {route.path} declares no scope: say scope=… or public=True")
    asked = [scope for line in extra["security"] for scope in line[SCHEME]]
    return Need(
        scope=asked[0] if asked else None,
        all_owners=extra.get(ALL_OWNERS, False),
        public=extra["security"] == [],
    )


def grant_of(request: Request) -> Grant:
    """Raises Unauthorized: for routes that are not public."""
    grant = request.scope.get(GRANT)
    if not isinstance(grant, Grant):
        raise Unauthorized("send `Authorization: Bearer TOKEN`")
    return grant


class GuardedRoute(APIRoute):
    """Checks what it needs, then answers. Its body was decoded before, in bounds."""

    def __init__(self, path: str, *args: Any, **options: Any) -> None:
        super().__init__(path, *args, **options)
        self._beginning, self._end = path.partition("{")[0], path.rpartition("}")[2]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """A request passes most of a hundred routes: that it is for another one is told by how its path begins and
        ends, at a fraction of what the pattern costs. Where it is mounted, paths begin with the mounting program's.
        """
        path = scope["path"]
        if not path.endswith(self._end) or not (scope.get("root_path") or path.startswith(self._beginning)):
            return Match.NONE, {}
        return super().matches(scope)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler, needed = super().get_route_handler(), need_of(self)

        async def handling(request: Request) -> Response:
            if not needed.public:
                needed.check(grant_of(request).principal)
            return await handler(DecodedRequest(request.scope, request.receive))

        return handling


def check_guarded(router: APIRouter) -> None:
    """Raises TypeError for a route that nothing guards."""
    for route in router.routes:
        if not isinstance(route, GuardedRoute):
            raise TypeError(f"the route {getattr(route, 'path', route)} is not guarded: declare it with `Routes`")


class Routes:
    """A router whose routes declare what they need: `@routes.get("/chats", scope="read")`; `any_scope=True` is for
    any token that is valid.
    """

    def __init__(self, **options: Any) -> None:
        self.router = APIRouter(
            route_class=GuardedRoute, generate_unique_id_function=lambda route: route.name, **options
        )

    def _route(
        self,
        method: str,
        path: str,
        scope: TokenScope | None,
        public: bool,
        all_owners: bool,
        options: dict[str, Any],
    ) -> Callable[[Handler], Handler]:
        any_scope = options.pop("any_scope", False)
        if [scope is not None, public, any_scope].count(True) != 1 or (scope is not None and scope not in SCOPES):
            raise TypeError(f"{method} {path} declares no scope: say scope=…, any_scope=True or public=True")
        extra: dict[str, Any] = {
            **options.pop("openapi_extra", {}),
            "security": [] if public else [{SCHEME: [scope] if scope is not None else []}],
        }
        if all_owners:
            extra[ALL_OWNERS] = True
        return self.router.api_route(path, methods=[method], openapi_extra=extra, **options)

    def get(
        self,
        path: str,
        *,
        scope: TokenScope | None = None,
        public: bool = False,
        all_owners: bool = False,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        return self._route("GET", path, scope, public, all_owners, options)

    def head(
        self,
        path: str,
        *,
        scope: TokenScope | None = None,
        public: bool = False,
        all_owners: bool = False,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        return self._route("HEAD", path, scope, public, all_owners, options)

    def post(
        self,
        path: str,
        *,
        scope: TokenScope | None = None,
        public: bool = False,
        all_owners: bool = False,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        return self._route("POST", path, scope, public, all_owners, options)

    def put(
        self,
        path: str,
        *,
        scope: TokenScope | None = None,
        public: bool = False,
        all_owners: bool = False,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        return self._route("PUT", path, scope, public, all_owners, options)

    def patch(
        self,
        path: str,
        *,
        scope: TokenScope | None = None,
        public: bool = False,
        all_owners: bool = False,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        return self._route("PATCH", path, scope, public, all_owners, options)

    def delete(
        self,
        path: str,
        *,
        scope: TokenScope | None = None,
        public: bool = False,
        all_owners: bool = False,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        return self._route("DELETE", path, scope, public, all_owners, options)
