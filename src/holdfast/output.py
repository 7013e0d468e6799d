"""Structured output: an agent may declare the type of its answer. The model is given its schema, the answer is
checked, and a program gets a value of that type. An answer that does not fit stays in history, with a message that
says why, and the model is asked once more.
"""

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from holdfast.core.records import Message, Role, Synthetic, Text
from holdfast.errors import OutputInvalid
from holdfast.models.base import OutputSpec

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # The type of an agent's answers. Who writes `Agent` or `Chat` alone means one of any type.
    OutputT = TypeVar("OutputT", default=Any)
    OutputT_co = TypeVar("OutputT_co", default=Any, covariant=True)
else:  # a default is known to Python 3.13 and to type checkers, and does nothing when the program runs
    from typing import TypeVar

    OutputT = TypeVar("OutputT")
    OutputT_co = TypeVar("OutputT_co", covariant=True)

REPAIRS_MAX: Final = 1
_PROBLEMS_MAX = 10


class Output:
    """`Output(Invoice)`: any type that pydantic knows. One that is no JSON object travels inside of one."""

    def __init__(self, kind: Any) -> None:
        import pydantic  # noqa: PLC0415  costs a tenth of a second, so only who declares a type pays

        self._invalid = pydantic.ValidationError
        self._adapter: Any = pydantic.TypeAdapter(kind)
        schema = self._adapter.json_schema()
        self._wrapped = schema.get("type") != "object"
        if self._wrapped:
            self._adapter = pydantic.TypeAdapter(pydantic.create_model("Output", result=(kind, ...)))
            schema = self._adapter.json_schema()
        name = getattr(kind, "__name__", "output")
        self.spec = OutputSpec(
            name=name if name.isidentifier() else "output", schema=Raw(msgspec.json.encode(schema))
        )

    def read(self, text: str) -> Any:
        """The value that a model's answer stands for. Raises OutputInvalid, which says what does not fit."""
        try:
            value = self._adapter.validate_json(_bare(text))
        except self._invalid as error:
            problems = [
                f"{'.'.join(map(str, item['loc'])) or 'the answer'}: {item['msg']}"
                for item in error.errors(include_url=False, include_input=False)[:_PROBLEMS_MAX]
            ]
            raise OutputInvalid(f"the answer is not a valid {self.spec.name}: {'; '.join(problems)}") from error
        return value.result if self._wrapped else value


def correction(message_id: str, problem: OutputInvalid, now: int) -> Message:
    """What the model is told of an answer that did not fit."""
    text = f"Your last message does not fit: {problem}. Answer again, with nothing but JSON that fits the schema."
    return Message(
        id=message_id,
        role=Role.USER,
        parts=(Text(text=text),),
        created_at=now,
        synthetic=Synthetic.INVALID_OUTPUT,
    )


def _bare(text: str) -> str:
    """Without the code fence that models like to put around JSON."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") + 1 : -3]
    return text
