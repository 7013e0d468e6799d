"""holdfast: a crash-durable, never-hanging runtime for LLM agents.

This module owns the public names and nothing else. Importing it stays cheap: a public name is loaded from its home
the first time a program asks for it, so no database driver, provider client or server comes along.
"""

import sys as _sys
from importlib import import_module as _import_module

__all__ = [
    "Act",
    "ActsOf",
    "AdmissionTimeout",
    "Agent",
    "AgentLimits",
    "AgentNamed",
    "Always",
    "Answer",
    "Answered",
    "AnyEntry",
    "App",
    "AppMemory",
    "AppSchedules",
    "Approval",
    "Arguments",
    "Ask",
    "AttemptFailed",
    "Backfilled",
    "BlockVersion",
    "BudgetLeft",
    "Budgets",
    "CallAnswered",
    "CallAsked",
    "CallBegan",
    "CallChanged",
    "CallDone",
    "CallDrafted",
    "CallProgress",
    "CallRecord",
    "CallState",
    "CallTimeout",
    "CallTool",
    "CallView",
    "CallerError",
    "CallsStarted",
    "Cause",
    "Chat",
    "ChatArchived",
    "ChatCreated",
    "ChatFailed",
    "ChatFilter",
    "ChatHandedOver",
    "ChatLine",
    "ChatRecord",
    "ChatRenamed",
    "ChatRepaired",
    "ChatRetried",
    "ChatSettings",
    "ChatTakenOver",
    "ClientTool",
    "Clock",
    "CodingAccess",
    "CodingProgram",
    "Compacted",
    "CompactionFailed",
    "CompactionPolicy",
    "Completed",
    "Config",
    "ConfigError",
    "ConfigSettings",
    "ConnectTimeout",
    "ConnectionFailed",
    "ContextFilter",
    "CorruptRecord",
    "Cron",
    "Decision",
    "DeclaredWebhook",
    "Delegation",
    "Delta",
    "DescendantAnswered",
    "DescendantAsking",
    "Doing",
    "DrainFailed",
    "Event",
    "EventRule",
    "Every",
    "Expansion",
    "Extent",
    "External",
    "FailedAttempt",
    "Failure",
    "File",
    "Finished",
    "FirstByteTimeout",
    "Forbidden",
    "FoundMemory",
    "Grouping",
    "Happened",
    "HistoryCut",
    "HistoryRow",
    "HoldfastError",
    "Hook",
    "Imported",
    "InvalidInput",
    "JwtIssuer",
    "KeptRule",
    "Key",
    "KeyReused",
    "KeyedModel",
    "LeaseLost",
    "LimitReached",
    "Limits",
    "ListChildren",
    "LoadTimeout",
    "LostResult",
    "McpCallTimeout",
    "McpConnectTimeout",
    "McpError",
    "McpListTimeout",
    "McpLoginFailed",
    "McpNeedsLogin",
    "McpOutcomeUnknown",
    "McpPingTimeout",
    "McpServer",
    "McpTimeout",
    "McpUnavailable",
    "Memory",
    "MemoryBlock",
    "MemoryKind",
    "MemoryRecord",
    "Message",
    "MessageAdded",
    "MessageDropped",
    "MessagePromoted",
    "MessageQueued",
    "MessagesDropped",
    "Model",
    "ModelCallFailed",
    "ModelChoice",
    "ModelContext",
    "ModelDeadlines",
    "ModelError",
    "ModelFacts",
    "ModelFunction",
    "NewChat",
    "NewToken",
    "NoTurn",
    "NoWorker",
    "NotFound",
    "Noted",
    "Occurrence",
    "OccurrenceState",
    "OnUnknown",
    "Once",
    "OpenCall",
    "OpenCallKind",
    "OpenCallLine",
    "OpenCallRecord",
    "OutcomeUnknown",
    "OutputFormat",
    "OutputInvalid",
    "OutputSpec",
    "OwnerBudget",
    "OwnerDeleted",
    "OwnerLimits",
    "OwnershipLost",
    "Part",
    "Passage",
    "PassageKind",
    "Paused",
    "PermissionMode",
    "Permissions",
    "Phase",
    "PlanItem",
    "PreviewReset",
    "Price",
    "Principal",
    "ProviderError",
    "ProviderTimeout",
    "Purse",
    "Queued",
    "Reach",
    "Read",
    "Reasoning",
    "ReasoningAdded",
    "RecordError",
    "RefusedError",
    "Replay",
    "Request",
    "Responded",
    "Restarted",
    "Retention",
    "RetryPolicy",
    "Retrying",
    "Role",
    "Rulebook",
    "Ruling",
    "Run",
    "RunContext",
    "RunningTool",
    "Sampling",
    "Sandbox",
    "Schedule",
    "ScheduleRecord",
    "ScheduleState",
    "SchemaError",
    "Scope",
    "SearchEngine",
    "SendMode",
    "Sent",
    "Settings",
    "SilenceTimeout",
    "Skills",
    "SlashCommand",
    "SlashCommandFailed",
    "Snapshot",
    "Spawned",
    "StaleWriter",
    "Standing",
    "State",
    "StopRequested",
    "StoreAuth",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreGone",
    "StoreOptions",
    "StoreReadOnly",
    "StoreTimeout",
    "StoreUnavailable",
    "SubAgent",
    "Synthetic",
    "Terms",
    "Text",
    "TextAdded",
    "ToChild",
    "Token",
    "TokenKind",
    "TooManyRequests",
    "TooManyStreams",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolFailed",
    "ToolOutput",
    "ToolResult",
    "ToolSpec",
    "TraceSource",
    "Traced",
    "Trouble",
    "Turn",
    "TurnEnded",
    "TurnError",
    "TurnFailed",
    "TurnResumed",
    "TurnRunning",
    "TurnStarted",
    "TurnStopped",
    "TurnTimeout",
    "TurnUsage",
    "TurnView",
    "TurnWaiting",
    "TurnWaits",
    "Unauthorized",
    "UnknownAgent",
    "UnknownEntry",
    "UnknownRecord",
    "Update",
    "Usage",
    "UsageTotal",
    "Veto",
    "WakeDeadlines",
    "WebCache",
    "WentBack",
    "Whereabouts",
    "Worker",
    "WorkerSettings",
    "Write",
    "WrongCursor",
    "__version__",
    "agent_tools",
    "ask_user",
    "browse_tools",
    "client_tool",
    "coding_agent",
    "default_model",
    "diagnostics",
    "fetch_tool",
    "file_tools",
    "http_app",
    "http_tools",
    "install_cache",
    "load_config",
    "look_tool",
    "plan_of",
    "plan_tool",
    "read_result_tool",
    "session_tools",
    "shell_tool",
    "sleep_until",
    "tool",
    "transcribe_tool",
    "web_search_tool",
]

