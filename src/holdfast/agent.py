"""An agent: a named recipe of model, instructions, tools and limits. Plain data; nothing here runs."""

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from msgspec import Raw

from holdfast.config import ModelFacts
from holdfast.core.compaction import CompactionPolicy, problem_of
from holdfast.core.deadlines import MODEL_DEADLINES, ModelDeadlines
from holdfast.core.decide import Budget
from holdfast.core.records import ClientTool, Frozen
from holdfast.core.retry import RetryPolicy
from holdfast.errors import ConfigError
from holdfast.hooks import Hook, RunContext
from holdfast.mcp_servers import McpServer
from holdfast.models.base import Model, Settings, ToolSpec, Usage
from holdfast.output import Output
from holdfast.tools.base import Tool, tools_by_name


class Agent:
    """What runs a chat: a model, and what it is told and given.

    >>> support = Agent("support", model="openai:gpt-5", fallbacks=["anthropic:claude-sonnet-4-5"],
    ...                 instructions="Be brief.", budget=Budget(steps=20))
    >>> support.name
    'support'

    `output` is the type of its answers (`chat.output()` returns one). `context_limit` counts where a model does not
    say how much it can hold; near it the chat is compacted as `compaction` says, by `summary_model` (None: by the
    agent's own). `deadlines` bound each attempt at a model call; `retry` says how often and how patiently
    it is repeated (None: as the app does). `title_model` names the chats. `deps(context)`, async or not, makes what
    the tools and hooks of one chat share: a database handle, the user's account; it runs again when another worker
    takes over.
    """

    def __init__(
        self,
        name: str,
        model: str | Model,
        *,
        instructions: str = "",
        tools: Sequence[Tool | McpServer | Callable[..., Any]] = (),
        fallbacks: Sequence[str | Model] = (),
        active_tools: Sequence[str] | None = None,
        settings: Settings | None = None,
        deadlines: ModelDeadlines = MODEL_DEADLINES,
        retry: RetryPolicy | None = None,
        budget: Budget | None = None,
        prices: "Mapping[str, Price] | None" = None,
        output: Any = None,
        context_limit: int | None = None,
        compaction: CompactionPolicy | None = None,
        summary_model: str | Model | None = None,
        hooks: Sequence[Hook] = (),
        title_model: str | Model | None = None,
        deps: Callable[[RunContext], Any] | None = None,
        parallel_calls_max: int = 8,
        chats_max: int | None = None,
    ) -> None:
        if not name:
            raise ConfigError("an agent needs a name")
        self.name = name
        self.model = model
        self.fallbacks = tuple(fallbacks)
        self.instructions = instructions
        self.tools = tools_by_name([item for item in tools if not isinstance(item, McpServer)])
        self.servers = tuple(item for item in tools if isinstance(item, McpServer))  # whose tools come and go
        self.active_tools = None if active_tools is None else tuple(active_tools)
        self.settings = settings or Settings()
        self.deadlines = deadlines
        self.retry = retry
        self.budget = budget or Budget()
        self.prices = dict(prices or {})
        self.output = Output(output) if output is not None else None
        self.context_limit = context_limit
        self.compaction = compaction or CompactionPolicy()
        self.summary_model = summary_model
        self.hooks = tuple(hooks)
        self.title_model = title_model
        self.deps = deps
        self.parallel_calls_max = parallel_calls_max
        self.chats_max = chats_max  # at the same time, in one worker; None: as many as the worker has room for
        self._check()

    def _check(self) -> None:
        self._check_servers()
        self.check_tools(self.active_tools)
        if self.context_limit is not None and self.context_limit < 1:
            raise ConfigError(f"agent {self.name!r}: context_limit must be at least 1, it is {self.context_limit}")
        if problem := problem_of(self.compaction):
            raise ConfigError(f"agent {self.name!r}: compaction: {problem}")
        if self.parallel_calls_max < 1:
            raise ConfigError(f"agent {self.name!r}: parallel_calls_max must be at least 1")
        if self.chats_max is not None and self.chats_max < 1:
            raise ConfigError(f"agent {self.name!r}: chats_max must be at least 1, it is {self.chats_max}")

    def _check_servers(self) -> None:
        """No name can come to mean two tools, whatever a server will list."""
        for server in self.servers:
            others = [other.prefix for other in self.servers if other is not server]
            if clashes := [name for name in (*self.tools, *others) if name.startswith(server.prefix)]:
                raise ConfigError(
                    f"agent {self.name!r}: {clashes[0]!r} begins like the tools of MCP server {server.name!r}: "
                    "give one of them another name"
                )

    def with_servers(self, servers: Sequence[McpServer]) -> "Agent":
        """The same agent with more tool servers. Raises ConfigError."""
        if not servers:
            return self
        agent = copy.copy(self)
        agent.servers = (*self.servers, *servers)
        agent._check_servers()
        return agent

    def offered(
        self, *limits: Sequence[str] | None, served: Mapping[str, Tool] = MappingProxyType({})
    ) -> dict[str, Tool]:
        """The tools a model is shown: those of the agent and, `served`, of its tool servers, narrowed by agent, chat
        and turn. None limits nothing.
        """
        tools = {**self.tools, **served}
        names = set(tools)
        for limit in (self.active_tools, *limits):
            if limit is not None:
                names &= set(limit)
        return {name: tool for name, tool in tools.items() if name in names}

    def check_tools(self, names: Sequence[str] | None) -> None:
        """Raises ConfigError for names that are not among its tools. What a tool server has, only it knows."""
        prefixes = tuple(server.prefix for server in self.servers)
        if unknown := {name for name in names or () if name not in self.tools and not name.startswith(prefixes)}:
            raise ConfigError(
                f"agent {self.name!r}: active_tools names {', '.join(sorted(unknown))}, "
                f"which are not among its tools ({', '.join(sorted(self.tools)) or 'none'})"
            )

    def check_client_tools(self, tools: Sequence[Tool | ClientTool]) -> tuple[ClientTool, ...]:
        """As they are stored. Raises ConfigError for one that a client cannot run, or that this agent has itself."""
        declared = tuple(tool.client if isinstance(tool, Tool) else tool for tool in tools)
        for tool, client in zip(tools, declared, strict=True):
            if client is None:
                raise ConfigError(f"{tool.name!r} is not a client's tool: make it with client_tool(…)")
            if client.name in self.tools:
                raise ConfigError(
                    f"agent {self.name!r} has a tool {client.name!r} itself: give the client's another name"
                )
        return tuple(client for client in declared if client is not None)

    def check_prices(self, facts: Mapping[str, ModelFacts]) -> None:
        """Raises ConfigError for a cost budget where a model has no price, neither here nor in the settings."""
        if self.budget.cost is None:
            return
        paid = (self.model, *self.fallbacks, *(() if self.summary_model is None else (self.summary_model,)))
        for name in map(_name, paid):
            if self.price_of(name, facts) is None:
                raise ConfigError(
                    f"agent {self.name!r}: a cost budget needs a price for every model; give "
                    f'prices={{{name!r}: Price(…)}}, or [models."{name}"] with input_price and output_price in '
                    "holdfast.toml"
                )

    def price_of(self, model: str, facts: Mapping[str, ModelFacts]) -> "Price | None":
        if (price := self.prices.get(model)) is not None:
            return price
        said = facts.get(model)
        if said is None or said.input_price is None or said.output_price is None:
            return None
        return Price(
            input=said.input_price,
            output=said.output_price,
            cached=said.cached_price,
            cache_write=said.cache_write_price,
        )

    def cost_of(self, model: str, usage: Usage | None, facts: Mapping[str, ModelFacts]) -> float:
        """In the currency of its prices; 0 where a price is not known."""
        price = self.price_of(model, facts)
        if price is None or usage is None:
            return 0.0
        cached = price.input if price.cached is None else price.cached
        written = CACHE_WRITE * price.input if price.cache_write is None else price.cache_write
        fresh = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
        given = fresh * price.input + usage.cached_tokens * cached + usage.cache_write_tokens * written
        return (given + usage.output_tokens * price.output) / 1e6

    @cached_property
    def fingerprint(self) -> str:
        """Changes when what the model is told changes; recorded with every step."""
        digest = hashlib.blake2b(digest_size=8)
        for text in (_name(self.model), self.instructions, *sorted(self.tools)):
            digest.update(text.encode() + b"\0")
        for tool in self.tools.values():
            digest.update(bytes(tool.schema))
        return digest.hexdigest()

    def fingerprint_with(self, tools: Mapping[str, Tool]) -> str:
        """The same where some of the tools are a server's."""
        served = [tool for name, tool in tools.items() if name not in self.tools]
        if not served:
            return self.fingerprint
        digest = hashlib.blake2b(self.fingerprint.encode(), digest_size=8)
        for tool in served:
            digest.update(tool.name.encode() + b"\0" + bytes(tool.schema))
        return digest.hexdigest()


CACHE_WRITE = 1.25  # what providers that charge for writing to their cache ask, in the price of input


class Price(Frozen):
    """What a model costs, per million tokens, in the user's own currency."""

    input: float
    output: float
    cached: float | None = None  # of input that the provider had in its cache; None: as any input
    cache_write: float | None = None  # of input that it put there; None: a quarter more than any input


def tool_specs(tools: Mapping[str, Tool]) -> tuple[ToolSpec, ...]:
    return tuple(
        ToolSpec(name=tool.name, description=tool.description, schema=Raw(bytes(tool.schema)))
        for tool in tools.values()
    )


def _name(model: str | Model) -> str:
    return model if isinstance(model, str) else model.name
