"""Pages of other origins: those that the setting `allowed_origins` names are served, by the rules of CORS; all others
are refused, and get no header that would let a browser show them anything.

A browser tells the origin of a page and no page can forge it. Other clients send none.
"""

import re
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import ConfigError
from holdfast.server.cookies import DEFAULT_PORTS
from holdfast.server.problems import problem
from holdfast.server.proxies import PROXIED

PAGES = frozenset({"/", "/login"})  # to which links elsewhere may lead
APPROVALS = "/approvals/"  # and what is below it (`approval_pages.py`): mails and chat programs are pages elsewhere
METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
EXPOSED = "Location, Retry-After, X-Holdfast-Chat, X-Should-Retry"  # what clients of ours, and of /v1, read
PREFLIGHT_S = 600  # how long a browser may remember an answer
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]{0,30})://([a-z0-9_.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::([0-9]{1,5}))?")
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2000}")


def canonical(origin: str) -> str | None:
    """As browsers write it, without the port that its scheme has anyway. None: it is no origin."""
    found = _ORIGIN.fullmatch(origin.lower())
    if found is None:
        return None
    scheme, host, port = found.groups()
    return f"{scheme}://{host}" if port in (None, DEFAULT_PORTS.get(scheme)) else f"{scheme}://{host}:{port}"


class Origins:
    """Raises ConfigError for a setting that names none."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self.allowed = frozenset(map(_named, allowed))

    def allows(self, headers: Headers) -> bool:
        """Whether the request is of a page that may ask. Two origins are none: no browser sends them."""
        given = headers.getlist("origin")
        return len(given) == 1 and canonical(given[0]) in self.allowed

    def refusal(self, scope: Scope) -> Response | None:
        """The answer to a page that may not ask, and to a browser that asks what a page may. None: go on."""
        headers = Headers(scope=scope)
        if self.allows(headers):
            return _preflight(headers) if scope["method"] == "OPTIONS" else None
        if (foreign := _foreign(scope, headers)) is None:
            return None
        words = (
            f"requests from {foreign[:100]!r} are not served; name the page's origin in `allowed_origins` if they are"
        )
        return problem(403, "forbidden_origin", words)


def _named(origin: str) -> str:
    found = canonical(origin.strip())
    if found is None:
        raise ConfigError(
            f"allowed_origins: {origin!r} is no origin; write each as a browser does, like https://app.example "
            "or http://localhost:5173, without a path"
        )
    return found


def _foreign(scope: Scope, headers: Headers) -> str | None:
    """An origin that is not this server's own."""
    given = headers.getlist("origin")
    if given and (len(given) > 1 or not _own(given[0], scope, headers)):
        return ", ".join(given)
    site = headers.get("sec-fetch-site")
    return site if site in ("cross-site", "same-site") and not _leads_to_page(scope, headers) else None


def _leads_to_page(scope: Scope, headers: Headers) -> bool:
    """A person followed a link, in a mail or on a page elsewhere, to a page of ours; a frame is none."""
    path = str(scope["path"]).removeprefix(scope.get("root_path", "")) or "/"
    told = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
    ours = path in PAGES or path.startswith(APPROVALS)
    return scope["method"] == "GET" and ours and told == ("navigate", "document")


def _own(origin: str, scope: Scope, headers: Headers) -> bool:
    """Where a proxy of ours says by which scheme it was asked, a page of the other scheme is another origin. Without
    its word the scheme is not known.
    """
    scheme = origin.partition("://")[0].lower()
    asked = scope["scheme"] if scope.get(PROXIED) else scheme
    known = canonical(origin)
    return known is not None and known == canonical(f"{asked}://{headers.get('host', '')}")


def _preflight(headers: Headers) -> Response | None:
    if "access-control-request-method" not in headers:
        return None
    told = {
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Max-Age": str(PREFLIGHT_S),
        "Vary": "Access-Control-Request-Headers",
    }
    wanted = headers.get("access-control-request-headers", "")
    if _HEADER_NAMES.fullmatch(wanted):
        told["Access-Control-Allow-Headers"] = wanted
    if headers.get("access-control-request-private-network") == "true":
        told["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=told)


class OriginsMiddleware:
    """Lets browsers show answers to pages of allowed origins, refusals and errors too."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._origins.allowed:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers["origin"] if self._origins.allows(headers) else None

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(raw=list(message.get("headers", [])))
                told.add_vary_header("Origin")  # also without one: a cache must not give this answer to a page
                if origin is not None:
                    told["Access-Control-Allow-Origin"] = origin
                    told["Access-Control-Allow-Credentials"] = "true"  # an EventSource has nothing but the cookie
                    told["Access-Control-Expose-Headers"] = EXPOSED
                message["headers"] = told.raw
            await send(message)

        await self._app(scope, receive, sending)
