"""The contract of a tool: a Python function with a schema, a replay class, a deadline and limits.

Arguments are validated before the body runs; what does not fit goes back to the model as a tool error. Whatever a
body raises or returns becomes text: a tool can fail, it cannot fail the chat.
"""

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, get_type_hints, overload

import msgspec
from msgspec import Raw

from holdfast.core.codec import storable
from holdfast.core.history import TOOL_NAME
from holdfast.core.records import ClientTool, External, File, Frozen, Message, NewChat, OnUnknown, Replay, SendMode
from holdfast.errors import ConfigError, ToolFailed
from holdfast.system.sandbox import Sandbox
from holdfast.tools.context import ToolContext
from holdfast.tools.permissions.acts import Act, ActsOf, CallTool, Whereabouts

TOOL_DEADLINE_S = 300.0
OUTPUT_BYTES_MAX = 1 << 20
FILES_BYTES_MAX = 6 << 20  # of the files in one result, as they are sent: in base64
FILES_MAX = 20
# Asked before each call, with its arguments: the question that a person has to answer, or None. It is isolated like a
# hook, so it may be slow or fail, and then a person is asked. By raising ToolFailed it denies the call, in its words.
Approval = Callable[[dict[str, Any], ToolContext], str | None]
Isolation = Literal["none", "process"]
CAUSES_MAX = 10  # of a tool's error that are told
COUNTED_CHARS = 1 << 18


class Delegation(Frozen):
    """A call that is answered from outside: by a person, a client, a child chat or time. No worker waits for it."""

    external: External
    question: str | None = None
    expires_at: int | None = None  # for a timer: when it rings
    child_id: str | None = None
    child_turn: int | None = None
    spawn: NewChat | None = None


class Spawned(Frozen):
    """A call that is answered at once, with a child chat that is made in the same transaction."""

    content: str
    spawn: NewChat


class ToChild(Frozen):
    """A call that says something to a child of its chat, or, without a message, stops it and all that is below it. It
    is answered in the same transaction, with what came of it.
    """

    child_id: str
    message: Message | None = None
    mode: SendMode = "queue"


class ListChildren(Frozen):
    """A call that is answered at once, with the children of its chat."""

    limit: int


class ToolOutput(Frozen):
    """What a body returns that has files for the model to see, such as images and PDFs: data: URIs, or URLs. Those
    beyond 20, or 6 MiB in all, are left out, and the text says so. `untrusted`: this one comes from outside, though
    not all that the tool returns does.
    """

    text: str = ""
    files: tuple[File, ...] = ()
    untrusted: bool = False

    def __str__(self) -> str:
        return self.text


class Answered(Frozen):
    """A call that is answered at once, with this."""

    content: str


HandedOver = Delegation | Spawned | ToChild | ListChildren | Answered


