"""Coding programs as declared mappings: how each is started and resumed, and what its events mean. Data alone.

An event is a line of JSON. A path leads into it: names with dots between, `*` for each element or value. What a rule
compares is the text of a value, as JSON has it, with the wildcards of file names.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from holdfast.core.records import Frozen
from holdfast.tools.coding_agents.verdicts import Counted

# What it may do in its folder: look; change files; whatever it likes.
CodingAccess = Literal["read", "edit", "all"]
Templates = Mapping[CodingAccess, tuple[str, ...]]
_NO_TEMPLATES: Templates = MappingProxyType({})


class EventRule(Frozen):
    """What one kind of event means. Every rule that matches counts.

    `each` is a path to a list, whose elements are looked at in the event's place; `item` is what those must have.
    """

    when: Mapping[str, str] = {}
    each: str = ""
    item: Mapping[str, str] = {}
    say: str = ""  # a line for people, with {path} for what is there
    text: str = ""  # the path of its answer
    adds: bool = False  # to what it answered before, instead of taking its place
    clears: bool = False  # what it said before was not its answer
    session: str = ""  # the path of its session's id
    words: str = ""  # the path of what went wrong, if that is what it comes to
    last: bool = False  # its result: nothing of the run comes after it
    error: tuple[Mapping[str, str], ...] = ()  # of a last one: an error if it has all of any of these
    tokens: tuple[str, ...] = ()  # paths of numbers, to be added
    run_tokens: tuple[str, ...] = ()
    cost: str = ""
    denied: str = ""  # the path of what it was not allowed


class CodingProgram(Frozen):
    """A coding agent on the command line that runs without a terminal and says what it does in lines of JSON.

    In the templates stand {task}, {session}, {model}, {allowed} and {budget}. With {session} in `start` its id is
    ours to choose, and is durable before it starts; else the first event that names it is kept at once.
    """

    name: str
    command: tuple[str, ...]
    start: tuple[str, ...]
    resume: tuple[str, ...] = ()  # empty: a session cannot be gone on with
    access: Templates = _NO_TEMPLATES
    access_on_resume: Templates | None = None  # None: as at the start
    model: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()  # what lets it do more; {allowed} is as many words as there are
    budget: tuple[str, ...] = ()  # what bounds its cost; {budget} is the money that is left
    events: tuple[EventRule, ...]
    counted: Counted = "run"  # what its figures are of
    environment: Mapping[str, str] = {}
    inherited: tuple[str, ...] = ()  # variables of the worker that it gets: its own keys and addresses
    version: tuple[str, ...] = ()  # how it tells its version; empty: it is not asked
    oldest: tuple[int, ...] = ()  # version that says these events
    install: str = ""  # what to do where it is missing, or too old
    login: str = ""  # what to do where it is not logged in
    no_login: tuple[str, ...] = ()  # patterns of what it says then
    no_session: tuple[str, ...] = ()  # … where it does not know the session that it is to resume
    session_taken: tuple[str, ...] = ()  # … where there is a session of the id that it is to start

    @property
    def chooses_session(self) -> bool:
        """Its session's id is ours to choose."""
        return any("{session}" in word for word in self.start)


_CLAUDE_HEAD = ("-p", "--output-format", "stream-json", "--verbose", "--setting-sources", "user")

CLAUDE = CodingProgram(
    name="claude",
    command=("claude",),
    start=(*_CLAUDE_HEAD, "--session-id", "{session}", "--", "{task}"),
    resume=(*_CLAUDE_HEAD, "--resume", "{session}", "--", "{task}"),
    access={
        "read": ("--permission-mode", "default"),
        "edit": ("--permission-mode", "acceptEdits"),
        "all": ("--permission-mode", "bypassPermissions"),
    },
    model=("--model", "{model}"),
    allow=("--allowedTools", "{allowed}"),
    budget=("--max-budget-usd", "{budget}"),
    events=(
        EventRule(when={"type": "system", "subtype": "init"}, session="session_id"),
        EventRule(when={"type": "assistant"}, each="message.content", item={"type": "text"}, say="{text}"),
        EventRule(
            when={"type": "assistant"}, each="message.content", item={"type": "tool_use"}, say="→ {name} {input}"
        ),
        EventRule(
            when={"type": "user"},
            each="message.content",
            item={"type": "tool_result", "is_error": "true"},
            say="✗ {content}",
        ),
        EventRule(
            when={"type": "result"},
            last=True,
            error=({"is_error": "true"}, {"subtype": "error*"}),
            text="result",
            words="errors.*",
            tokens=(
                "modelUsage.*.inputTokens",
                "modelUsage.*.outputTokens",
                "modelUsage.*.cacheReadInputTokens",
                "modelUsage.*.cacheCreationInputTokens",
            ),
            run_tokens=(
                "usage.input_tokens",
                "usage.output_tokens",
                "usage.cache_read_input_tokens",
                "usage.cache_creation_input_tokens",
            ),
            cost="total_cost_usd",
            denied="permission_denials",
        ),
    ),
    counted="session",
    environment={
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_TELEMETRY": "1",
    },
    inherited=(
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
        "CLAUDE_CODE_OAUTH_TOKEN",
        "CLAUDE_CONFIG_DIR",
    ),
    version=("--version",),
    oldest=(2, 1),
    install="npm install -g @anthropic-ai/claude-code",
    login="run `claude` once and log in, or set ANTHROPIC_API_KEY",
    no_login=("*Please run /login*", "*Invalid API key*", "*Not logged in*"),
    no_session=("*No conversation found with session ID*",),
    session_taken=("*Session ID * is already in use*",),
)

