"""What clients send, checked. A parameter that changes what they get is honoured or refused by name; one that does
not (a hint, an identifier for the client's statistics) is taken and left alone.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast.core.history import TOOL_NAME
from holdfast.core.records import ClientTool, OutputFormat, Sampling
from holdfast.errors import InvalidInput

NAMES_MAX = 16
LOGPROBS = "message.output_text.logprobs"


class Given(BaseModel):
    model_config = ConfigDict(extra="forbid")


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
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    metadata: dict[str, str] | None = Field(None, max_length=NAMES_MAX)
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
    def no_tools(self) -> bool:
        return bool(self.tool_choice == "none")

    def check_choice(self) -> None:
        if self.tool_choice not in (None, "auto", "none"):
            raise InvalidInput(
                "tool_choice", "can be `auto` or `none`; which tools are called is the agent's decision"
            )


class CompletionAsked(Asked):
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    verbosity: str | None = None
    prediction: Any = None
    n: int | None = None
    logprobs: bool | None = None
    logit_bias: dict[str, float] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    response_format: dict[str, Any] | None = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None

    def check(self) -> None:
        self.check_choice()
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
            parallel_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning_effort,
            output=self.output,
        )

    @property
    def output(self) -> OutputFormat | None:
        given = self.response_format
        return _format("response_format", given, given.get("json_schema") if given is not None else None)

    def client_tools(self) -> tuple[ClientTool, ...]:
        if self.no_tools:
            return ()
        return tuple(_function(at, tool, tool.get("function")) for at, tool in enumerate(self.tools or ()))


class ResponseAsked(Asked):
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    truncation: str | None = None
    text: TextAsked | None = None
    max_tool_calls: int | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    image: Any = None
    access_programs: Any = None

    def check(self) -> None:
        self.check_choice()
        self.must_be(
            truncation=(None, "disabled", "auto"),
            max_tool_calls=(None,),
            conversation=(None,),
            prompt=(None,),
            context_management=(None,),
            image=(None,),
            access_programs=(None,),
            moderation=(None,),
            top_logprobs=(None, 0),
        )
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
            parallel_calls=self.parallel_tool_calls,
            reasoning_effort=(self.reasoning or {}).get("effort"),
            output=self.output,
        )

    def client_tools(self) -> tuple[ClientTool, ...]:
        return () if self.no_tools else tuple(_function(at, tool, tool) for at, tool in enumerate(self.tools or ()))

    def echo(self) -> dict[str, Any]:
        """What the response shows again of what was asked for."""
        names = ("previous_response_id", "instructions", "metadata", "background", "temperature", "top_p")
        more = ("max_output_tokens", "tools", "tool_choice", "parallel_tool_calls", "truncation")
        found = {name: getattr(self, name) for name in (*names, *more)}
        if self.output is not None and self.text is not None:
            found["text"] = {"format": self.text.format}
        return {name: value for name, value in found.items() if value is not None}


AskedT = TypeVar("AskedT", bound=Asked)


def read(kind: type[AskedT], body: bytes) -> AskedT:
    """Raises InvalidInput that names the parameter."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        words = "is not a parameter that this server knows" if first["type"] == "extra_forbidden" else first["msg"]
        raise InvalidInput(where, words) from error


def _format(where: str, given: dict[str, Any] | None, spec: Any) -> OutputFormat | None:
    """None: a text. It goes to the agent's model for this turn; whose provider cannot do it fails the turn."""
    if given is None or given.get("type") == "text":
        return None
    if given.get("type") != "json_schema":
        raise InvalidInput(where, "can be `text`, or `json_schema` with a schema that the answer has to fit")
    spec = spec if isinstance(spec, dict) else {}
    name, schema, described = spec.get("name"), spec.get("schema"), spec.get("description")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name) or not isinstance(schema, dict):
        raise InvalidInput(where, "needs a name of 1 to 64 letters, digits, _ or -, and a schema")
    if isinstance(described, str):
        schema = {"description": described, **schema}
    return OutputFormat(name=name, schema=Raw(msgspec.json.encode(schema)), strict=spec.get("strict") is True)


def _function(at: int, tool: dict[str, Any], spec: Any) -> ClientTool:
    """A call of it waits until its client answers, however long that takes."""
    if tool.get("type") != "function" or not isinstance(spec, dict):
        raise InvalidInput(f"tools[{at}].type", "can be `function`; other tools are the agent's own")
    name, schema = spec.get("name"), spec.get("parameters")
    description = spec.get("description") or ""
    if not isinstance(name, str) or not isinstance(description, str) or not isinstance(schema, dict | None):
        raise InvalidInput(f"tools[{at}]", "needs a name, and may have a description and parameters as a JSON schema")
    schema = schema or {"type": "object", "properties": {}}
    return ClientTool(name=name, description=description, schema=Raw(msgspec.json.encode(schema)), expires_ms=None)
