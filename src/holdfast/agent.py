"""An agent: a named recipe of model, instructions, tools and limits. Plain data; nothing here runs."""

import copy
import difflib
import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType, UnionType
from typing import Any, Generic, Literal, Never

import msgspec
from msgspec import Raw

from holdfast.config import ModelFacts, Permissions, Price
from holdfast.core.compaction import CompactionRules, problem_of
from holdfast.core.deadlines import MODEL_DEADLINES, ModelDeadlines
from holdfast.core.decide import Budget
from holdfast.core.memory import BLOCK_CHARS_MAX, BLOCK_NAME, BLOCKS_MAX, FACTS_MAX
from holdfast.core.records import ClientTool, Frozen
from holdfast.core.retry import RetryPolicy
from holdfast.errors import ConfigError
from holdfast.hooks import Hook, RunContext
from holdfast.mcp_servers import McpServer
from holdfast.models.base import Model, Settings, ToolSpec, Usage
from holdfast.models.choice import ModelFunction, is_function, label_of
from holdfast.output import Output, OutputT_co
from holdfast.skills.agents_md import AgentsMd
from holdfast.skills.shelf import Skills, SkillShelf
from holdfast.skills.tools import NAMES as SKILL_TOOLS
from holdfast.tools.base import Tool, tools_by_name
from holdfast.tools.permissions.examples import check_permissions


class AgentLimits(Budget):
    """What bounds an agent: a turn of it, and how much of it happens at the same time. None: no limit.

    A turn that reaches `steps` (model responses), `tokens`, `seconds` or `cost` ends with cause `budget`. `seconds`
    are those in which a worker worked on it: waiting for people, clients, sub-agents or a worker costs nothing.
    """

    @property
    def needs_prices(self) -> bool:
        return any(limit is not None for limit in (self.cost, self.chat_cost, self.family_cost))

    parallel_calls: int = 8  # tools of one chat that run at the same time
    result_chars: int | None = 32_000  # of one result that the model is shown; it reads the rest with `read_result`
    chats: int | None = None  # that one worker drives at the same time; None: as many as it has room for


class CompactionPolicy(CompactionRules):
    """When and how an agent's chats are compacted, and by which model: see docs/how-to/long-chats.md."""

    model: str | Model | ModelFunction | None = None  # that makes the summaries; None: the agent's own
    context_limit: int | None = None  # tokens that the agent's model can hold, where the model does not say


class Memory(Frozen):
    """What the chats of an agent and an owner remember: see docs/how-to/memory.md.

    `blocks` are short texts that the model edits, each with what it is for; `facts` how many it may keep. A chat is
    shown the blocks, the newest facts and what the last chats were about, as they were when it began.
    """

    blocks: Mapping[str, str] = msgspec.field(
        default_factory=lambda: {"notes": "what is worth knowing in every chat"}
    )
    block_chars: int = 2_000
    facts: int = 1_000
    facts_shown: int = 20
    episodes: bool = True  # a summary of each chat that came to rest
    episodes_shown: int = 5
    episode_model: str | Model | ModelFunction | None = None  # None: the agent's own
    episode_after_s: float = 300.0  # at rest, before it is made
    search: Literal["agent", "owner"] = "agent"  # whose past chats are searched: this agent's, or all of the owner's

    def problem(self) -> str | None:
        limits = (
            ("block_chars", self.block_chars, 1, BLOCK_CHARS_MAX),
            ("facts", self.facts, 0, FACTS_MAX),
            ("facts_shown", self.facts_shown, 0, 100),
            ("episodes_shown", self.episodes_shown, 0, 100),
            ("blocks", len(self.blocks), 0, BLOCKS_MAX),
        )
        for name, value, least, most in limits:
            if not least <= value <= most:
                return f"{name} is from {least} to {most:,}, not {value:,}"
        if bad := [name for name in self.blocks if not BLOCK_NAME.fullmatch(name)]:
            return f"a block's name has 1 to 64 letters, digits, - and _: {bad[0]!r} has others"
        return None if self.episode_after_s >= 0 else "episode_after_s is 0 or more"


