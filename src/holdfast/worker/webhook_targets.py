"""Where webhooks may lead, and one attempt to get there: public addresses over TLS, and what the settings name.

It is the guard of `fetch` (tools/web/client.py): a name is looked up anew for every attempt, all of its addresses are
checked, and the connection goes to one of those. A redirect is not followed. The status is the answer: what a
receiver says behind it is passed over, and may hang or be anything.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.core.deliveries import Answer, asked_to_wait_s
from holdfast.errors import ConfigError, InvalidInput, ToolFailed
from holdfast.tools.permissions.rulebook import Rulebook

if TYPE_CHECKING:
    from holdfast.tools.web.client import Web

ATTEMPT_S = 20.0
ANSWER_BYTES_MAX = 16 << 10
USER_AGENT = "holdfast-webhooks"
_PORTS = {"http": 80, "https": 443}


class WebhookTargets:
    """`reach`: hosts beside the public ones, written as in a rule `allow reach(…)`."""

    def __init__(self, reach: Sequence[str] = ()) -> None:
        """Raises ConfigError for what is no host."""
        try:
            self._rulebook = Rulebook([f"allow reach({host})" for host in reach])
        except ConfigError as error:
            raise ConfigError(f"webhook_reach: {error}") from None
        self._web: Web | None = None

    def check(self, url: str) -> None:
        """Before anything is sent there. Raises InvalidInput; whose address it is, every attempt finds out anew."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as error:
            raise InvalidInput("url", f"is none: {error}") from None
        if parts.scheme not in _PORTS or not host:
            raise InvalidInput("url", "looks like https://host/path")
        if parts.username is not None or parts.password is not None:
            raise InvalidInput("url", "holds a name or a password: the signature proves who we are")
        if parts.fragment or any(char <= " " or char == "\x7f" for char in url):
            raise InvalidInput("url", "has no fragment, no blank and no control character")
        if parts.scheme == "http" and not self._rulebook.names(host, port):
            raise InvalidInput(
                "url", "begins with https://; http is for hosts that the setting `webhook_reach` names"
            )

    async def post(self, url: str, headers: tuple[tuple[str, str], ...], body: bytes, now_ms: int) -> Answer:
        """One attempt, within ATTEMPT_S. Raises nothing that a receiver, or the way to it, can bring about."""
        from holdfast.tools.web.client import Outgoing  # noqa: PLC0415  it takes long to load, and few need it

        sent = (*headers, ("content-type", "application/json"), ("user-agent", USER_AGENT))
        sent += (("accept", "*/*"), ("accept-encoding", "identity"))
        try:
            self.check(url)  # the settings may be others since it was made
            outgoing = Outgoing(method="POST", headers=sent, body=body, status_only=True)
            got = await self._client().ask(url, outgoing, rulebook=self._rulebook)
        except (ToolFailed, InvalidInput) as error:
            return Answer(error=str(error))
        waits_s = asked_to_wait_s({name.lower(): value for name, value in got.headers}, now_ms / 1000)
        words = f"it answered {got.status}, and a redirect is not followed" if 300 <= got.status < 400 else ""
        return Answer(status=got.status, error=words, retry_after_s=waits_s)

    def _client(self) -> "Web":
        if self._web is None:
            from holdfast.tools.web.client import FetchLimits, Web  # noqa: PLC0415  as above

            limits = FetchLimits(bytes_max=ANSWER_BYTES_MAX, time_s=ATTEMPT_S)
            self._web = Web(limits, resolve=None, ssl_context=None)
        return self._web
