"""holdfast: a crash-durable, never-hanging runtime for LLM agents.

This module owns the public names and nothing else. Importing it stays cheap: a public name is loaded from
its home the first time somebody asks for it, so no database driver, provider client or server comes along.
"""

import sys as _sys
from importlib import import_module as _import_module

__all__ = [
    "Agent",
    "App",
    "Arguments",
    "Ask",
    "Budget",
    "Chat",
    "CompactionPolicy",
    "Hook",
    "McpServer",
    "ModelDeadlines",
    "RetryPolicy",
    "ShellPolicy",
    "StoreOptions",
    "Tool",
    "ToolContext",
    "Veto",
    "__version__",
    "agent_tools",
    "ask_user",
    "client_tool",
    "diagnostics",
    "fetch_tool",
    "file_tools",
    "shell_tool",
    "sleep_until",
    "tool",
]

__version__ = "0.1.0"

if _sys.platform not in ("linux", "darwin"):
    raise ImportError(
        f"holdfast runs on Linux and macOS, and this is {_sys.platform!r}. "
        "It stands on file locks, process groups and signals as these two have them."
    )

# Public name -> the module that defines it. A name added here goes into __all__ too, and as a real import
# under `if TYPE_CHECKING`, where type checkers look.
_HOMES: dict[str, str] = {
    "Agent": "holdfast.agent",
    "App": "holdfast.app",
    "Arguments": "holdfast.hooks",
    "Ask": "holdfast.hooks",
    "Budget": "holdfast.core.decide",
    "Chat": "holdfast.chat",
    "CompactionPolicy": "holdfast.core.compaction",
    "Hook": "holdfast.hooks",
    "McpServer": "holdfast.mcp_servers",
    "ModelDeadlines": "holdfast.core.deadlines",
    "RetryPolicy": "holdfast.core.retry",
    "ShellPolicy": "holdfast.tools.shell.policy",
    "StoreOptions": "holdfast.store.base",
    "Tool": "holdfast.tools.base",
    "ToolContext": "holdfast.tools.context",
    "Veto": "holdfast.hooks",
    "agent_tools": "holdfast.tools.sub_agents",
    "ask_user": "holdfast.tools.outside",
    "client_tool": "holdfast.tools.outside",
    "diagnostics": "holdfast.app",
    "fetch_tool": "holdfast.tools.web.fetch",
    "file_tools": "holdfast.tools.files.tools",
    "shell_tool": "holdfast.tools.shell.tool",
    "sleep_until": "holdfast.tools.outside",
    "tool": "holdfast.tools.base",
}

TYPE_CHECKING = False  # as in typing, which is not worth its import here
if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.app import App, diagnostics
    from holdfast.chat import Chat
    from holdfast.core.compaction import CompactionPolicy
    from holdfast.core.deadlines import ModelDeadlines
    from holdfast.core.decide import Budget
    from holdfast.core.retry import RetryPolicy
    from holdfast.hooks import Arguments, Ask, Hook, Veto
    from holdfast.mcp_servers import McpServer
    from holdfast.store.base import StoreOptions
    from holdfast.tools.base import Tool, tool
    from holdfast.tools.context import ToolContext
    from holdfast.tools.files.tools import file_tools
    from holdfast.tools.outside import ask_user, client_tool, sleep_until
    from holdfast.tools.shell.policy import ShellPolicy
    from holdfast.tools.shell.tool import shell_tool
    from holdfast.tools.sub_agents import agent_tools
    from holdfast.tools.web.fetch import fetch_tool
else:  # a type checker would take every misspelt name for a real one

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(_import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


del TYPE_CHECKING


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
