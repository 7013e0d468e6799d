"""`tool_choice` of either protocol: what the model may call, and what it has to."""

from typing import Any

from holdfast.core.records import Frozen
from holdfast.errors import InvalidInput

REQUIRED = "required"


class ToolChoice(Frozen):
    """`forced`: "required", or the name of a tool. `allowed`: only these; None is all."""

    forced: str | None = None
    allowed: tuple[str, ...] | None = None

    def allows(self, name: str) -> bool:
        return self.allowed is None or name in self.allowed


ANY = ToolChoice()
NONE = ToolChoice(allowed=())


def tool_choice_of(given: Any) -> ToolChoice:
    """Raises InvalidInput. `none` turns the agent's own tools off as well."""
    if given in (None, "auto"):
        return ANY
    if given == "none":
        return NONE
    if given == REQUIRED:
        return ToolChoice(forced=REQUIRED)
    if isinstance(given, dict) and given.get("type") == "function":
        return ToolChoice(forced=_name_of(given))
    if isinstance(given, dict) and given.get("type") == "allowed_tools":
        return _allowed(given)
    raise _unknown()


def _allowed(given: dict[str, Any]) -> ToolChoice:
    inner = given.get("allowed_tools", given)
    tools, mode = (inner.get("tools"), inner.get("mode", "auto")) if isinstance(inner, dict) else (None, None)
    if not isinstance(tools, list) or mode not in ("auto", REQUIRED):
        raise _unknown()
    names = tuple(_name_of(tool) for tool in tools)
    return ToolChoice(forced=REQUIRED if mode == REQUIRED else None, allowed=names)


def _name_of(given: Any) -> str:
    """In chat completions it is inside of `function`."""
    inner = given.get("function", given) if isinstance(given, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str) or not name:
        raise _unknown()
    return name


def _unknown() -> InvalidInput:
    words = "can be `auto`, `none`, `required`, a function by its name, or `allowed_tools` of functions"
    return InvalidInput("tool_choice", words)
