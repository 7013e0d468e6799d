"""The page behind a link to an approval. To look at it answers nothing, because programs that scan mails look at
links; a person presses a button. It needs no script, and shows all that would run as text.
"""

from html import escape
from typing import Annotated, Literal
from urllib.parse import parse_qs

from fastapi import Path
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from holdfast.core.approval_links import TOKEN_CHARS_MAX
from holdfast.core.instants import iso
from holdfast.safe_text import revealed
from holdfast.server.access import APPROVALS
from holdfast.server.guarded import Routes
from holdfast.server.link_answers import Asked, NoUse
from holdfast.server.owned_app import AppOf

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",  # a form of a page without a referrer says `Origin: null`
    "X-Robots-Tag": "noindex, nofollow",
}
STATUS: dict[NoUse, int] = {"unknown": 404, "expired": 410, "withdrawn": 410, "over": 409}
WORDS: dict[NoUse, str] = {
    "unknown": "This is no link of this server, or it does not count any more. Nothing was done.",
    "expired": "The time of this link is over. Nothing was done: answer in the chat itself.",
    "withdrawn": "Links like this one were switched off. Nothing was done: answer in the chat itself.",
    "over": "This was answered already, or it is not asked any more. Nothing was done.",
}

routes = Routes(include_in_schema=False)
LinkPath = Annotated[str, Path(max_length=TOKEN_CHARS_MAX)]


@routes.get(f"{APPROVALS}{{link}}", public=True)
async def approval_page(app: AppOf, link: LinkPath) -> Response:
    found = await app.links.look(link)
    return _asking(found) if isinstance(found, Asked) else _no_use(found)


@routes.post(f"{APPROVALS}{{link}}", public=True)
async def answer_approval(app: AppOf, link: LinkPath, request: Request) -> Response:
    answer = _answer_in(await request.body())
    if answer is None:
        return _page("Press one of the two buttons. Nothing was done.", status=400)
    found = await app.links.answer(link, approve=answer == "approve")
    if not isinstance(found, Asked):
        return _no_use(found)
    done = "Approved" if answer == "approve" else "Denied"
    return _page(f"{done}: {found.call.name}. The agent goes on.")


def _answer_in(body: bytes) -> Literal["approve", "deny"] | None:
    """Of a form."""
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        return None
    match fields.get("answer"):
        case ["approve"]:
            return "approve"
        case ["deny"]:
            return "deny"
        case _:
            return None


def _no_use(why: NoUse) -> Response:
    return _page(WORDS[why], status=STATUS[why])


def _asking(asked: Asked) -> Response:
    call = asked.call
    question = f"<p>{_text(call.question)}</p>" if call.question else ""
    approve = '<button name="answer" value="approve">Approve</button> '
    if not call.whole:
        question += "<p>There is more of it than is shown here: approve it in the chat itself.</p>"
        approve = ""
    form = f'<form method="post"><p>{approve}<button name="answer" value="deny">Deny</button></p></form>'
    rows = (("Agent", call.agent), ("Chat", call.chat_id), ("Tool", call.name), ("Until", iso(asked.link.expires_at)))
    facts = "".join(f"<tr><th>{name}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    shown = f"<table>{facts}</table><h2>Arguments</h2><pre>{_text(call.arguments)}</pre>"
    return _page("An agent asks whether it may go on.", question + shown + form)


def _text(said: str) -> str:
    """What cannot be seen is written out: a person approves all that there is."""
    return escape("\n".join(revealed(said).lines))


def _page(words: str, more: str = "", status: int = 200) -> Response:
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>holdfast</title>'
    head += '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
    return HTMLResponse(
        f"{head}<h1>holdfast</h1><p>{escape(words)}</p>{more}</html>", status_code=status, headers=HEADERS
    )
