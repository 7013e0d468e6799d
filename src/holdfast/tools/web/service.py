"""One HTTP service that the program itself named, with its key: a search engine, one that writes down what is said.

Its host is the program's own word, so it may be an internal one; rules that deny it, or ask, count all the same, and
nobody else is asked along a redirect. The key is in no journal, no log and no error: it is taken out of whatever
comes back.
"""

import datetime
import email.utils
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from holdfast.errors import ConfigError, ToolFailed
from holdfast.tools.context import tool_context
from holdfast.tools.permissions.acts import Act, Reach
from holdfast.tools.permissions.host_patterns import address_text
from holdfast.tools.web.client import Fetched, FetchLimits, Outgoing, Resolver, Target, Web

SAID_CHARS_MAX = 300  # of what a service says of its own failure
SECRET_CHARS_MIN = 4


class Service:
    def __init__(
        self,
        name: str,
        url: str,
        *,
        limits: FetchLimits,
        headers: Mapping[str, str] | None = None,
        key: str = "",
        key_advice: str = "",
        resolve: Resolver | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """`key_advice`: what to do where the key is refused. Raises ConfigError."""
        try:
            target = Target(url)
        except ToolFailed as error:
            raise ConfigError(f"the URL of {name} is not one: {error}") from None
        if target.userinfo:
            raise ConfigError(f"the URL of {name} holds a name or a password: leave it out, and name its key")
        if not key.isascii() or not key.isprintable():
            raise ConfigError(f"the key of {name} has characters no key has")
        self.name = name
        self._url = target.shown.rstrip("/")
        self._headers = tuple((headers or {}).items())
        self._key = key
        self._advice = key_advice
        self._address = address_text(target.host, target.port)
        self._web = Web(limits, resolve=resolve, ssl_context=ssl_context, only_hosts=[f"{target.host}:{target.port}"])

    def __repr__(self) -> str:
        return f"Service({self.name!r}, {self._url!r})"

    def acts(self, _: dict[str, Any] | None = None) -> Sequence[Act]:
        return [Reach(address=self._address)]

    async def get(self, path: str, parameters: Mapping[str, str]) -> Fetched:
        return await self._ask(f"{self._url}{path}?{urlencode(parameters)}", Outgoing(headers=self._headers))

    async def post(self, path: str, body: bytes, content_type: str) -> Fetched:
        headers = (*self._headers, ("content-type", content_type))
        return await self._ask(
            f"{self._url}{path}", Outgoing(method="POST", headers=headers, body=body, only_asks=True)
        )

    async def _ask(self, url: str, outgoing: Outgoing) -> Fetched:
        """An answer with a good status. Raises ToolFailed, in words without the key."""
        try:
            fetched = await self._web.ask(url, outgoing, rulebook=tool_context().rulebook.vouching(self._address))
        except ToolFailed as error:
            raise ToolFailed(f"{self.name} was not asked, or did not answer: {self.hidden(str(error))}") from None
        if not 200 <= fetched.status < 300:
            raise ToolFailed(self._refusal(fetched))
        if fetched.cut:
            raise ToolFailed(f"{self.name} answered with more than {len(fetched.body):,} bytes, which is the limit")
        return fetched

    def decoded(self, fetched: Fetched) -> Any:
        """Its JSON. Raises ToolFailed."""
        try:
            return msgspec.json.decode(fetched.body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            kind = fetched.content_type[:100] or "no type"
            raise ToolFailed(f"{self.name} answered with what is no JSON ({kind}): is its URL right?") from None

    def hidden(self, text: str) -> str:
        """Without the key: a server may send it back."""
        return text.replace(self._key, "[key]") if len(self._key) >= SECRET_CHARS_MIN else text

    def _refusal(self, fetched: Fetched) -> str:
        status, said = fetched.status, self._said(fetched)
        if status == 429:
            pause = _pause(fetched)
            return f"{self.name} answered 429, too many requests: try again {pause}.{said}"
        if status in (401, 402, 403) and self._advice:
            return f"{self.name} answered {status}: {self._advice}.{said}"
        if 300 <= status < 400:
            return f"{self.name} answered {status}, a redirect, which is not followed: is its URL right?"
        hint = " That is its own trouble: try again later." if status >= 500 else ""
        return f"{self.name} answered {status}.{hint}{said}"

    def _said(self, fetched: Fetched) -> str:
        text = " ".join(self.hidden(fetched.body[:4_000].decode("utf-8", "replace")).split())[:SAID_CHARS_MAX]
        return f" It said: {text}" if text else ""


def _pause(fetched: Fetched) -> str:
    """Of Retry-After, in words."""
    value = next((value for name, value in fetched.headers if name.lower() == "retry-after"), "").strip()
    if value.isascii() and value.isdigit() and len(value) < 8:
        return f"in {int(value)} s"
    try:
        at = email.utils.parsedate_to_datetime(value).astimezone(datetime.UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return "later"
    return f"after {at:%Y-%m-%d %H:%M:%S} UTC"
