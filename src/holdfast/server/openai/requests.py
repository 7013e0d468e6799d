"""What clients send, checked. A parameter that changes what they get is honoured or refused by name; one that does
not (a hint, an identifier for the client's statistics) is taken and left alone.
"""

from collections.abc import Collection
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import Request

from holdfast.core.history import TOOL_NAME
from holdfast.core.records import ClientTool, OutputFormat, Sampling
from holdfast.errors import InvalidInput
from holdfast.server.bodies import DECODED, FirstWrong, check_fields
from holdfast.server.openai.tool_choice import REQUIRED, ToolChoice, tool_choice_of

NAMES_MAX = 16
NAME_CHARS_MAX = 64
VALUE_CHARS_MAX = 512
LOGPROBS = "message.output_text.logprobs"


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=NAME_CHARS_MAX)], Annotated[str, Field(max_length=VALUE_CHARS_MAX)]],
    Field(max_length=NAMES_MAX),
]


class Given(BaseModel):
    model_config = ConfigDict(extra="forbid")

    _few = model_validator(mode="before")(check_fields)


# The first wrong one is told, not each of them.
Records = Annotated[list[dict[str, Any]], FirstWrong()]
Words = Annotated[list[str], FirstWrong()]


class TextAsked(Given):
    format: dict[str, Any] | None = None
    verbosity: str | None = None  # a hint


class StreamOptions(BaseModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Asked(Given):
    """What both protocols have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Records | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    metadata: Metadata | None = None
    # taken and left alone
    store: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    top_logprobs: int | None = None
    # refused unless they ask for nothing
    moderation: Any = None

    def must_be(self, **wanted: tuple[Any, ...]) -> None:
        for name, allowed in wanted.items():
            if getattr(self, name) not in allowed:
                raise InvalidInput(name, "is not something that this server can do; leave it out")

    @property
    def choice(self) -> ToolChoice:
        return tool_choice_of(self.tool_choice)

    def declared(self) -> tuple[ClientTool, ...]:
        """The tools that the client brings."""
        raise NotImplementedError

    def client_tools(self, wait_s: float) -> tuple[ClientTool, ...]:
        """Those that the model may call. A call waits for its client so long."""
        expires_ms = int(wait_s * 1000)
        return tuple(
            replace(tool, expires_ms=expires_ms) for tool in self.declared() if self.choice.allows(tool.name)
        )

    def active_tools(self) -> tuple[str, ...] | None:
        """Of the agent's own: a client's tool has no place among them."""
        allowed, theirs = self.choice.allowed, {tool.name for tool in self.declared()}
        return None if allowed is None else tuple(name for name in allowed if name not in theirs)

    def check_choice(self, own: Collection[str]) -> None:
        """`own`: the names of the agent's tools."""
        choice, known = self.choice, {*own, *(tool.name for tool in self.declared())}
        if choice.forced is not None and not known:
            raise InvalidInput("tool_choice", "asks for a call, and there is no tool")
        if choice.forced not in (None, REQUIRED, *known):
            raise InvalidInput("tool_choice", f"names {choice.forced!r}, which is not among the tools")


class CompletionAsked(Asked):
    messages: Records = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | Words | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    verbosity: str | None = None
    prediction: Any = None
    n: int | None = None
    logprobs: bool | None = None
    logit_bias: dict[str, float] | None = None
    modalities: Words | None = None
    audio: Any = None
    response_format: dict[str, Any] | None = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None

    def check(self) -> None:
        self.must_be(
            n=(None, 1),
            logprobs=(None, False),
            logit_bias=(None, {}),
            modalities=(None, ["text"]),
            audio=(None,),
            frequency_penalty=(None, 0),
            presence_penalty=(None, 0),
            top_logprobs=(None, 0),
            functions=(None,),
            function_call=(None,),
            web_search_options=(None,),
            moderation=(None,),
        )

    @property
    def sampling(self) -> Sampling:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            stop=stop,
            seed=self.seed,
            tool_choice=self.choice.forced,
            parallel_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning_effort,
            output=self.output,
        )

    @property
    def output(self) -> OutputFormat | None:
        given = self.response_format
        return _format("response_format", given, given.get("json_schema") if given is not None else None)

    def declared(self) -> tuple[ClientTool, ...]:
        return tuple(_function(at, tool, tool.get("function")) for at, tool in enumerate(self.tools or ()))


class ConversationAsked(BaseModel):
    id: str


