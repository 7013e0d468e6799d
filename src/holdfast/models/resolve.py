"""From a name to a model: `openai:gpt-5`, `compatible:qwen3@http://localhost:8000/v1`, `scripted`.

Nothing heavy is imported until a model that needs it is asked for. Keys come from the environment and from nowhere
else; an error names the variable, never the key.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError
from holdfast.models.base import Model
from holdfast.models.scripted import ECHO, ScriptedModel, read_script

if TYPE_CHECKING:
    from holdfast.models.openai_chat import Fragments
    from holdfast.models.transport import Transport

OPENAI_URL = "https://api.openai.com/v1"

# Tokens of request and response together, from the provider's own pages. A model that is not here has none.
OPENAI_CONTEXT_LIMITS: Mapping[str, int] = {
    "gpt-3.5-turbo": 16_385,
    "gpt-4": 8_192,
    "gpt-4-turbo": 128_000,
    "gpt-4o": 128_000,
    "gpt-4o-mini": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4.1-mini": 1_047_576,
    "gpt-4.1-nano": 1_047_576,
    "gpt-5": 400_000,
    "gpt-5-mini": 400_000,
    "gpt-5-nano": 400_000,
    "o1": 200_000,
    "o3": 200_000,
    "o3-mini": 200_000,
    "o4-mini": 200_000,
}
_SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}$")


class Models:
    """Makes models and keeps them: one per name. Owned by the app, which closes it."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._models: dict[str, Model] = {}
        self._transport: Transport | None = None
        self._fragments: Fragments | None = None

    def get(self, name: str) -> Model:
        """Raises `ConfigError` that says what is missing."""
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = self._make(name)
        return model

    def figures(self) -> dict[str, int]:
        """For /health."""
        figures = {} if self._transport is None else self._transport.figures()
        if self._fragments is not None:
            figures |= {"fragment_bytes": self._fragments.bytes, "fragment_bytes_max": self._fragments.bytes_max}
        return figures

    async def aclose(self) -> None:
        """Close all connections. What still streams fails."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    def _make(self, name: str) -> Model:
        provider, colon, rest = name.partition(":")
        make = _MAKERS.get(provider)
        if make is None:
            near = difflib.get_close_matches(provider, _MAKERS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"there is no provider {provider!r} (in model {name!r}). Known are: {', '.join(_MAKERS)}{hint}"
            )
        if colon and not rest:
            raise ConfigError(f"model {name!r} lacks its name: {_FORMS[provider]}")
        return make(self, name, rest)

    def transport(self) -> "Transport":
        """The one transport, made inside the event loop when the first call needs it."""
        if self._transport is None:
            module = import_module("holdfast.models.transport")
            self._transport = module.Transport()
        assert self._transport is not None
        return self._transport

    def _http_model(
        self, name: str, model: str, url: str, *, provider: str, key: str | None, max_tokens_as: str,
        context_limit: int | None = None,
    ) -> Model:  # fmt: skip
        http, chat = import_module("holdfast.models.http"), import_module("holdfast.models.openai_chat")
        if self._fragments is None:
            self._fragments = chat.Fragments()
        wire = chat.OpenAIChat(model, max_tokens_as=max_tokens_as, fragments=self._fragments)
        made: Model = http.HttpModel(
            name, wire, url, self.transport, provider=provider, key=key, context_limit=context_limit
        )
        return made

    def _openai(self, name: str, model: str) -> Model:
        if not model:
            raise ConfigError(f"model {name!r} lacks its name: {_FORMS['openai']}")
        return self._http_model(
            name,
            model,
            self._environ.get("OPENAI_BASE_URL") or OPENAI_URL,
            provider="openai",
            key=self._key("OPENAI_API_KEY", name),
            max_tokens_as="max_completion_tokens",  # newer models refuse the other one
            context_limit=OPENAI_CONTEXT_LIMITS.get(_SNAPSHOT.sub("", model)),
        )

    def _compatible(self, name: str, rest: str) -> Model:
        model, _, url = rest.rpartition("@http")  # a model's name may hold an @ of its own
        if not model:
            raise ConfigError(f"model {name!r} lacks its name or URL: {_FORMS['compatible']}")
        url = f"http{url}"
        endpoint = import_module("holdfast.models.transport").Endpoint(url)
        return self._http_model(
            name,
            model,
            url,
            provider=f"compatible:{endpoint.authority}",
            key=self._environ.get("COMPATIBLE_API_KEY") or None,  # many need none
            max_tokens_as="max_tokens",
        )

    def _scripted(self, name: str, path: str) -> Model:
        return ScriptedModel(script=read_script(path) if path else ECHO, name=name)

    def _key(self, variable: str, name: str) -> str:
        key = self._environ.get(variable, "").strip()
        if not key:
            raise ConfigError(f"model {name!r} needs a key: set the environment variable {variable}")
        if not key.isascii() or not key.isprintable():
            raise ConfigError(
                f"the environment variable {variable} does not hold a key: it has characters no key has"
            )
        return key


_MAKERS: Mapping[str, Callable[[Models, str, str], Model]] = {
    "openai": Models._openai,
    "compatible": Models._compatible,
    "scripted": Models._scripted,
}
_FORMS = {
    "openai": "write openai:MODEL, such as openai:gpt-5",
    "compatible": "write compatible:MODEL@URL, such as compatible:qwen3@http://localhost:8000/v1",
    "scripted": "write scripted, or scripted:FILE for a script of your own",
}