_CODEX_HEAD = ("--json", "--skip-git-repo-check", "-c", 'approval_policy="never"')
_CODEX_HEAD_QUIET = (*_CODEX_HEAD, "-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false")

CODEX = CodingProgram(
    name="codex",
    command=("codex", "exec"),
    start=(*_CODEX_HEAD_QUIET, "--", "{task}"),
    resume=("resume", *_CODEX_HEAD_QUIET, "--", "{session}", "{task}"),
    # `resume` has no -s, and without this setting it would not keep to what the session began with.
    access={
        "read": ("-c", 'sandbox_mode="read-only"'),
        "edit": ("-c", 'sandbox_mode="workspace-write"'),
        "all": ("-c", 'sandbox_mode="danger-full-access"'),
    },
    model=("-m", "{model}"),
    events=(
        EventRule(when={"type": "thread.started"}, session="thread_id"),
        EventRule(when={"type": "item.completed", "item.type": "agent_message"}, say="{item.text}", text="item.text"),
        EventRule(when={"type": "item.started", "item.type": "command_execution"}, say="→ {item.command}"),
        EventRule(when={"type": "item.completed", "item.type": "file_change"}, say="→ wrote {item.changes.*.path}"),
        EventRule(when={"type": "item.started", "item.type": "mcp_tool_call"}, say="→ {item.server} {item.tool}"),
        EventRule(when={"type": "item.completed", "item.type": "web_search"}, say="→ searched {item.query}"),
        EventRule(when={"type": "item.completed", "item.type": "error"}, say="! {item.message}"),
        EventRule(when={"type": "error"}, words="message"),
        EventRule(when={"type": "turn.completed"}, last=True, tokens=("usage.input_tokens", "usage.output_tokens")),
        EventRule(when={"type": "turn.failed"}, last=True, error=({},), words="error.message"),
    ),
    counted="session",
    inherited=("CODEX_API_KEY", "CODEX_HOME", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    version=("--version",),
    oldest=(0, 100),
    install="npm install -g @openai/codex",
    login="run `codex login`, or set CODEX_API_KEY",
    no_login=("*401 Unauthorized*", "*Not logged in*", "*codex login*"),
    no_session=("*no rollout found for thread id*", "*No saved session found*"),
)

_GEMINI_HEAD = ("-o", "stream-json", "--skip-trust")

GEMINI = CodingProgram(
    name="gemini",
    command=("gemini",),
    start=(*_GEMINI_HEAD, "--session-id", "{session}", "--prompt={task}"),
    resume=(*_GEMINI_HEAD, "--resume", "{session}", "--prompt={task}"),
    access={
        "read": ("--approval-mode", "default"),
        "edit": ("--approval-mode", "auto_edit"),
        "all": ("--approval-mode", "yolo"),
    },
    model=("--model", "{model}"),
    events=(
        EventRule(when={"type": "init"}, session="session_id"),
        EventRule(
            when={"type": "message", "role": "assistant", "delta": "true"},
            say="{content}",
            text="content",
            adds=True,
        ),
        EventRule(when={"type": "tool_use"}, say="→ {tool_name} {parameters}", clears=True),
        EventRule(when={"type": "tool_result", "status": "error"}, say="✗ {output}"),
        EventRule(when={"type": "error"}, say="! {message}", words="message"),
        EventRule(
            when={"type": "result"},
            last=True,
            error=({"status": "error"},),
            words="error.message",
            tokens=("stats.input_tokens", "stats.output_tokens"),
        ),
    ),
    environment={"GEMINI_TELEMETRY_ENABLED": "false", "NO_COLOR": "1"},
    inherited=(
        "GEMINI_API_KEY",
        "GOOGLE_API_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_CLOUD_LOCATION",
        "GOOGLE_CLOUD_PROJECT",
        "GOOGLE_GEMINI_BASE_URL",
        "GOOGLE_GENAI_USE_VERTEXAI",
    ),
    version=("--version",),
    oldest=(0, 50),
    install="npm install -g @google/gemini-cli (it needs Node 20 or newer)",
    login="run `gemini` once and log in, or set GEMINI_API_KEY",
    no_login=("*Please set an Auth method*", "*Invalid auth method*"),
    no_session=("*Error resuming session*",),
    session_taken=("*Session ID * already exists*",),
)

KNOWN = {program.name: program for program in (CLAUDE, CODEX, GEMINI)}
