"""The page behind a link to a call that waits for a person. To look at it answers nothing, because programs that scan
mails look at links; a person presses a button. It needs no script, and shows all that would run as text.
"""

from html import escape
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Path
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from holdfast.core.approval_links import TOKEN_CHARS_MAX
from holdfast.core.instants import iso
from holdfast.safe_text import revealed
from holdfast.server.guarded import Routes
from holdfast.server.link_answers import REPLY_CHARS_MAX, Approval, Asked, NoUse, Reply
from holdfast.server.origins import APPROVALS
from holdfast.server.owned_app import AppOf
from holdfast.store.open_calls import OpenCallRecord

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",  # a form of a page without a referrer says `Origin: null`
    "X-Robots-Tag": "noindex, nofollow",
}
STATUS: dict[NoUse, int] = {
    "unknown": 404,
    "expired": 410,
    "withdrawn": 410,
    "over": 409,
    "cut": 403,
    "unfit": 400,
}
WORDS: dict[NoUse, str] = {
    "unknown": "This is no link of this server, or it does not count any more. Nothing was done.",
    "expired": "The time of this link is over. Nothing was done: answer in the chat itself.",
    "withdrawn": "Links like this one were switched off. Nothing was done: answer in the chat itself.",
    "over": "This was answered already, or it is not asked any more. Nothing was done.",
    "cut": "There is more of it than this page can show. Nothing was done: approve it in the chat itself.",
    "unfit": f"Press a button; an answer in words has up to {REPLY_CHARS_MAX:,} characters. Nothing was done.",
}

routes = Routes(include_in_schema=False)
LinkPath = Annotated[str, Path(max_length=TOKEN_CHARS_MAX)]


@routes.get(f"{APPROVALS}{{link}}", public=True)
async def approval_page(app: AppOf, link: LinkPath) -> Response:
    found = await app.links.look(link)
    return _asking(found) if isinstance(found, Asked) else _no_use(found)


@routes.post(f"{APPROVALS}{{link}}", public=True)
async def answer_approval(app: AppOf, link: LinkPath, request: Request) -> Response:
    given = _given_in(await request.body())
    if given is None:
        return _no_use("unfit")
    found = await app.links.answer(link, given)
    if not isinstance(found, Asked):
        return _no_use(found)
    done = "Answered" if isinstance(given, Reply) else "Approved" if given.approve else "Denied"
    return _page(f"{done}: {found.call.name}. The agent goes on.")


def _given_in(body: bytes) -> Approval | Reply | None:
    """Of a form, which ends the lines of a text with CR and LF."""
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        return None
    match fields.get("answer"), fields.get("text"):
        case ["approve"], None:
            return Approval(approve=True)
        case ["deny"], None:
            return Approval(approve=False)
        case ["reply"], [text]:
            text = text.replace("\r\n", "\n").strip()
            return Reply(text=text) if 0 < len(text) <= REPLY_CHARS_MAX else None
        case _:
            return None


def _no_use(why: NoUse) -> Response:
    return _page(WORDS[why], status=STATUS[why])


def _asking(asked: Asked) -> Response:
    call = asked.call
    question = f"<p>{_text(call.question)}</p>" if call.question else ""
    if not call.whole:
        question += f"<p>{escape(WORDS['cut'])}</p>"
    rows = (("Agent", call.agent), ("Chat", call.chat_id), ("Tool", call.name), ("Until", iso(asked.link.expires_at)))
    facts = "".join(f"<tr><th>{name}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    shown = f"<table>{facts}</table><h2>Arguments</h2><pre>{_text(call.arguments)}</pre>"
    words = "An agent asks you something." if call.kind == "question" else "An agent asks whether it may go on."
    return _page(words, f'{question}{shown}<form method="post">{_buttons(call)}</form>')


def _buttons(call: OpenCallRecord) -> str:
    if call.kind == "question":
        field = f'<textarea name="text" rows="6" cols="60" maxlength="{REPLY_CHARS_MAX}" required></textarea>'
        return (
            f'<p><label>Your answer<br>{field}</label></p><p><button name="answer" value="reply">Answer</button></p>'
        )
    approve = '<button name="answer" value="approve">Approve</button> ' if call.whole else ""
    return f'<p>{approve}<button name="answer" value="deny">Deny</button></p>'


def _text(said: str) -> str:
    """What cannot be seen is written out: a person approves all that there is."""
    return escape("\n".join(revealed(said).lines))


def _page(words: str, more: str = "", status: int = 200) -> Response:
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>holdfast</title>'
    head += '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
    return HTMLResponse(
        f"{head}<h1>holdfast</h1><p>{escape(words)}</p>{more}</html>", status_code=status, headers=HEADERS
    )
