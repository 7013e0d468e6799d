"""The prompts of an MCP server: as it lists them, and what a person writes behind their names as their arguments."""

import shlex
from collections.abc import Sequence

from holdfast.core.records import Frozen
from holdfast.errors import ToolFailed

PROMPTS_MAX = 256  # of one server
NAME_CHARS_MAX = 128
ARGUMENTS_MAX = 32  # of one prompt
PROMPT_BYTES_MAX = 256 << 10
DESCRIPTION_MAX = 500


class PromptArgument(Frozen):
    name: str
    required: bool = False


class ListedPrompt(Frozen):
    """A prompt as its server lists it."""

    name: str
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()

    @property
    def hint(self) -> str:
        return " ".join(one.name if one.required else f"[{one.name}]" for one in self.arguments)


def usable(listing: Sequence[ListedPrompt]) -> tuple[ListedPrompt, ...]:
    """Those that can be called by their names: without a blank, each name once, with arguments that can be shown."""
    found: dict[str, ListedPrompt] = {}
    for prompt in listing:
        names = (prompt.name, *(one.name for one in prompt.arguments))
        plain = all(0 < len(name) <= NAME_CHARS_MAX and name.isprintable() for name in names)
        one_word = not any(char.isspace() for char in prompt.name)
        if plain and one_word and len(prompt.arguments) <= ARGUMENTS_MAX and len(found) < PROMPTS_MAX:
            found.setdefault(prompt.name, prompt)
    return tuple(found.values())


def arguments_of(prompt: ListedPrompt, text: str) -> dict[str, str]:
    """`name=value` for what it declares, and the others in their order; quotes as a shell has them. All of the text
    is the one argument of a prompt that has one. Raises ToolFailed that says how it is called.
    """
    names = [one.name for one in prompt.arguments]
    if len(names) == 1 and text and not text.startswith(f"{names[0]}="):
        return {names[0]: text}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ToolFailed(f"its arguments cannot be read: {error}. It takes: {prompt.hint or 'none'}") from None
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name in names):
            name, value = next((name for name in names if name not in given), ""), word
        if not name or name in given:
            raise ToolFailed(f"{word[:100]!r} is one argument too many. It takes: {prompt.hint or 'none'}")
        given[name] = value
    if missing := [one.name for one in prompt.arguments if one.required and one.name not in given]:
        raise ToolFailed(f"{', '.join(missing)} is missing. It takes: {prompt.hint}")
    return given