class ResponseAsked(Asked):
    input: str | Records | None = None
    instructions: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    reasoning: dict[str, Any] | None = None
    include: Words | None = None
    truncation: str | None = None
    text: TextAsked | None = None
    max_tool_calls: int | None = None
    conversation: str | ConversationAsked | None = None
    client_metadata: Any = None  # a client's own notes on itself, as Codex sends them
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    prompt: Any = None
    context_management: Any = None
    image: Any = None
    access_programs: Any = None

    def check(self) -> None:
        self.must_be(
            truncation=(None, "disabled", "auto"),
            max_tool_calls=(None,),
            presence_penalty=(None, 0),
            frequency_penalty=(None, 0),
            prompt=(None,),
            context_management=(None,),
            image=(None,),
            access_programs=(None,),
            moderation=(None,),
            top_logprobs=(None, 0),
        )
        if self.conversation is not None and self.previous_response_id is not None:
            raise InvalidInput("conversation", "goes on by itself: leave out `previous_response_id`")
        if LOGPROBS in (self.include or ()):
            raise InvalidInput("include", f"{LOGPROBS} is not something that this server can tell; leave it out")
        if not isinstance((self.reasoning or {}).get("effort"), str | None):
            raise InvalidInput("reasoning.effort", "is a word, such as `low`")

    @property
    def output(self) -> OutputFormat | None:
        given = self.text.format if self.text is not None else None
        return _format("text.format", given, given)

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_output_tokens,
            tool_choice=self.choice.forced,
            parallel_calls=self.parallel_tool_calls,
            reasoning_effort=(self.reasoning or {}).get("effort"),
            output=self.output,
        )

    def declared(self) -> tuple[ClientTool, ...]:
        return tuple(_function(at, tool, tool) for at, tool in enumerate(self.tools or ()))

    @property
    def conversation_id(self) -> str | None:
        given = self.conversation
        return given.id if isinstance(given, ConversationAsked) else given

    def echo(self) -> dict[str, Any]:
        """What the response shows again of what was asked for, with every field that its shape has."""
        found = {name: getattr(self, name) for name in _ECHOED}
        if self.tools is not None:
            found["tools"] = [{**_TOOL, **tool} for tool in self.tools]
        if self.reasoning is not None:
            found["reasoning"] = {name: self.reasoning.get(name) for name in ("effort", "summary")}
        if self.output is not None and self.text is not None:
            shape = {} if self.output.any_object else {"description": None, "strict": self.output.strict}
            found["text"] = {"format": {**shape, **(self.text.format or {})}}
        if self.conversation is not None:
            found["conversation"] = {"id": self.conversation_id}
        return {name: value for name, value in found.items() if value is not None}


_ECHOED = (
    "previous_response_id", "instructions", "metadata", "background", "temperature", "top_p", "max_output_tokens",
    "tool_choice", "parallel_tool_calls", "truncation", "user", "safety_identifier", "prompt_cache_key",
)  # fmt: skip
_TOOL: dict[str, Any] = {"description": None, "parameters": None, "strict": None}


AskedT = TypeVar("AskedT", bound=Given)


async def read(kind: type[AskedT], request: Request) -> AskedT:
    """Raises InvalidInput that names the parameter. What is not called JSON is taken for it."""
    try:
        if DECODED in request.scope:
            return kind.model_validate(request.scope[DECODED])
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        words = "is not a parameter that this server knows" if first["type"] == "extra_forbidden" else first["msg"]
        raise InvalidInput(where, words) from error


def _format(where: str, given: dict[str, Any] | None, spec: Any) -> OutputFormat | None:
    """None: a text. It goes to the agent's model for this turn; whose provider cannot do it fails the turn."""
    if given is None or given.get("type") == "text":
        return None
    if given.get("type") == "json_object":
        return OutputFormat(name="json_object", schema=Raw(b'{"type":"object"}'), any_object=True)
    if given.get("type") != "json_schema":
        raise InvalidInput(where, "can be `text`, `json_object`, or `json_schema` with a schema for the answer")
    spec = spec if isinstance(spec, dict) else {}
    name, schema, described = spec.get("name"), spec.get("schema"), spec.get("description")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name) or not isinstance(schema, dict):
        raise InvalidInput(where, "needs a name of 1 to 64 letters, digits, _ or -, and a schema")
    if isinstance(described, str):
        schema = {"description": described, **schema}
    return OutputFormat(name=name, schema=Raw(msgspec.json.encode(schema)), strict=spec.get("strict") is True)


def _function(at: int, tool: dict[str, Any], spec: Any) -> ClientTool:
    if tool.get("type") != "function" or not isinstance(spec, dict):
        raise InvalidInput(f"tools[{at}].type", "can be `function`; other tools are the agent's own")
    name, schema = spec.get("name"), spec.get("parameters")
    description = spec.get("description") or ""
    if not isinstance(name, str) or not isinstance(description, str) or not isinstance(schema, dict | None):
        raise InvalidInput(f"tools[{at}]", "needs a name, and may have a description and parameters as a JSON schema")
    schema = schema or {"type": "object", "properties": {}}
    return ClientTool(name=name, description=description, schema=Raw(msgspec.json.encode(schema)))
