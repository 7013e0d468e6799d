"""What a person can do about a model that did not answer: the variable to set, or the setting to change.

Pure words, by the kind of the failure (`core/retry`). A provider's own words are in the error; here is what follows
from them on this side of the wire. It never holds a key.
"""

import difflib
from collections.abc import Callable, Mapping

from holdfast.core.records import Frozen
from holdfast.core.retry import RESULT_FILES, Kind
from holdfast.errors import ProviderError, ProviderTimeout
from holdfast.models.known import table


class Access(Frozen):
    """How a model is reached, as far as a user can change it."""

    model: str  # as the user names it
    url: str  # safe to print
    key_variables: tuple[str, ...] = ()  # the first is the one that counts; none: it needs no key
    keyed: bool = False  # a key was sent
    url_variable: str | None = None  # None: the URL is in the model's name, or not the user's

    @property
    def key(self) -> str:
        return " or ".join(self.key_variables)


def advice_on(error: ProviderError, access: Access) -> str:
    """Empty: there is nothing to change."""
    try:
        kind = Kind(error.code)
    except ValueError:  # a word of a model from elsewhere
        return ""
    return BY_KIND[kind](error, access)


def _authentication(error: ProviderError, access: Access) -> str:
    if not access.key_variables:
        return ""
    if not access.keyed:
        return f"{_host(access)} wants a key: set {access.key}"
    if error.status == 403:
        return (
            f"the key in {access.key} may not use {access.model}: give its project the right to, set {access.key} to "
            f"another key, or name another model ({_NAMED})"
        )
    return f"the key in {access.key} is not accepted: set {access.key} to one that is valid at {_host(access)}"


def _payment(_: ProviderError, access: Access) -> str:
    if not access.key_variables or not access.keyed:
        return f"the account at {_host(access)} has no credit left: pay there, or name another model ({_NAMED})"
    return (
        f"the account of the key in {access.key} has no credit left, or has reached its limit: add credit or raise "
        f"the limit at the provider, or set {access.key} to a key of another account"
    )


def _region(_: ProviderError, access: Access) -> str:
    way = "set HTTPS_PROXY to a way out that it serves"
    if access.url_variable is not None:
        way += f", or {access.url_variable} to a gateway"
    return (
        f"the provider does not serve the place that this request comes from: {way}, or name another model ({_NAMED})"
    )


def _not_found(_: ProviderError, access: Access) -> str:
    provider, _colon, name = access.model.partition(":")
    near = difflib.get_close_matches(name, table().get(_KNOWN_AS.get(provider, provider), {}), n=1)
    hint = f"; did you mean {provider}:{near[0]}?" if near and near[0] != name else ""
    if access.url_variable is not None:
        return f"check the model's name ({_NAMED}), and {access.url_variable} if you set it{hint}"
    return f"check the name and the URL of the model ({_NAMED}): {access.url} was asked{hint}"


def _connection(_: ProviderError, access: Access) -> str:
    place = access.url_variable if access.url_variable is not None else f"the URL in the model's name ({_NAMED})"
    proxy = "" if access.url.startswith("http://127.") else ", the network, and HTTPS_PROXY where there is a proxy"
    return f"check {place}{proxy}: is {_host(access)} up?"


def _timeout(error: ProviderError, _: Access) -> str:
    if isinstance(error, ProviderTimeout) and error.deadline in _DEADLINES:
        return f"if it needs longer, raise `{error.deadline}` in the agent's `deadlines`; else try again later"
    return "try again later, or give the agent `fallbacks`"


def _rate_limit(_: ProviderError, access: Access) -> str:
    whose = f"the account of the key in {access.key}" if access.keyed else _host(access)
    return (
        f"{whose} allows no more requests for now: try again later, raise its limit at the provider, or give the "
        "agent `fallbacks`"
    )


def _context_too_long(_: ProviderError, access: Access) -> str:
    return (
        "the request is longer than the model can hold: `holdfast chats compact CHAT` puts a summary in place of the "
        f'older part; say what it holds as `context_limit` in [models."{access.model}"] of holdfast.toml, and that '
        "happens by itself"
    )


def _parameter(error: ProviderError, _: Access) -> str:
    if error.parameter == RESULT_FILES:
        return f"the model does not take files such as images: send none, or name another model ({_NAMED})"
    which = f"`{error.parameter}`" if error.parameter else "what it names"
    return f"the model does not take {which}: leave it out of the agent's `settings`"


def _bad_request(_: ProviderError, __: Access) -> str:
    return "the provider says what it does not take: change the message, the tools or the agent's `settings`"


def _refused(_: ProviderError, __: Access) -> str:
    return "the provider's rules forbid it: say it otherwise (`holdfast chats edit CHAT`)"


def _later(_: ProviderError, __: Access) -> str:
    return "the provider is in trouble, nothing here is: try again later, or give the agent `fallbacks`"


def _lost(_: ProviderError, access: Access) -> str:
    where = access.url_variable if access.url_variable is not None else f"the URL in the model's name ({_NAMED})"
    return f"if it happens again, check {where}: what answers at {access.url} may not speak this protocol"


def _nothing(_: ProviderError, __: Access) -> str:
    return ""


def _host(access: Access) -> str:
    return access.url.partition("://")[2].partition("/")[0]


_NAMED = "--model, or the agent's `model`"
_DEADLINES = ("connect_s", "first_byte_s", "silence_s", "call_s")
_KNOWN_AS = {"openai-chat": "openai", "openai-responses": "openai"}

BY_KIND: Mapping[Kind, Callable[[ProviderError, Access], str]] = {
    Kind.RATE_LIMIT: _rate_limit,
    Kind.OVERLOADED: _later,
    Kind.SERVER_ERROR: _later,
    Kind.TIMEOUT: _timeout,
    Kind.CONNECTION: _connection,
    Kind.LOST_RESULT: _lost,
    Kind.PAYMENT: _payment,
    Kind.AUTHENTICATION: _authentication,
    Kind.REGION: _region,
    Kind.NOT_FOUND: _not_found,
    Kind.MODEL_BROKE: _nothing,
    Kind.UNSUPPORTED_PARAMETER: _parameter,
    Kind.CONTEXT_TOO_LONG: _context_too_long,
    Kind.REFUSED: _refused,
    Kind.BAD_REQUEST: _bad_request,
}