class Agent(Generic[OutputT_co]):
    """What runs a chat: a model, and what it is told and given.

    >>> support = Agent("support", model="openai:gpt-6.1-terra", fallbacks=["anthropic:claude-sonnet-5-5"],
    ...                 instructions="Be brief.", limits=AgentLimits(steps=20))
    >>> support.name
    'support'

    `model` may be a function of a `ModelContext`, async or not, that returns a name, a `Model` or a `KeyedModel`: an
    owner's own key or model. It is asked once in each turn.
    `output` is the type of its answers: `Agent(…, output=Reply)` is an `Agent[Reply]`, and gives a `Turn[Reply]`.
    `settings` go with each model call, `deadlines` bound each attempt at one, `retry` says how often and how
    patiently it is repeated (None: as the app does).
    `limits` bound its turns, `compaction` keeps its chats within what its model can hold, `title_model` names them.
    `active_tools` narrows its tools, those of tool servers too. `permissions` are its mode and its rules, beside the
    app's: docs/how-to/permissions.md. `skills` are instructions that it loads when a task needs them, or a person
    calls them with `/name`; of `agents_md`, a folder, the nearest AGENTS.md is told to it: docs/how-to/skills.md.
    `deps(context)`, async or not, makes what the tools and hooks of one chat share: a database handle, the user's
    account; it runs again when another worker takes over. `memory` outlives its chats: docs/how-to/memory.md.
    """

    def __init__(
        self,
        name: str,
        model: str | Model | ModelFunction,
        *,
        instructions: str = "",
        tools: Sequence[Tool | McpServer | Callable[..., Any]] = (),
        output: type[OutputT_co] | UnionType | None = None,
        fallbacks: Sequence[str | Model | ModelFunction] = (),
        settings: Settings | None = None,
        deadlines: ModelDeadlines = MODEL_DEADLINES,
        retry: RetryPolicy | None = None,
        limits: AgentLimits | None = None,
        compaction: CompactionPolicy | None = None,
        hooks: Sequence[Hook] = (),
        deps: Callable[[RunContext], Any] | None = None,
        active_tools: Sequence[str] | None = None,
        permissions: Permissions | None = None,
        title_model: str | Model | ModelFunction | None = None,
        memory: Memory | None = None,
        skills: Sequence[Skills] = (),
        agents_md: str | os.PathLike[str] | None = None,
        **unknown: Never,
    ) -> None:
        if not name:
            raise ConfigError("an agent needs a name")
        if unknown:
            raise ConfigError(_unknown_parameter(name, next(iter(unknown))))
        self.name = name
        self.model = model
        self.instructions = instructions
        self.memory = memory
        own = () if memory is None else (_memory_tool(memory),)
        self.tools = tools_by_name([*(item for item in tools if not isinstance(item, McpServer)), *own])
        self.servers = tuple(item for item in tools if isinstance(item, McpServer))  # whose tools come and go
        self.output = Output(output) if output is not None else None
        self.fallbacks = tuple(fallbacks)
        self.settings = settings or Settings()
        self.deadlines = deadlines
        self.retry = retry
        self.limits = limits or AgentLimits()
        self.compaction = compaction or CompactionPolicy()
        self.hooks = tuple(hooks)
        self.deps = deps
        self.active_tools = None if active_tools is None else tuple(active_tools)
        self.permissions = permissions
        self.title_model = title_model
        self.shelf = SkillShelf(skills) if skills else None
        self.agents_md = AgentsMd(agents_md) if agents_md is not None else None
        self._check()

    def _check(self) -> None:
        if self.shelf is not None and (taken := [name for name in SKILL_TOOLS if name in self.tools]):
            raise ConfigError(
                f"agent {self.name!r}: {taken[0]!r} is a tool of its skills: give your own another name"
            )
        self._check_servers()
        self.check_tools(self.active_tools)
        if self.permissions is not None:
            try:
                check_permissions(self.permissions, agent=self.name)
            except ConfigError as error:
                raise ConfigError(f"agent {self.name!r}: {error}") from None
        if problem := problem_of(self.compaction):
            raise ConfigError(f"agent {self.name!r}: compaction: {problem}")
        if self.memory is not None and (problem := self.memory.problem()):
            raise ConfigError(f"agent {self.name!r}: memory: {problem}")
        if problem := self._problem_of_numbers():
            raise ConfigError(f"agent {self.name!r}: {problem}")

    def check_price(self, model: str, facts: Mapping[str, ModelFacts]) -> None:
        """Of one that a function chose. Raises ConfigError."""
        if self.limits.needs_prices and price_of(model, facts) is None:
            raise ConfigError(f"a limit on the cost needs a price for every model, and {model!r} has none")

    def _problem_of_numbers(self) -> str | None:
        for where, number in (
            ("compaction: context_limit", self.compaction.context_limit),
            ("limits: parallel_calls", self.limits.parallel_calls),
            ("limits: result_chars", self.limits.result_chars),
            ("limits: chats", self.limits.chats),
        ):
            if number is not None and number < 1:
                return f"{where} must be at least 1, it is {number}"
        return None

    def _check_servers(self) -> None:
        """No name can come to mean two tools, whatever a server will list."""
        for server in self.servers:
            others = [other.prefix for other in self.servers if other is not server]
            own = (*self.tools, *(SKILL_TOOLS if self.shelf is not None else ()))
            if clashes := [name for name in (*own, *others) if name.startswith(server.prefix)]:
                raise ConfigError(
                    f"agent {self.name!r}: {clashes[0]!r} begins like the tools of MCP server {server.name!r}: "
                    "give one of them another name"
                )

    def with_servers(self, servers: Sequence[McpServer]) -> "Agent[OutputT_co]":
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
        own = {*self.tools, *(SKILL_TOOLS if self.shelf is not None else ())}
        if unknown := {name for name in names or () if name not in own and not name.startswith(prefixes)}:
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

    def check_prices(self, facts: Mapping[str, ModelFacts], *, limited: bool = False) -> None:
        """Raises ConfigError for a limit on the cost where a model has no price. `limited`: an owner has one."""
        if not self.limits.needs_prices and not limited:
            return
        summaries = self.compaction.model
        episodes = None if self.memory is None else self.memory.episode_model
        paid = (self.model, *self.fallbacks, *(one for one in (summaries, episodes) if one is not None))
        for name in (label_of(model) for model in paid if not is_function(model)):  # of a function's when it chooses
            if price_of(name, facts) is None:
                raise ConfigError(
                    f"agent {self.name!r}: a limit on the cost needs a price for every model; give "
                    f'App(models={{{name!r}: ModelFacts(price=Price(…))}}), or [models."{name}"] with '
                    "price = { input = …, output = … } in holdfast.toml"
                )

    def cost_of(self, model: str, usage: Usage | None, facts: Mapping[str, ModelFacts]) -> float:
        """In the currency of its prices; 0 where a price is not known."""
        price = price_of(model, facts)
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
        for text in (label_of(self.model), self.instructions, *sorted(self.tools)):
            digest.update(text.encode() + b"\0")
        for tool in self.tools.values():
            digest.update(bytes(tool.schema))
        return digest.hexdigest()

    def fingerprint_with(self, tools: Mapping[str, Tool], model: str, told: str = "") -> str:
        """The same where some of the tools are a server's or its skills', the model is a function's choice, or the
        model is told what stands in files.
        """
        served = [tool for name, tool in tools.items() if name not in self.tools]
        chosen = model if is_function(self.model) else ""
        if not served and not chosen and not told:
            return self.fingerprint
        digest = hashlib.blake2b(self.fingerprint.encode(), digest_size=8)
        digest.update(chosen.encode())
        digest.update(told.encode("utf-8", "replace"))
        for tool in served:
            digest.update(tool.name.encode() + b"\0" + bytes(tool.schema))
        return digest.hexdigest()


def _memory_tool(memory: Memory) -> Tool:
    from holdfast.tools.memory.tool import memory_tool  # noqa: PLC0415  a schema's parser: only who has one pays

    return memory_tool(tuple(memory.blocks))


CACHE_WRITE = 1.25  # what providers that charge for writing to their cache ask, in the price of input


def price_of(model: str, facts: Mapping[str, ModelFacts]) -> Price | None:
    said = facts.get(model)
    return said.price if said is not None else None


def tool_specs(tools: Mapping[str, Tool]) -> tuple[ToolSpec, ...]:
    return tuple(
        ToolSpec(name=tool.name, description=tool.description, schema=Raw(bytes(tool.schema)))
        for tool in tools.values()
    )


def _unknown_parameter(agent: str, name: str) -> str:
    known = [known for known in inspect.signature(Agent).parameters if known not in ("name", "model", "unknown")]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return f"agent {agent!r}: {name} is no parameter of Agent; {hint}"
