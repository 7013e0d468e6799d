"""The pages by which a browser comes in and goes out. The page of a link uses its code up when a person presses the
button: programs that look at the links in mails only look.
"""

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from holdfast.server.cookies import cookie_name
from holdfast.server.guarded import GRANT, Routes
from holdfast.server.sessions import LOGIN, sessions_of

LOGOUT, SCRIPT = "/logout", "/login.js"
PATHS = frozenset({LOGIN, LOGOUT, SCRIPT})  # open to anyone
CODE_CHARS_MAX = 500
TELLS_ORIGIN = {"Referrer-Policy": "same-origin"}  # a form of a page without a referrer says `Origin: null`

routes = Routes(include_in_schema=False)


@routes.get(LOGIN, public=True)
async def login_page() -> Response:
    return HTMLResponse(_PAGE.format(words="Press the button to log this browser in."), headers=TELLS_ORIGIN)


@routes.get(SCRIPT, public=True)
async def login_script() -> Response:
    return Response(_SCRIPT, media_type="text/javascript")


@routes.post(LOGIN, public=True)
async def log_in(request: Request) -> Response:
    given = _code_in(await request.body())
    made = await sessions_of(request).begin(given) if 0 < len(given) <= CODE_CHARS_MAX else None
    if made is None:
        return HTMLResponse(_PAGE.format(words=_USED), status_code=401, headers=TELLS_ORIGIN)
    grant, secret = made
    request.scope[GRANT] = grant  # for the audit
    root = request.scope.get("root_path", "")
    answer = RedirectResponse(f"{root}/", status_code=303)
    answer.set_cookie(
        cookie_name(request.scope),
        secret,
        httponly=True,
        samesite="lax",  # so that a link elsewhere leads to the page; what changes something looks at the origin
        path=root or "/",
        max_age=int(sessions_of(request).lifetime.all_s),
        secure=request.scope.get("scheme") == "https",
    )
    return answer


@routes.post(LOGOUT, public=True)
async def log_out(request: Request) -> Response:
    ended = await sessions_of(request).end(request.scope)
    if ended is not None:
        request.scope[GRANT] = ended
    root = request.scope.get("root_path", "")
    answer = RedirectResponse(f"{root}{LOGIN}", status_code=303)
    answer.delete_cookie(cookie_name(request.scope), path=root or "/", httponly=True, samesite="lax")
    return answer


def _code_in(body: bytes) -> str:
    """Of a form."""
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        return ""
    return fields.get("code", [""])[0].strip()


_USED = "This link was used, or its time is over. <code>holdfast login</code> makes a new one, where the server runs."
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>holdfast</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<link rel="icon" href="page/icon.svg">
<link rel="stylesheet" href="page/base.css"><link rel="stylesheet" href="page/shell.css">
<main class="entrance card"><h1><img src="page/icon.svg" alt=""> holdfast</h1><p>{words}</p>
<form method="post" action="login"><p><label id="field">Code or token
<input class="field" name="code" type="password" autocomplete="off" required></label></p>
<p><button class="button primary">Log in</button></p></form></main><script src="login.js"></script></html>
"""
_SCRIPT = """// The code of the link, which no server is told until a person presses the button.
const code = location.hash.slice(1);
if (code) {
  document.querySelector("input").value = code;
  document.getElementById("field").hidden = true;
  history.replaceState(null, "", location.pathname);
}
document.querySelector("button").focus();
"""
