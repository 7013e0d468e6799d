"""From a name to a model: `anthropic:claude-sonnet-5-5`, `local`, `compatible:qwen3@http://host:8000/v1`.

Nothing heavy is imported until a model that needs it is asked for. Keys come from the environment and from nowhere
else; an error names the variable, never the key.
"""

import difflib
import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config import Config, ModelFacts
from holdfast.errors import ConfigError
from holdfast.models.advice import Access
from holdfast.models.base import Model
from holdfast.models.choice import KeyedModel
from holdfast.models.known import known_of
from holdfast.models.scripted import ECHO, ScriptedModel, read_script
from holdfast.system.processes import Guards

if TYPE_CHECKING:
    from holdfast.models.http.model import Wire
    from holdfast.models.http.transport import Transport
    from holdfast.models.local.model import LocalServer
    from holdfast.models.wires.fragments import Fragments

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
GOOGLE_URL = "https://generativelanguage.googleapis.com"
GOOGLE_KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY")  # the first counts if both are set, as in Google's own client

_VERSION = re.compile(r"/v\d+[a-z0-9]*$")

CHOSEN_MAX = 256  # models that functions chose, kept for the next chat that gets the same

# The model of a user who names none: by the first key that is set, in this order.
DEFAULTS: Mapping[str, str] = {
    "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-5-5",
    "OPENAI_API_KEY": "openai:gpt-6.1-terra",
    **dict.fromkeys(GOOGLE_KEYS, "google:gemini-3.8-flash"),
}


def default_model(environ: Mapping[str, str]) -> str:
    """A model that works as things are: of a provider whose key is set, or else the one that needs none."""
    return next((model for variable, model in DEFAULTS.items() if environ.get(variable, "").strip()), "local")