class Tool(Frozen):
    name: str
    description: str
    schema: Raw
    function: Callable[..., Any]
    validate: Callable[[str], dict[str, Any]]
    context_parameter: str | None = None
    replay: Replay = Replay.UNSAFE
    deadline_s: float = TOOL_DEADLINE_S
    output_bytes_max: int = OUTPUT_BYTES_MAX
    needs_approval: bool | Approval = False
    acts: ActsOf | None = None  # what its arguments come to; None: `call(NAME)`, for only it knows
    whereabouts: Whereabouts = Whereabouts()
    on_unknown: OnUnknown = "tell_model"
    untrusted: bool = False  # what it returns comes from outside, and is shown to the model as such
    recalls: bool = False  # its body asks for the results of the chat's earlier calls
    # Instead of a body: to whom the call is handed, and when. For our own tools: it runs on the event loop, so
    # it must not wait for anything.
    delegate: "Callable[[dict[str, Any], ToolContext, int], HandedOver] | None" = None
    client: ClientTool | None = None  # that the client runs, as it is stored where a chat declares it
    # Runs the body, isolated.
    elsewhere: "Callable[[dict[str, Any], ToolContext], Awaitable[str | ToolOutput]] | None" = None

    def acts_of(self, arguments: dict[str, Any]) -> Sequence[Act]:
        """What a call with these arguments does. May raise ToolFailed, which denies it, and whatever it likes."""
        return [CallTool(tool=self.name)] if self.acts is None else self.acts(arguments)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Called by hand, it is the function it was made from."""
        if self.context_parameter is not None and self.context_parameter not in kwargs:
            kwargs[self.context_parameter] = ToolContext()
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    replay: Replay | str = Replay.UNSAFE,
    deadline_s: float = TOOL_DEADLINE_S,
    output_bytes_max: int = OUTPUT_BYTES_MAX,
    needs_approval: bool | Approval = False,
    acts: ActsOf | None = None,
    root: str | os.PathLike[str] = ".",
    on_unknown: OnUnknown = "tell_model",
    isolation: Isolation = "none",
    environment: Sequence[str] = (),
    sandbox: Sandbox | None = None,
    untrusted: bool = False,
    description: str | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    replay: Replay | str = Replay.UNSAFE,
    deadline_s: float = TOOL_DEADLINE_S,
    output_bytes_max: int = OUTPUT_BYTES_MAX,
    needs_approval: bool | Approval = False,
    acts: ActsOf | None = None,
    root: str | os.PathLike[str] = ".",
    on_unknown: OnUnknown = "tell_model",
    isolation: Isolation = "none",
    environment: Sequence[str] = (),
    sandbox: Sandbox | None = None,
    untrusted: bool = False,
    description: str | None = None,
) -> Any:
    """Make a tool of a function: `@tool` or `@tool(replay="pure")`.

    >>> @tool(replay="idempotent", deadline_s=30)
    ... async def transfer(to: str, cents: int, context: ToolContext) -> str:
    ...     "Send money."
    ...     context.progress(f"sending {cents} cents")
    ...     return f"sent to {to}, under the key {context.key}"  # the same key after a crash: pass it to the bank
    >>> transfer.name, transfer.replay.value
    ('transfer', 'idempotent')

    The schema comes from its type hints, the description from its docstring. A parameter annotated with `ToolContext`
    gets the call's context and is not part of the schema.

    `acts(arguments)` says what a call does, so that the rules of `Permissions` on files, programs and hosts are for
    it, too: `acts=lambda arguments: [Read(path=arguments["path"])]`, below `root`. Without it a call is `call(NAME)`.
    `untrusted`: what it returns comes from outside, such as a page or a mail. The model is told that it is content
    to read and no instruction, and the result is marked in the journal.

    With `isolation="process"` each call's body runs in a process of its own, which a stop or the deadline ends even
    if it blocks. It must be a function of a module; it gets a minimal environment and the variables that
    `environment` names. With a `sandbox`, that process has what the sandbox says, and nothing else of this machine.
    See docs/how-to/shell.md.
    """

    def make(function: Callable[..., Any]) -> Tool:
        if deadline_s <= 0:
            raise ConfigError(f"tool {function.__name__!r}: deadline_s must be above 0, it is {deadline_s}")
        context_parameter, schema, validate = signature_of(function)
        elsewhere, asks = None, needs_approval
        if isolation == "process":
            from holdfast.tools.isolation.process import Isolated  # noqa: PLC0415  subprocess and all: only who wants it pays

            isolated = Isolated(function, context_parameter, output_bytes_max, environment, sandbox)
            elsewhere, asks = isolated.run, isolated.approval(name or function.__name__, needs_approval)
        elif isolation != "none":
            raise ConfigError(
                f"tool {function.__name__!r}: isolation is {isolation!r}; it can be 'none' or 'process'"
            )
        if sandbox is not None and elsewhere is None:
            raise ConfigError(f"tool {function.__name__!r}: a sandbox is for a process: add isolation='process'")
        return Tool(
            name=name or function.__name__,
            description=inspect.getdoc(function) or "" if description is None else description,
            schema=schema,
            function=function,
            validate=validate,
            context_parameter=context_parameter,
            replay=_replay(function.__name__, replay),
            deadline_s=deadline_s,
            output_bytes_max=output_bytes_max,
            needs_approval=asks,
            acts=acts,
            whereabouts=Whereabouts(root=os.fspath(root)),
            on_unknown=on_unknown,
            untrusted=untrusted,
            elsewhere=elsewhere,
        )

    return make if function is None else make(function)


def _replay(name: str, value: Replay | str) -> Replay:
    try:
        return Replay(value)
    except ValueError:
        known = ", ".join(repr(str(kind)) for kind in Replay)
        raise ConfigError(f"tool {name!r}: replay is {value!r}; it can be {known}") from None


def signature_of(function: Callable[..., Any]) -> tuple[str | None, Raw, Callable[[str], dict[str, Any]]]:
    import pydantic  # noqa: PLC0415  costs a tenth of a second, so only who makes a tool pays

    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    context_parameter = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(
                f"tool {function.__name__!r}: parameter {parameter.name!r} must be passable by name; "
                "a model names every argument"
            )
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext:
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hint, default)
    model = pydantic.create_model(
        f"{function.__name__}_arguments", __config__=pydantic.ConfigDict(extra="forbid"), **fields
    )
    schema = model.model_json_schema()
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)

    def validate(arguments: str) -> dict[str, Any]:
        try:
            found = model.model_validate_json(arguments or "{}")
        except pydantic.ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}"
                for item in error.errors(include_url=False, include_input=False)[:10]
            )
            raise ToolFailed(f"The arguments do not fit: {problems}") from None
        return {name: getattr(found, name) for name in fields}

    return context_parameter, Raw(msgspec.json.encode(schema)), validate


async def call_tool(
    tool: Tool,
    arguments: str,
    context: ToolContext,
    run_sync: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> ToolOutput:
    """Validate, run the body, and bound what it returns. Raises ToolFailed with a text for the model. Of a call that
    is cancelled already nothing is run.
    """
    if context.cancelled:
        raise ToolFailed("cancelled before it began; nothing was done")
    values = tool.validate(arguments)
    if tool.context_parameter is not None:
        values[tool.context_parameter] = context
    try:
        if tool.elsewhere is not None:
            result = await tool.elsewhere(values, context)
            return result if isinstance(result, ToolOutput) else ToolOutput(text=result)
        if tool.is_async:
            result = await tool.function(**values)
        else:
            result = await run_sync(lambda: tool.function(**values))
        return _bounded(result, tool.output_bytes_max)
    except (
        asyncio.CancelledError,
        GeneratorExit,
        ToolFailed,
    ):  # GeneratorExit: the loop is gone, and with it the call
        raise
    except BaseException as error:
        raise ToolFailed(_story_of(error)) from error


def _story_of(error: BaseException) -> str:
    """An error with what caused it: the model, and a reader of the chat, sees what the tool's author would."""
    told: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(told) < CAUSES_MAX:
        told.append(f"{type(seen).__name__}: {seen}" if str(seen) else type(seen).__name__)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return "\nbecause of ".join(told)


