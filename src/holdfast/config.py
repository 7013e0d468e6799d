"""Every setting, in one place: its name, type, default and meaning.

Arguments beat the environment (`HOLDFAST_HISTORY_LIMIT`), which beats `holdfast.toml` (`history_limit = 500`), which
beats the default. An unknown key is an error that names the nearest known one, and so is a value that does
not fit. Nothing is read on import.
"""

import difflib
import errno
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated as A
from typing import Any, Literal, TypedDict, Unpack, get_args

import msgspec
from msgspec import Meta, Struct, structs

from holdfast.declared_schedules import Schedule
from holdfast.errors import ConfigError
from holdfast.jwt_issuer import JwtIssuer
from holdfast.mcp_servers import McpServer
from holdfast.owner_limits import Budgets
from holdfast.webhook_settings import DeclaredWebhook

FILE = "holdfast.toml"
PREFIX = "HOLDFAST_"
HISTORY_LIMIT = 1_000

# In the environment with our prefix, and not a setting of the user's.
_NOT_SETTINGS = (
    "CHILD",
    "CRASH_AT",
    "CRASH_MATRIX",
    "INSIDE",
    "MARK",
    "RANDOM_",
    "TEST_",
    "TRUSTED",
    "SEALED_FD",
    "SOAK_",
    "SUPERVISED",
)

Count = A[int, Meta(ge=1)]
Seconds = A[float, Meta(gt=0)]
NotNegative = A[float, Meta(ge=0)]


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model costs, per million tokens, in the user's own currency."""

    input: NotNegative
    output: NotNegative
    cached: NotNegative | None = None  # of input that the provider had in its cache; None: as any input
    cache_write: NotNegative | None = None  # of input that it put there; None: a quarter more than any input


class ModelFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user says of a model."""

    context_limit: Count | None = None  # tokens of request and response together
    price: Price | None = None


class Retention(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For how many days what no reader can reach any more is kept. None: for ever."""

    attempts_days: NotNegative | None = None  # streamed text of attempts that are over
    calls_days: NotNegative | None = None  # calls of earlier steps, beside the history, which has them too
    compactions_days: NotNegative | None = None  # summaries, since a later one covers them
    archived_chats_days: NotNegative | None = None  # whole chats, since anything happened in them or their family

    @property
    def is_set(self) -> bool:
        return any(days is not None for days in structs.astuple(self))


PermissionMode = Literal["read", "ask", "edit", "unattended"]