class Models:
    """Makes models and keeps them: one per name. Owned by the app, which closes it. `facts`: what the user says of
    models, by name; it beats what holdfast knows."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        facts: Mapping[str, ModelFacts] | None = None,
        config: Config | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self.facts = facts or {}
        self._config = Config() if config is None else config
        self._servers: dict[Path, LocalServer] = {}
        self.guards = Guards()  # what keeps the processes of local models from outliving this one
        self._models: dict[str, Model] = {}
        self._chosen: OrderedDict[KeyedModel, Model] = OrderedDict()
        self._transport: Transport | None = None
        self._fragments: dict[tuple[str, str], Fragments] = {}

    def get(self, name: str) -> Model:
        """Raises `ConfigError` that says what is missing."""
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = self._make(name)
        return model

    def chosen(self, choice: str | KeyedModel) -> Model:
        """What a function of the chat chose. As many are kept as are chosen of late, whatever the number of owners;
        they share connections, and what is kept of their keys goes with them. Raises `ConfigError`.
        """
        if isinstance(choice, str) and choice in self._models:
            return self._models[choice]
        wanted = KeyedModel(choice, "") if isinstance(choice, str) else choice
        model = self._chosen.get(wanted)
        if model is None:
            model = self._make(choice) if isinstance(choice, str) else self._keyed(choice)
            self._chosen[wanted] = model
        self._chosen.move_to_end(wanted)
        while len(self._chosen) > CHOSEN_MAX:
            _, dropped = self._chosen.popitem(last=False)
            for kept in [kept for kept in self._fragments if kept[1] == dropped.provider and ":" in kept[1]]:
                del self._fragments[kept]
        return model

    def _keyed(self, choice: KeyedModel) -> Model:
        """Its own key is its own quota: a provider that asks one owner for a pause asks no other for it."""
        provider = choice.name.partition(":")[0]
        if provider not in _KEYED:
            raise ConfigError(
                f"model {choice.name!r} takes no key of its own; those of {', '.join(sorted(_KEYED))} do"
            )
        if not choice.key.strip():
            raise ConfigError(f"model {choice.name!r} was chosen with an empty key")
        variable, address = _KEYED[provider]
        environ = {variable: choice.key}
        if choice.url is not None:
            if not address:
                raise ConfigError(f"model {choice.name!r} has its address in its name: leave url out")
            environ[address] = choice.url
        given, self._environ = self._environ, environ
        try:
            model = self._make(choice.name)
        except ConfigError as error:
            raise ConfigError(str(error).replace(f"the environment variable {variable}", "its key")) from None
        finally:
            self._environ = given
        digest = hashlib.blake2b(choice.key.encode(), digest_size=4).hexdigest()
        setattr(model, "quota", f"{choice.name} (key {digest})")  # noqa: B010  all of these are HttpModels
        return model

    def figures(self) -> dict[str, int]:
        """For /health."""
        figures = {} if self._transport is None else self._transport.figures()
        if self._chosen:
            figures |= {"chosen_models": len(self._chosen), "chosen_models_max": CHOSEN_MAX}
        if kept := self._fragments.values():
            figures["fragment_bytes"] = sum(each.bytes for each in kept)
            figures["fragment_bytes_max"] = sum(each.bytes_max for each in kept)
        return figures

    def local_figures(self) -> dict[str, dict[str, Any]]:
        """The processes of local models, for /health."""
        return {server.file.name: server.figures() for server in list(self._servers.values())}

    async def aclose(self) -> None:
        """Close all connections, end all local models. What still streams fails."""
        transport, self._transport = self._transport, None
        async with AsyncExitStack() as closing:  # each, whatever the others raise
            if transport is not None:
                closing.push_async_callback(transport.aclose)
            for server in self._servers.values():
                closing.push_async_callback(server.aclose)
        for model in self._models.values():
            if (close := getattr(model, "aclose", None)) is not None:  # one that has connections of its own
                await close()

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
            module = import_module("holdfast.models.http.transport")
            self._transport = module.Transport()
        assert self._transport is not None
        return self._transport

    # --- wires --------------------------------------------------------------------------------------------

    def _chat(self, model: str, provider: str, max_tokens_as: str = "max_tokens") -> "Wire":
        chat = import_module("holdfast.models.wires.openai_chat")
        kept = self._kept("openai_chat", provider, lambda: chat.OpenAIChatFragments(provider))
        wire: Wire = chat.OpenAIChat(model, provider=provider, max_tokens_as=max_tokens_as, fragments=kept)
        return wire

    def _responses(self, model: str, provider: str) -> "Wire":
        responses = import_module("holdfast.models.wires.openai_responses")
        kept = self._kept("openai_responses", provider, lambda: responses.new_fragments(provider))
        wire: Wire = responses.OpenAIResponses(model, provider=provider, fragments=kept)
        return wire

    def _messages(self, model: str, provider: str) -> "Wire":
        anthropic = import_module("holdfast.models.wires.anthropic")
        kept = self._kept("anthropic", provider, lambda: anthropic.new_fragments(provider))
        limit = known_of("anthropic", model).output
        wire: Wire = anthropic.Anthropic(model, provider=provider, output_limit=limit, fragments=kept)
        return wire

    def _gemini(self, model: str, provider: str) -> "Wire":
        gemini = import_module("holdfast.models.wires.gemini")
        kept = self._kept("gemini", provider, lambda: gemini.new_fragments(provider))
        wire: Wire = gemini.Gemini(model, provider=provider, fragments=kept)
        return wire

    def _kept(self, wire: str, provider: str, make: Callable[[], "Fragments"]) -> "Fragments":
        found = self._fragments.get((wire, provider))
        if found is None:
            found = self._fragments[wire, provider] = make()
        return found

    # --- providers ----------------------------------------------------------------------------------------

    def _http_model(
        self,
        name: str,
        model: str,
        wire: "Wire",
        url: str,
        *,
        provider: str,
        key: str | None,
        key_variables: tuple[str, ...],
        url_variable: str | None = None,
    ) -> Model:
        http = import_module("holdfast.models.http.model")
        said = self.facts.get(name)
        limit = (said and said.context_limit) or known_of(provider, model).context
        access = Access(
            model=name,
            url=url.partition("?")[0],
            key_variables=key_variables,
            keyed=bool(key),
            url_variable=url_variable,
        )
        made: Model = http.HttpModel(
            name, wire, url, self.transport, provider=provider, key=key, context_limit=limit, access=access
        )
        return made

    def _openai(self, name: str, model: str) -> Model:
        self._check(name, model)
        return self._on_openai(name, model, self._responses(model, "openai"))

    def _openai_chat(self, name: str, model: str) -> Model:
        self._check(name, model)
        # Newer models refuse the other one.
        return self._on_openai(name, model, self._chat(model, "openai", max_tokens_as="max_completion_tokens"))

    def _on_openai(self, name: str, model: str, wire: "Wire") -> Model:
        url = self._environ.get("OPENAI_BASE_URL") or OPENAI_URL
        return self._http_model(
            name,
            model,
            wire,
            url,
            provider="openai",
            key=self._key(name, "OPENAI_API_KEY"),
            key_variables=("OPENAI_API_KEY",),
            url_variable="OPENAI_BASE_URL",
        )

    def _anthropic(self, name: str, model: str) -> Model:
        self._check(name, model)
        url = versioned(self._environ.get("ANTHROPIC_BASE_URL") or ANTHROPIC_URL, "/v1")
        key = self._key(name, "ANTHROPIC_API_KEY")
        wire = self._messages(model, "anthropic")
        return self._http_model(
            name,
            model,
            wire,
            url,
            provider="anthropic",
            key=key,
            key_variables=("ANTHROPIC_API_KEY",),
            url_variable="ANTHROPIC_BASE_URL",
        )

    def _google(self, name: str, model: str) -> Model:
        self._check(name, model)
        url = versioned(self._environ.get("GOOGLE_GEMINI_BASE_URL") or GOOGLE_URL, "/v1beta")
        key = self._key(name, *GOOGLE_KEYS)
        return self._http_model(
            name,
            model,
            self._gemini(model, "google"),
            url,
            provider="google",
            key=key,
            key_variables=self._set_of(GOOGLE_KEYS),
            url_variable="GOOGLE_GEMINI_BASE_URL",
        )

    def _compatible(self, name: str, rest: str) -> Model:
        """Any server that speaks one of the wires."""
        model, _, url = rest.rpartition("@http")  # a model's name may hold an @ of its own
        kind = name.partition(":")[0]
        if not model:
            raise ConfigError(f"model {name!r} lacks its name or URL: {_FORMS[kind]}")
        endpoint = import_module("holdfast.models.http.transport").Endpoint(f"http{url}")
        provider = f"compatible:{endpoint.authority}"
        make, version = _COMPATIBLE[kind]
        key = self._key_in("COMPATIBLE_API_KEY") or None  # many need none
        return self._http_model(
            name,
            model,
            make(self, model, provider),
            versioned(f"http{url}", version),
            provider=provider,
            key=key,
            key_variables=("COMPATIBLE_API_KEY",),
        )

    def _pydantic_ai(self, name: str, rest: str) -> Model:
        self._check(name, rest)
        if find_spec("pydantic_ai") is None:
            raise ConfigError(f"model {name!r} needs pydantic-ai: pip install 'holdfast[pydantic-ai]'")
        made: Model = import_module("holdfast.models.pydantic_ai_bridge").made(name, rest)
        return made

    def _local(self, name: str, path: str) -> Model:
        """Its server speaks most of the wires."""
        local = import_module("holdfast.models.local.model")
        file = local.find_model(path)
        server = self._servers.get(file)
        if server is None:
            server = self._servers[file] = local.LocalServer(file, self._config, self.guards)
        wire = _LOCAL[name.partition(":")[0]](self, "local", "local")
        model: Model = local.LocalModel(name, server, wire, self.transport)
        return model

    def _scripted(self, name: str, path: str) -> Model:
        return ScriptedModel(script=read_script(path) if path else ECHO, name=name)

    def _check(self, name: str, model: str) -> None:
        if not model:
            raise ConfigError(f"model {name!r} lacks its name: {_FORMS[name.partition(':')[0]]}")

    def _set_of(self, variables: tuple[str, ...]) -> tuple[str]:
        """The one that counts: the first that is set."""
        return (next((each for each in variables if self._environ.get(each, "").strip()), variables[0]),)

    def _key(self, name: str, *variables: str) -> str:
        """From the first of the variables that is set."""
        key = self._key_in(*self._set_of(variables))
        if not key:
            raise ConfigError(f"model {name!r} needs a key: set the environment variable {' or '.join(variables)}")
        return key

    def _key_in(self, variable: str) -> str:
        """Empty: it is not set. What no header can hold is refused here: an HTTP client would quote it."""
        key = self._environ.get(variable, "").strip()
        if not key.isascii() or not key.isprintable():
            raise ConfigError(
                f"the environment variable {variable} does not hold a key: it has characters no key has"
            )
        return key


def versioned(url: str, version: str) -> str:
    """A base URL with the version of the API in it: some people write it, some do not."""
    head, mark, query = url.partition("?")
    head = head.rstrip("/")
    return f"{head}{'' if not version or _VERSION.search(head) else version}{mark}{query}"


_COMPATIBLE: Mapping[str, tuple[Callable[[Models, str, str], Any], str]] = {
    "compatible": (Models._chat, ""),
    "compatible-responses": (Models._responses, ""),
    "compatible-anthropic": (Models._messages, "/v1"),
    "compatible-google": (Models._gemini, "/v1beta"),
}
_LOCAL: Mapping[str, Callable[[Models, str, str], Any]] = {
    "local": Models._chat,
    "local-responses": Models._responses,
    "local-anthropic": Models._messages,
}
_MAKERS: Mapping[str, Callable[[Models, str, str], Model]] = {
    "openai": Models._openai,
    "openai-chat": Models._openai_chat,
    "openai-responses": Models._openai,
    "anthropic": Models._anthropic,
    "google": Models._google,
    **dict.fromkeys(_COMPATIBLE, Models._compatible),
    **dict.fromkeys(_LOCAL, Models._local),
    "pydantic-ai": Models._pydantic_ai,
    "scripted": Models._scripted,
}
# Where a key and an address are read from, which a function of the chat may bring instead.
_KEYED: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("openai", "openai-chat", "openai-responses"), ("OPENAI_API_KEY", "OPENAI_BASE_URL")),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "google": (GOOGLE_KEYS[0], "GOOGLE_GEMINI_BASE_URL"),
    **dict.fromkeys(_COMPATIBLE, ("COMPATIBLE_API_KEY", "")),
}
_FORMS = {
    "openai": "write openai:MODEL, such as openai:gpt-6.1-terra",
    "openai-chat": "write openai-chat:MODEL, such as openai-chat:gpt-4o",
    "openai-responses": "write openai-responses:MODEL, such as openai-responses:gpt-6.1-terra",
    "anthropic": "write anthropic:MODEL, such as anthropic:claude-sonnet-5-5",
    "google": "write google:MODEL, such as google:gemini-3.8-flash",
    **{
        kind: f"write {kind}:MODEL@URL, such as {kind}:qwen3@http://localhost:8000{version or '/v1'}"
        for kind, (_, version) in _COMPATIBLE.items()
    },
    "pydantic-ai": "write pydantic-ai:PROVIDER:MODEL, such as pydantic-ai:groq:llama-3.3-70b-versatile",
    **{kind: f"write {kind}, or {kind}:FILE.gguf for a model file of your own" for kind in _LOCAL},
    "scripted": "write scripted, or scripted:FILE for a script of your own",
}
