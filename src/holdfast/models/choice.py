"""The model as a function of the chat: an owner's own key, an owner's own model.

`Agent(model=choose)` with `choose(context)`, async or not. What it may return, and what is wrong with what it did
return; it is called by the worker, under a deadline, isolated as everything that users bring.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeGuard

from msgspec import Struct

from holdfast.errors import ConfigError
from holdfast.models.base import Model


class ModelContext(Struct, frozen=True):
    """Whose model is wanted."""

    chat_id: str
    agent: str
    owner: str
    metadata: Mapping[str, Any]


class KeyedModel(Struct, frozen=True):
    """A model by its name with a key of its own, instead of the environment's, and, if need be, another address.

    >>> KeyedModel("anthropic:claude-sonnet-5-5", key="sk-not-shown")
    KeyedModel('anthropic:claude-sonnet-5-5')
    """

    name: str
    key: str
    url: str | None = None  # of the provider's API; for `compatible:MODEL@URL` it is in the name

    def __repr__(self) -> str:
        return f"KeyedModel({self.name!r})"


ModelChoice = str | Model | KeyedModel
ModelFunction = Callable[[ModelContext], ModelChoice | Awaitable[ModelChoice]]


def is_function(model: object) -> TypeGuard[ModelFunction]:
    return callable(model) and not hasattr(model, "stream")


def label_of(model: object) -> str:
    """For people, and for what is known before the function was asked."""
    if isinstance(model, str):
        return model
    name = getattr(model, "name", None)
    return name if isinstance(name, str) else f"function {getattr(model, '__qualname__', type(model).__name__)}"


def checked(model: object, label: str) -> ModelChoice:
    """Raises ConfigError for what is no model."""
    if isinstance(model, KeyedModel) and not all(isinstance(text, str) for text in (model.name, model.key)):
        raise ConfigError(f"{label} returned a KeyedModel whose name or key is no text")
    if isinstance(model, str | KeyedModel):
        return model
    if hasattr(model, "stream") and isinstance(getattr(model, "name", None), str):
        return model  # type: ignore[return-value]
    wanted = "it has to return a model's name, a Model, or KeyedModel(name, key=…)"
    raise ConfigError(f"{label} returned a {type(model).__name__}: {wanted}")