__version__ = "0.1.0"

if _sys.platform not in ("linux", "darwin"):
    raise ImportError(
        f"holdfast runs on Linux and macOS, and this is {_sys.platform!r}. "
        "It stands on file locks, process groups and signals as these two have them."
    )

# Module -> the public names that it defines, `there as here` where they are called otherwise. A name added here goes
# into __all__ too, and as a real import under `if TYPE_CHECKING`, where type checkers look; a test compares them.
_NAMES: dict[str, str] = {
    "holdfast.agent": "Agent, AgentLimits, CompactionPolicy, Memory",
    "holdfast.app": "App, ChatSettings, diagnostics",
    "holdfast.chat": "Chat",
    "holdfast.config": (
        "Config, ConfigSettings, ModelFacts, PermissionMode, Permissions, Price, Retention, WorkerSettings, "
        "load_config"
    ),
    "holdfast.core.budgets": "BudgetLeft",
    "holdfast.core.deadlines": "ModelDeadlines, WakeDeadlines",
    "holdfast.core.limits": "Limits",
    "holdfast.core.memory": (
        "Block as MemoryBlock, Found as FoundMemory, MemoryKind, MemoryRecord, Passage, PassageKind"
    ),
    "holdfast.memory": "AppMemory",
    "holdfast.store.memory_blocks": "BlockVersion",
    "holdfast.core.records": (
        "Always, Call as CallRecord, CallState, Cause, ChatRecord, ClientTool, Expansion, External, Failure, File, "
        "KeptRule, Message, NewChat, OnUnknown, OutputFormat, Part, Phase, Purse, Queued, Reasoning, "
        "Replay, Role, Sampling, SendMode, Snapshot, State, Synthetic, Terms, Text, ToolCall, ToolResult"
    ),
    "holdfast.core.retry": "RetryPolicy",
    "holdfast.core.updates": "TurnUsage",
    "holdfast.core.schedules": "Cron, Every, Occurrence, OccurrenceState, Once, ScheduleRecord, ScheduleState",
    "holdfast.declared_schedules": "Schedule",
    "holdfast.errors": (
        "AdmissionTimeout, CallTimeout, CallerError, ConfigError, ConnectTimeout, ConnectionFailed, "
        "CorruptRecord, DrainFailed, FirstByteTimeout, Forbidden, HoldfastError, InvalidInput, KeyReused, LeaseLost, "
        "LimitReached, LoadTimeout, LostResult, McpCallTimeout, McpConnectTimeout, McpError, McpListTimeout, "
        "McpLoginFailed, McpNeedsLogin, McpOutcomeUnknown, McpPingTimeout, McpTimeout, McpUnavailable, "
        "MessageDropped, ModelCallFailed, "
        "ModelError, NoTurn, NoWorker, NotFound, OutcomeUnknown, OutputInvalid, OwnershipLost, "
        "ProviderError, ProviderTimeout, RecordError, RefusedError, SchemaError, SilenceTimeout, "
        "SlashCommandFailed, "
        "StaleWriter, StoreAuth, StoreBusy, StoreClosed, StoreCorrupt, StoreError, StoreFull, StoreGone, "
        "StoreReadOnly, StoreTimeout, StoreUnavailable, TooManyRequests, TooManyStreams, ToolFailed, TurnError, "
        "TurnFailed, TurnRunning, TurnStopped, TurnTimeout, TurnWaits, Unauthorized, UnknownAgent, UnknownRecord, "
        "WentBack, WrongCursor"
    ),
    "holdfast.events": (
        "AgentNamed, AnyEntry, AttemptFailed, CallAnswered, CallAsked, CallBegan, CallChanged, CallDone, "
        "CallDrafted, CallProgress, CallView, CallsStarted, ChatArchived, ChatCreated, ChatFailed, "
        "ChatHandedOver, ChatRenamed, ChatRepaired, ChatRetried, ChatTakenOver, Compacted, CompactionFailed, "
        "Delta, DescendantAnswered, DescendantAsking, "
        "Event, Finished, Happened, HistoryCut, MessageAdded, MessagePromoted, MessageQueued, "
        "MessagesDropped, Noted, Paused, PreviewReset, ReasoningAdded, Responded, Restarted, Retrying, "
        "StopRequested, TextAdded, TraceSource, Traced, TurnEnded, TurnResumed, TurnStarted, TurnView, "
        "TurnWaiting, UnknownEntry, Update"
    ),
    "holdfast.hooks": "Arguments, Ask, Hook, RunContext, Veto",
    "holdfast.log_context": "ContextFilter",
    "holdfast.jwt_issuer": "JwtIssuer",
    "holdfast.mcp_servers": "McpServer",
    "holdfast.webhook_settings": "DeclaredWebhook",
    "holdfast.models.base": "Model, OutputSpec, Request, Settings, ToolSpec, Usage",
    "holdfast.models.calls": "Completed, FailedAttempt",
    "holdfast.models.choice": "KeyedModel, ModelChoice, ModelContext, ModelFunction",
    "holdfast.models.resolve": "default_model",
    "holdfast.owner_limits": "Budgets, OwnerLimits",
    "holdfast.principals": "Principal, Scope",
    "holdfast.server.http": "http_app",
    "holdfast.standing": "Doing, Standing, Trouble",
    "holdfast.store.budgets": "Grouping, OwnerBudget, UsageTotal",
    "holdfast.store.records": "Answer, ChatFilter, ChatLine, HistoryRow, Key, StoreOptions",
    "holdfast.store.open_calls": "OpenCallKind, OpenCallLine, OpenCallRecord",
    "holdfast.store.sub_agents": "SubAgent",
    "holdfast.store.tokens": "NewToken, Token, TokenKind",
    "holdfast.system.clock": "Clock",
    "holdfast.system.sandbox": "Sandbox",
    "holdfast.transfer": "Imported, OwnerDeleted",
    "holdfast.tools.base": "Answered, Approval, Delegation, ListChildren, Spawned, ToChild, Tool, ToolOutput, tool",
    "holdfast.tools.browser.tools": "browse_tools",
    "holdfast.tools.coding_agents.programs": "CodingAccess, CodingProgram, EventRule",
    "holdfast.tools.coding_agents.tool": "coding_agent",
    "holdfast.tools.context": "ToolContext",
    "holdfast.tools.files.tools": "file_tools",
    "holdfast.tools.media.look": "look_tool",
    "holdfast.tools.media.transcribe": "transcribe_tool",
    "holdfast.tools.outside": "ask_user, client_tool, sleep_until",
    "holdfast.tools.permissions.acts": "Act, ActsOf, CallTool, Extent, Reach, Read, Run, Whereabouts, Write",
    "holdfast.tools.permissions.decision": "Decision",
    "holdfast.tools.permissions.modes": "Ruling",
    "holdfast.tools.permissions.rulebook": "Rulebook",
    "holdfast.tools.plan": "PlanItem, plan_of, plan_tool",
    "holdfast.tools.results": "read_result_tool",
    "holdfast.tools.shell.sessions": "session_tools",
    "holdfast.tools.shell.tool": "shell_tool",
    "holdfast.tools.sub_agents": "agent_tools",
    "holdfast.tools.web.cache": "WebCache, install_cache",
    "holdfast.tools.web.fetch": "fetch_tool",
    "holdfast.tools.web.http_request": "http_tools",
    "holdfast.tools.web.search": "SearchEngine, web_search_tool",
    "holdfast.worker.tool_calls": "RunningTool",
    "holdfast.schedules": "AppSchedules",
    "holdfast.skills.shelf": "Skills",
    "holdfast.slash_commands": "SlashCommand",
    "holdfast.store.schedules": "Backfilled",
    "holdfast.worker.worker": "Worker",
    "holdfast.turn": "OpenCall, Sent, Turn",
}