def _bounded(result: Any, bytes_max: int) -> ToolOutput:
    if not isinstance(result, ToolOutput):
        return ToolOutput(text=output_text(result, bytes_max))
    files: list[File] = []
    left_out, room = 0, FILES_BYTES_MAX
    for file in result.files:
        if len(files) == FILES_MAX or len(file.uri) > room:
            left_out += 1
            continue
        room -= len(file.uri)
        name = None if file.name is None else storable(file.name)
        files.append(
            File(media_type=storable(file.media_type), uri=storable(file.uri), name=name, size_bytes=file.size_bytes)
        )
    note = f"\n[{left_out} of {len(result.files)} files left out: they are too large to be shown]" if left_out else ""
    text = output_text(result.text, bytes_max) + note
    return ToolOutput(text=text, files=tuple(files), untrusted=result.untrusted)


def output_text(result: Any, bytes_max: int) -> str:
    """Text as it is, anything else as JSON; too much of it keeps its head and its tail."""
    if result is None:
        text = ""
    elif isinstance(result, str):
        text = result
    else:
        try:
            text = msgspec.json.encode(result, enc_hook=_encode_unknown).decode()
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise ToolFailed(
                f"The result of type {type(result).__name__} cannot be turned into JSON: {error}"
            ) from error
    if len(text) <= bytes_max:
        if text.isascii() and "\x00" not in text:
            return text
        text = storable(text)
    size = _byte_count(text)
    if size <= bytes_max:
        return text
    half = bytes_max // 2  # characters are bytes or more: no more of a long text than this is copied
    head = storable(text[:half]).encode()[:half].decode("utf-8", "ignore")
    tail = storable(text[-half:]).encode()[-half:].decode("utf-8", "ignore") if half else ""
    return f"{head}\n[… {size - bytes_max:,} bytes left out …]\n{tail}"


def _byte_count(text: str) -> int:
    """In UTF-8 as it would be stored, piece by piece: a copy of a gigabyte is another one."""
    longer = 2 * text.count("\x00")  # see `storable`
    if text.isascii():
        return len(text) + longer
    pieces = (text[at : at + COUNTED_CHARS] for at in range(0, len(text), COUNTED_CHARS))
    return sum(len(piece.encode("utf-8", "replace")) for piece in pieces) + longer


def _encode_unknown(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


def tools_by_name(tools: Sequence[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for item in tools:
        made = item if isinstance(item, Tool) else tool(item)
        if not TOOL_NAME.fullmatch(made.name):
            raise ConfigError(
                f"tool {made.name!r}: a name has 1 to 64 letters, digits, - and _, or providers refuse every "
                "request; give it another one with @tool(name=…)"
            )
        if made.name in found:
            raise ConfigError(f"two tools are named {made.name!r}: give one of them another name")
        found[made.name] = made
    return found
