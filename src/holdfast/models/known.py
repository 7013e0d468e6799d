"""What is known of models: how much they can hold, from `known.toml` beside this module."""

import re
import tomllib
from functools import cache
from importlib.resources import files

import msgspec

from holdfast.core.records import Frozen

_SNAPSHOT = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|\d{3}|latest)$")


class Known(Frozen):
    """In tokens. `context`: request and response together; `output`: the response alone."""

    context: int | None = None
    output: int | None = None


NOTHING_KNOWN = Known()


@cache
def table() -> dict[str, dict[str, Known]]:
    """By provider and model."""
    text = files("holdfast.models").joinpath("known.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, dict[str, Known]])


def known_of(provider: str, model: str) -> Known:
    models = table().get(provider, {})
    name = model.removeprefix("models/")
    return models.get(name) or models.get(_SNAPSHOT.sub("", name)) or NOTHING_KNOWN