def _homes() -> dict[str, tuple[str, str]]:
    """Public name -> its module, and its name there."""
    found = {}
    for module, names in _NAMES.items():
        for named in names.split(", "):
            there, _, here = named.partition(" as ")
            found[here or there] = (module, there)
    return found


_HOMES = _homes()

TYPE_CHECKING = False  # as in typing, which is not worth its import here
if TYPE_CHECKING:
    from holdfast.agent import Agent, AgentLimits, CompactionPolicy, Memory
    from holdfast.app import App, ChatSettings, diagnostics
    from holdfast.chat import Chat
    from holdfast.config import (
        Config,
        ConfigSettings,
        ModelFacts,
        PermissionMode,
        Permissions,
        Price,
        Retention,
        WorkerSettings,
        load_config,
    )
    from holdfast.core.budgets import BudgetLeft
    from holdfast.core.deadlines import ModelDeadlines, WakeDeadlines
    from holdfast.core.limits import Limits
    from holdfast.core.memory import Block as MemoryBlock
    from holdfast.core.memory import Found as FoundMemory
    from holdfast.core.memory import MemoryKind, MemoryRecord, Passage, PassageKind
    from holdfast.core.records import (
        Always,
        CallState,
        Cause,
        ChatRecord,
        ClientTool,
        Expansion,
        External,
        Failure,
        File,
        KeptRule,
        Message,
        NewChat,
        OnUnknown,
        OutputFormat,
        Part,
        Phase,
        Purse,
        Queued,
        Reasoning,
        Replay,
        Role,
        Sampling,
        SendMode,
        Snapshot,
        State,
        Synthetic,
        Terms,
        Text,
        ToolCall,
        ToolResult,
    )
    from holdfast.core.records import (
        Call as CallRecord,
    )
    from holdfast.core.retry import RetryPolicy
    from holdfast.core.schedules import (
        Cron,
        Every,
        Occurrence,
        OccurrenceState,
        Once,
        ScheduleRecord,
        ScheduleState,
    )
    from holdfast.core.updates import TurnUsage
    from holdfast.declared_schedules import Schedule
    from holdfast.errors import (
        AdmissionTimeout,
        CallerError,
        CallTimeout,
        ConfigError,
        ConnectionFailed,
        ConnectTimeout,
        CorruptRecord,
        DrainFailed,
        FirstByteTimeout,
        Forbidden,
        HoldfastError,
        InvalidInput,
        KeyReused,
        LeaseLost,
        LimitReached,
        LoadTimeout,
        LostResult,
        McpCallTimeout,
        McpConnectTimeout,
        McpError,
        McpListTimeout,
        McpLoginFailed,
        McpNeedsLogin,
        McpOutcomeUnknown,
        McpPingTimeout,
        McpTimeout,
        McpUnavailable,
        MessageDropped,
        ModelCallFailed,
        ModelError,
        NotFound,
        NoTurn,
        NoWorker,
        OutcomeUnknown,
        OutputInvalid,
        OwnershipLost,
        ProviderError,
        ProviderTimeout,
        RecordError,
        RefusedError,
        SchemaError,
        SilenceTimeout,
        SlashCommandFailed,
        StaleWriter,
        StoreAuth,
        StoreBusy,
        StoreClosed,
        StoreCorrupt,
        StoreError,
        StoreFull,
        StoreGone,
        StoreReadOnly,
        StoreTimeout,
        StoreUnavailable,
        ToolFailed,
        TooManyRequests,
        TooManyStreams,
        TurnError,
        TurnFailed,
        TurnRunning,
        TurnStopped,
        TurnTimeout,
        TurnWaits,
        Unauthorized,
        UnknownAgent,
        UnknownRecord,
        WentBack,
        WrongCursor,
    )
    from holdfast.events import (
        AgentNamed,
        AnyEntry,
        AttemptFailed,
        CallAnswered,
        CallAsked,
        CallBegan,
        CallChanged,
        CallDone,
        CallDrafted,
        CallProgress,
        CallsStarted,
        CallView,
        ChatArchived,
        ChatCreated,
        ChatFailed,
        ChatHandedOver,
        ChatRenamed,
        ChatRepaired,
        ChatRetried,
        ChatTakenOver,
        Compacted,
        CompactionFailed,
        Delta,
        DescendantAnswered,
        DescendantAsking,
        Event,
        Finished,
        Happened,
        HistoryCut,
        MessageAdded,
        MessagePromoted,
        MessageQueued,
        MessagesDropped,
        Noted,
        Paused,
        PreviewReset,
        ReasoningAdded,
        Responded,
        Restarted,
        Retrying,
        StopRequested,
        TextAdded,
        Traced,
        TraceSource,
        TurnEnded,
        TurnResumed,
        TurnStarted,
        TurnView,
        TurnWaiting,
        UnknownEntry,
        Update,
    )
    from holdfast.hooks import Arguments, Ask, Hook, RunContext, Veto
    from holdfast.jwt_issuer import JwtIssuer
    from holdfast.log_context import ContextFilter
    from holdfast.mcp_servers import McpServer
    from holdfast.memory import AppMemory
    from holdfast.models.base import Model, OutputSpec, Request, Settings, ToolSpec, Usage
    from holdfast.models.calls import Completed, FailedAttempt
    from holdfast.models.choice import KeyedModel, ModelChoice, ModelContext, ModelFunction
    from holdfast.models.resolve import default_model
    from holdfast.owner_limits import Budgets, OwnerLimits
    from holdfast.principals import Principal, Scope
    from holdfast.schedules import AppSchedules
    from holdfast.server.http import http_app
    from holdfast.skills.shelf import Skills
    from holdfast.slash_commands import SlashCommand
    from holdfast.standing import Doing, Standing, Trouble
    from holdfast.store.budgets import Grouping, OwnerBudget, UsageTotal
    from holdfast.store.memory_blocks import BlockVersion
    from holdfast.store.open_calls import OpenCallKind, OpenCallLine, OpenCallRecord
    from holdfast.store.records import Answer, ChatFilter, ChatLine, HistoryRow, Key, StoreOptions
    from holdfast.store.schedules import Backfilled
    from holdfast.store.sub_agents import SubAgent
    from holdfast.store.tokens import NewToken, Token, TokenKind
    from holdfast.system.clock import Clock
    from holdfast.system.sandbox import Sandbox
    from holdfast.tools.base import (
        Answered,
        Approval,
        Delegation,
        ListChildren,
        Spawned,
        ToChild,
        Tool,
        ToolOutput,
        tool,
    )
    from holdfast.tools.browser.tools import browse_tools
    from holdfast.tools.coding_agents.programs import CodingAccess, CodingProgram, EventRule
    from holdfast.tools.coding_agents.tool import coding_agent
    from holdfast.tools.context import ToolContext
    from holdfast.tools.files.tools import file_tools
    from holdfast.tools.media.look import look_tool
    from holdfast.tools.media.transcribe import transcribe_tool
    from holdfast.tools.outside import ask_user, client_tool, sleep_until
    from holdfast.tools.permissions.acts import Act, ActsOf, CallTool, Extent, Reach, Read, Run, Whereabouts, Write
    from holdfast.tools.permissions.decision import Decision
    from holdfast.tools.permissions.modes import Ruling
    from holdfast.tools.permissions.rulebook import Rulebook
    from holdfast.tools.plan import PlanItem, plan_of, plan_tool
    from holdfast.tools.results import read_result_tool
    from holdfast.tools.shell.sessions import session_tools
    from holdfast.tools.shell.tool import shell_tool
    from holdfast.tools.sub_agents import agent_tools
    from holdfast.tools.web.cache import WebCache, install_cache
    from holdfast.tools.web.fetch import fetch_tool
    from holdfast.tools.web.http_request import http_tools
    from holdfast.tools.web.search import SearchEngine, web_search_tool
    from holdfast.transfer import Imported, OwnerDeleted
    from holdfast.turn import OpenCall, Sent, Turn
    from holdfast.webhook_settings import DeclaredWebhook
    from holdfast.worker.tool_calls import RunningTool
    from holdfast.worker.worker import Worker
else:  # a type checker would take every misspelt name for a real one

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, there = _HOMES[name]
        value = getattr(_import_module(module), there)
        globals()[name] = value
        return value


del TYPE_CHECKING


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