class Permissions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What calls of tools may do, as rules on acts: docs/how-to/permissions.md.

    >>> rules = ["allow run(pytest *)", "deny read(**/.env*)"]
    >>> Permissions(mode="edit", rules=rules, examples=["pytest -q -> allow"]).mode
    'edit'

    `mode` is for what no rule matches; None: as the app has it, and `ask` where it has none. `examples` are checked
    when an app is made.
    """

    mode: PermissionMode | None = None
    rules: Sequence[str] = ()
    examples: Sequence[str] = ()

    def __post_init__(self) -> None:
        for field in ("rules", "examples"):
            value = getattr(self, field)
            if isinstance(value, str) or not all(isinstance(text, str) for text in value):
                raise ConfigError(f'{field} of permissions is a list of texts, such as ["allow run(git status *)"]')
            structs.force_setattr(self, field, tuple(value))
        modes = get_args(PermissionMode)
        if self.mode not in (None, *modes):
            raise ConfigError(f"mode of permissions is {self.mode!r}; it can be {', '.join(modes)}")


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one process."""

    home: A[str, Meta(description="where data, tokens and caches are kept")] = ".holdfast"
    database: A[str, Meta(description="sqlite:///FILE or postgresql://…; empty: a SQLite file in home")] = ""
    app: A[
        str, Meta(description="MODULE:APP that the commands use; empty: one with the agents assistant and scripted")
    ] = ""
    host: A[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: A[int, Meta(ge=0, le=65535, description="port to listen on; 0: any free one")] = 7433
    processes: A[
        Count | Literal["auto"],
        Meta(description="processes of `holdfast serve` and `holdfast worker`; auto: one per core"),
    ] = 1
    allowed_hosts: A[
        tuple[str, ...], Meta(description="names under which the server is reached beside the local ones; * is any")
    ] = ()
    allowed_origins: A[
        tuple[str, ...],
        Meta(
            description="origins of pages elsewhere that may use the API, as browsers write them: https://app.example"
        ),
    ] = ()
    trusted_proxies: A[
        tuple[str, ...],
        Meta(
            description="addresses and networks of proxies that are believed about a client's address, scheme, host"
        ),
    ] = ()
    proxy_headers: A[
        Literal["x-forwarded", "forwarded"],
        Meta(
            description="which headers these proxies write: X-Forwarded-For, -Proto, -Host; or Forwarded (RFC 7239)"
        ),
    ] = "x-forwarded"
    session_s: A[Seconds, Meta(description="how long a browser that logged in stays so, at most")] = 30 * 24 * 3600.0
    session_idle_s: A[Seconds, Meta(description="how long it stays so without a request")] = 7 * 24 * 3600.0
    jwt: A[
        JwtIssuer | None,
        Meta(
            description="whose JWTs are tokens of this server: `[jwt]` with `issuer`, `audience` and what else is in "
            "docs/how-to/auth.md; none: nobody's"
        ),
    ] = None
    reuse_port: A[
        bool, Meta(description="let another server listen on the same port, as at a restart without a gap")
    ] = False
    connections_max: A[
        Count, Meta(description="connections that the server holds; fewer where the limit of open files is lower")
    ] = 10_000
    lame_duck_s: A[
        NotNegative,
        Meta(
            description="how long a server that is told to stop still takes requests, while `/health` says draining; "
            "behind a load balancer let it be longer than that needs to notice"
        ),
    ] = 0.5
    streams_max: A[Count, Meta(description="event streams that the server holds at the same time")] = 10_000
    streams_per_client_max: A[
        Count, Meta(description="event streams of one owner; of those without an owner, of one address")
    ] = 500
    requests_per_owner_minute_max: A[
        Count | None,
        Meta(
            description="requests per minute of one owner, to each server process; of those without an owner, of one "
            "name; none: as many as come"
        ),
    ] = None
    import_bytes_max: A[Count, Meta(description="bytes of a file that a client may import")] = 1 << 30
    plugins: A[tuple[str, ...], Meta(description="entry points of group holdfast.plugins to load, in order")] = ()
    no_plugins: A[bool, Meta(description="load no plugins, whatever `plugins` says")] = False
    mcp: A[
        tuple[McpServer, ...], Meta(description="tool servers, in the file only: a table [mcp.NAME] for each")
    ] = ()
    schedules: A[
        tuple[Schedule, ...],
        Meta(
            description="when agents start by themselves, in the file only: a table [schedules.NAME] for each, see "
            "docs/how-to/schedules.md"
        ),
    ] = ()
    permissions: A[
        Permissions | None,
        Meta(
            description="what calls of tools may do, in the file only: `[permissions]` with `mode`, `rules` and "
            "`examples`, see docs/how-to/permissions.md"
        ),
    ] = None
    webhooks: A[
        tuple[DeclaredWebhook, ...],
        Meta(
            description="endpoints that are told of what happens, in the file only: a table [webhooks.NAME] for "
            "each, see docs/how-to/webhooks.md"
        ),
    ] = ()
    webhook_reach: A[
        tuple[str, ...],
        Meta(
            description="hosts that webhooks may lead to beside public ones over https, as rules write them: "
            "hooks.corp:8443, 127.0.0.1:*; for the endpoints of every owner"
        ),
    ] = ()
    public_url: A[
        str,
        Meta(
            description="under which people reach this server, such as https://agents.example; without it no link "
            "to an approval is sent"
        ),
    ] = ""
    approval_link_s: A[
        float, Meta(gt=0, le=7 * 24 * 3600, description="how long a link to an approval can be used, at most 7 days")
    ] = 24 * 3600.0
    history_limit: A[Count, Meta(description="messages of each chat kept in memory; the store has all of them")] = (
        HISTORY_LIMIT
    )
    history_bytes: A[
        int,
        Meta(
            ge=0, description="bytes of older messages that a worker keeps in memory beside those, of all its chats"
        ),
    ] = 64 << 20
    chats_max: A[Count, Meta(description="chats a worker drives at the same time")] = 100
    chats_per_owner_max: A[
        Count | None,
        Meta(
            description="chats of one owner that a worker drives at the same time; none: as many as it has room for"
        ),
    ] = None
    poll_s: A[Seconds, Meta(description="how often a worker looks for work that no hint told it about")] = 5.0
    grace_s: A[NotNegative, Meta(description="how long steps may finish when a worker is told to stop")] = 25.0
    lease_ttl_s: A[Seconds, Meta(description="how long a worker may be silent before others take its chats")] = 30.0
    store_deadline_s: A[Seconds, Meta(description="how long one store operation may take")] = 8.0
    store_wait_s: A[
        NotNegative,
        Meta(description="how long a server or worker that starts waits for a database that is away, or locked"),
    ] = 60.0
    worker_wait_s: A[
        NotNegative,
        Meta(
            description="how long a program waits for a chat that no living worker could drive; let it be longer "
            "than a deploy needs to replace the last one"
        ),
    ] = 60.0
    client_results_wait_s: A[
        Seconds,
        Meta(description="how long a turn under /v1 waits for the results of its client's tools, before it goes on"),
    ] = 7 * 24 * 3600.0
    stall_report_s: A[Seconds, Meta(description="event loop lag that is reported, with the stack behind it")] = 1.0
    stall_limit_s: A[Seconds, Meta(description="event loop lag at which the process dumps its stacks and exits")] = (
        60.0
    )
    cover_tools: A[
        Literal["auto", "always", "never"],
        Meta(
            description="whether holdfast's own files are out of sight of the processes that tools start: `auto` "
            "where the system can, `always` (where it cannot, none is started), `never`"
        ),
    ] = "auto"
    browser: A[
        str,
        Meta(
            description="the Chromium or Chrome that `browse_tools` start, a path or a name; empty: found by its "
            "usual names; of a program of your own the variable counts, or `browse_tools(program=…)`"
        ),
    ] = ""
    local_context: A[Count, Meta(description="tokens of request and response that a local model has per slot")] = 4096
    local_slots: A[Count, Meta(description="chats that a local model answers at once; others wait for a slot")] = 4
    local_threads: A[
        int, Meta(ge=0, description="threads that a local model computes with; 0: all cores but one")
    ] = 0
    local_load_s: A[Seconds, Meta(description="how long a local model may take to load")] = 120.0
    log_level: A[Literal["debug", "info", "warning", "error"], Meta(description="least level that is logged")] = (
        "info"
    )
    log_format: A[Literal["text", "json"], Meta(description="one line of text, or of JSON, per event")] = "text"
    access_log: A[bool, Meta(description="a line for each request: who asked for what, status, time and bytes")] = (
        False
    )
    traces: A[
        bool,
        Meta(
            description="OpenTelemetry spans, to wherever the SDK was told to send them: docs/how-to/observability.md"
        ),
    ] = False
    trace_content: A[
        bool, Meta(description="spans hold what was said and what tools were given, bounded and without secrets")
    ] = False

    retention: A[
        Retention,
        Meta(
            description="days after which a worker removes what nobody needs: `[retention]` with `attempts_days`, "
            "`calls_days`, `compactions_days`, `archived_chats_days`; what is not named is kept for ever"
        ),
    ] = Retention()

    budgets: A[
        Budgets,
        Meta(
            description="what owners may use: `[budgets.each]` and `[budgets.owners.NAME]` with `tokens`, `cost`, "
            "`day_tokens`, `day_cost`; `zone`, `slice_tokens` and `keep_days` in `[budgets]`: docs/how-to/budgets.md"
        ),
    ] = Budgets()

    models: A[
        dict[str, ModelFacts],
        Meta(
            description='what you know of models, as tables: `[models."openai:gpt-6.1-terra"]`, '
            "see docs/how-to/models.md"
        ),
    ] = {}

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{Path(self.home) / 'holdfast.db'}"


class WorkerSettings(TypedDict, total=False):
    """Settings that each worker of an app can have of its own: what `app.worker(…)` takes. One that is None counts as
    not given. The others are the app's, and what it was made with holds for all of its workers.
    """

    history_limit: int | None
    history_bytes: int | None
    chats_max: int | None
    chats_per_owner_max: int | None
    poll_s: float | None
    grace_s: float | None
    store_wait_s: float | None
    stall_report_s: float | None
    stall_limit_s: float | None
    retention: Retention | None


class ConfigSettings(WorkerSettings, total=False):
    """The same settings as arguments: what `App(…)` and `load_config(…)` take beside their own.
    One that is None counts as not given.

    A type checker and an editor read it here, a program has it checked by `Config`; a test compares the two.
    """

    home: str | None
    database: str | None
    app: str | None
    host: str | None
    port: int | None
    processes: int | Literal["auto"] | None
    allowed_hosts: Sequence[str] | None
    allowed_origins: Sequence[str] | None
    trusted_proxies: Sequence[str] | None
    proxy_headers: Literal["x-forwarded", "forwarded"] | None
    session_s: float | None
    session_idle_s: float | None
    jwt: JwtIssuer | None
    reuse_port: bool | None
    connections_max: int | None
    lame_duck_s: float | None
    streams_max: int | None
    streams_per_client_max: int | None
    requests_per_owner_minute_max: int | None
    import_bytes_max: int | None
    plugins: Sequence[str] | None
    no_plugins: bool | None
    mcp: Sequence[McpServer] | None
    permissions: Permissions | None
    webhooks: Sequence[DeclaredWebhook] | None
    webhook_reach: Sequence[str] | None
    public_url: str | None
    approval_link_s: float | None
    lease_ttl_s: float | None
    store_deadline_s: float | None
    worker_wait_s: float | None
    client_results_wait_s: float | None
    cover_tools: Literal["auto", "always", "never"] | None
    browser: str | None
    local_context: int | None
    local_slots: int | None
    local_threads: int | None
    local_load_s: float | None
    log_level: Literal["debug", "info", "warning", "error"] | None
    log_format: Literal["text", "json"] | None
    access_log: bool | None
    traces: bool | None
    trace_content: bool | None
    models: Mapping[str, ModelFacts] | None
    budgets: Budgets | None


NAMES: tuple[str, ...] = Config.__struct_fields__


def load_config(
    file: str | Path | None = None, environ: Mapping[str, str] | None = None, **arguments: Unpack[ConfigSettings]
) -> Config:
    """Raises ConfigError. Without `file`, `holdfast.toml` of the current directory is read if it is there.

    An argument that is None counts as not given.
    """
    environ = os.environ if environ is None else environ
    values = {
        **_from_file(file),
        **_from_environment(environ),
        **_given(arguments),
    }
    return _made(values)


def explain_config(
    file: str | Path | None = None, environ: Mapping[str, str] | None = None, **arguments: Unpack[ConfigSettings]
) -> dict[str, str]:
    """Where each setting's value comes from, by its name. Takes what `load_config` takes, and raises as it does."""
    environ = os.environ if environ is None else environ
    found = dict.fromkeys(NAMES, "default")
    found |= dict.fromkeys(_from_file(file), str(file or FILE))
    for name in _from_environment(environ):
        variable = f"{PREFIX}{name.upper()}"
        found[name] = variable if variable in environ else "AGENT_HISTORY_LIMIT"
    return found | {name: "argument" for name, value in arguments.items() if value is not None}


def sound_config(
    file: str | Path | None = None, environ: Mapping[str, str] | None = None, **arguments: Unpack[ConfigSettings]
) -> tuple[Config, list[ConfigError]]:
    """For who must go on with what is right, and tell what is wrong: each setting is judged by itself."""
    environ = os.environ if environ is None else environ
    path, wrong = Path(file or FILE), []
    table: dict[str, Any] = {}
    values: dict[str, Any] = {}
    try:
        table = _table(file)
    except ConfigError as error:
        wrong.append(error)
    judged = [(name, partial(_from_key, name, value, path)) for name, value in table.items()]
    judged += [(name, partial(_from_variable, variable, name, environ)) for variable, name in _variables(environ)]
    for name, judge in judged:
        try:
            values[name] = judge()
        except ConfigError as error:
            wrong.append(error)
    return _made({**values, **_given(arguments)}), wrong


def changed(config: Config, **settings: Unpack[ConfigSettings]) -> Config:
    """The same with some settings given anew. Raises ConfigError."""
    return _made({**structs.asdict(config), **_given(settings)})


def changed_for_worker(config: Config, **settings: Unpack[WorkerSettings]) -> Config:
    """As `changed`. Raises ConfigError also for a setting that no worker has of its own."""
    for name in settings:
        if name in NAMES and name not in WorkerSettings.__annotations__:
            raise ConfigError(f"{name} is the app's, for all of its workers: give it to App({name}=…)")
    return changed(config, **settings)


def _given(settings: ConfigSettings) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _made(values: Mapping[str, Any]) -> Config:
    for name in values:
        if name not in NAMES:
            raise ConfigError(_unknown(name, "argument"))
    try:
        return msgspec.convert(values, Config, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"a setting does not fit: {error}") from error


def _from_file(file: str | Path | None) -> dict[str, Any]:
    path = Path(file or FILE)
    return {name: _from_key(name, value, path) for name, value in _table(file).items()}


def _table(file: str | Path | None) -> dict[str, Any]:
    path = Path(file or FILE)
    try:
        with open(path, encoding="utf-8", opener=only_regular if file is None else None) as opened:
            return tomllib.loads(opened.read())
    except FileNotFoundError:
        if file is None:
            return {}
        raise ConfigError(f"there is no configuration file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def only_regular(path: str, flags: int) -> int:
    """An opener for a file that happens to be in a folder: a FIFO would hold up its reader for ever, and a device has
    no end. Raises OSError.
    """
    file = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "it is no regular file")


def _from_key(name: str, value: Any, path: Path) -> Any:
    if name not in NAMES:
        raise ConfigError(f"{path}: {_unknown(name, 'key')}")
    if name in _DECLARED:
        return declared_in(value, str(path), name, *_DECLARED[name])
    _check(name, value, f"{path}: {name}")
    return value


# Sections with a table for each of what they declare, whose name is the table's.
_DECLARED: dict[str, tuple[str, type[Struct]]] = {
    "mcp": ("an MCP server", McpServer),
    "schedules": ("a schedule", Schedule),
    "webhooks": ("a webhook", DeclaredWebhook),
}


def declared_in(table: Any, where: str, section: str, noun: str, kind: type[Struct]) -> tuple[Any, ...]:
    """Those that `[section.NAME]` tables of a file declare. Raises ConfigError, which names the nearest key."""
    if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
        raise ConfigError(f"{where}: {section} holds a table for each of its own: [{section}.NAME] is {noun}")
    keys = tuple(field for field in kind.__struct_fields__ if field != "name")
    found = []
    for name, entry in table.items():
        for key in entry:
            if key not in keys:
                raise ConfigError(f"{where}: {section}.{name}: {key} is no key of {noun}; {_nearest(key, keys)}")
        try:
            found.append(msgspec.convert({"name": name, **entry}, kind))
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: {section}.{name} does not fit: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    return tuple(found)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    values = {name: _from_variable(variable, name, environ) for variable, name in _variables(environ)}
    if "history_limit" not in values and "AGENT_HISTORY_LIMIT" in environ:
        values["history_limit"] = _history_limit(environ["AGENT_HISTORY_LIMIT"])
    return values


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Those that are settings, each with the name of its setting; whether there is such a one is not asked yet."""
    for variable in environ:
        key = variable.removeprefix(PREFIX)
        if key != variable and (key.lower() in NAMES or not key.startswith(_NOT_SETTINGS)):
            yield variable, key.lower()


def _from_variable(variable: str, name: str, environ: Mapping[str, str]) -> Any:
    if name not in NAMES:
        raise ConfigError(_unknown(variable, "environment variable"))
    return _parse(name, environ[variable], variable)


def _parse(name: str, text: str, variable: str) -> Any:
    kind = _TYPES[name]
    if name == "history_limit":
        return _history_limit(text)
    if name in _TABLES:  # attempts_days=7, calls_days=30
        pairs = (part.partition("=") for part in text.split(",") if part.strip())
        table = {key.strip(): value.strip() for key, _, value in pairs}
        lists = {key: value.split() for key, value in table.items() if key in _TABLES[name]}
        return _convert(kind, table | lists, f"{variable}={text!r}")
    if name in ("plugins", "allowed_hosts", "allowed_origins", "trusted_proxies", "webhook_reach"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return _convert(kind, text.strip(), f"{variable}={text!r}")


def _convert(kind: Any, value: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where} does not fit: {error}") from error


def _check(name: str, value: Any, where: str) -> None:
    try:
        msgspec.convert(value, _TYPES[name])
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{where} does not fit: {error}") from error


def _history_limit(text: str) -> int:
    """A cache's bound: nonsense here is no reason not to start."""
    try:
        limit = int(text.strip())
    except ValueError:
        return HISTORY_LIMIT
    return limit if limit > 0 else HISTORY_LIMIT


def _unknown(name: str, what: str) -> str:
    known = [f"{PREFIX}{known.upper()}" for known in NAMES] if name.startswith(PREFIX) else NAMES
    return f"{name} is no {what} of holdfast; {_nearest(name, known)}"


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


_TYPES: dict[str, Any] = {field.name: field.type for field in structs.fields(Config)}
# Settings that are tables, with those of their keys that are lists: in the environment, with spaces between.
_TABLES: dict[str, tuple[str, ...]] = {"retention": (), "jwt": ("algorithms", "default_scopes")}
