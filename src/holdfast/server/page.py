"""A plain status page: agents, chats, workers, health. Works without scripts."""

import html
import time
from collections.abc import Iterable, Sequence

from starlette.responses import HTMLResponse, Response

from holdfast import __version__
from holdfast.core.records import Lease
from holdfast.safe_text import safe
from holdfast.server.guarded import Routes
from holdfast.server.login import TELLS_ORIGIN
from holdfast.server.owned_app import AppOf, OwnedApp

routes = Routes(include_in_schema=False)

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #1c2a2e;
       background: #fbfcfc; }
h1 { margin-bottom: 0; } h2 { margin-top: 2rem; font-size: 1.1rem; }
table { border-collapse: collapse; width: 100%; } caption { text-align: left; color: #566; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #dde4e4; vertical-align: top; }
th { font-weight: 600; color: #456; } td.none { color: #677; } td.long { overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { margin: 1rem auto; font-size: 13px; } th, td { padding-right: .5rem; } }
a { color: inherit; }
code { background: #eef2f2; padding: .1rem .3rem; border-radius: 3px; }
.ok, .idle { color: #176b3a; } .running, .stopping, .draining, .degraded, .waiting { color: #8a5a00; }
.failed, .unhealthy { color: #a3201d; }
@media (prefers-color-scheme: dark) {
  body { color: #dfe8e8; background: #101718; } th, caption { color: #9ab; } td.none { color: #9aa; }
  th, td { border-color: #2a3738; } code { background: #1d282a; }
  .ok, .idle { color: #6fd39a; } .running, .stopping, .draining, .degraded, .waiting { color: #f0c060; }
  .failed, .unhealthy { color: #ff8f8a; }
}
"""

LONG = 16

# Kelp on its rock.
ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" fill="none" stroke="#176b3a" stroke-width="3"
stroke-linecap="round"><path d="M16 24C10 17 22 12 16 3M16 24l-9 5M16 24l-3 6M16 24l3 6M16 24l9 5"/></svg>"""


@routes.get("/style.css", scope="read")
async def style() -> Response:
    return Response(STYLE, media_type="text/css")


@routes.get("/icon.svg", scope="read")
async def icon() -> Response:
    return Response(ICON, media_type="image/svg+xml")


@routes.get("/", scope="read")
async def status(app: AppOf) -> Response:
    chats = await app.chats(limit=50)
    health, reasons = app.judged()
    now_ms = time.time() * 1000
    parts = [
        f"<h1>holdfast</h1><p><b class={health}>{health}</b>{_words(reasons)} · version {__version__}</p>",
        _table("Agents", ("name", "model", "tools"), ((a.name, _model(a.model), ", ".join(a.tools)) for a in
               app.agents.values()), "no agents"),
        _table("Chats", ("chat", "agent", "title", "status", "queued", "changed"), (
            (c.id, c.agent, c.called, c.state.value, str(c.queued), _ago(now_ms - c.updated_at)) for c in chats
        ), "no chats yet", mark=3),
        await _workers(app, now_ms),
        "<p>The API is described in <a href=api/openapi.json><code>/api/openapi.json</code></a>.</p>",
        "<form method=post action=logout><button>Log out</button></form>",
    ]  # fmt: skip
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>holdfast</title>'
        '<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="5">'
        '<link rel="icon" href="icon.svg"><link rel="stylesheet" href="style.css"></head>'
        f"<body>{''.join(parts)}</body></html>",
        headers=TELLS_ORIGIN,
    )


async def _workers(app: OwnedApp, now_ms: float) -> str:
    """For operators."""
    if not app.operates:
        return ""
    return _table("Workers", ("worker", "process", "started", "lease"), (
        (w.worker, str(w.pid), _ago(now_ms - w.started_at), _lease(w, now_ms)) for w in await app.workers()
    ), "no worker: chats wait until one comes")  # fmt: skip


def _table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], nothing: str, mark: int | None = None
) -> str:
    head = "".join(f"<th scope=col>{name}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(
            f"<td class={cell}>{cell}</td>" if at == mark else _cell(cell) for at, cell in enumerate(row)
        ) + "</tr>"
        for row in rows
    )  # fmt: skip
    return (
        f"<h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>"
        f"{body or f'<tr><td class=none colspan={len(heads)}>{nothing}</td></tr>'}</tbody></table>"
    )


def _cell(text: str) -> str:
    """Ids and titles may break anywhere on a narrow screen, short words nowhere."""
    return f"<td{' class=long' if len(text) > LONG else ''}>{html.escape(safe(text))}</td>"


def _words(reasons: Sequence[str]) -> str:
    return f": {html.escape(', '.join(reasons))}" if reasons else ""


def _model(model: object) -> str:
    return model if isinstance(model, str) else str(getattr(model, "name", model))


def _ago(ms: float) -> str:
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= size:
            return f"{ms / size:.0f} {unit} ago"
    return f"{max(ms, 0) / 1000:.0f} s ago"


def _lease(lease: Lease, now_ms: float) -> str:
    return lease.ended or f"renewed {_ago(now_ms - lease.renewed_at)}"
