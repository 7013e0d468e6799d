"""OAuth 2.1 as a client of MCP servers: where to log in, the link for a person, and tokens for what comes back.

    discover    who is asked (`discovery.py`)
    register    a client of ours there (RFC 7591), where the declaration gives none
    authorize   a link for a person, with PKCE (RFC 7636) and the server as the resource (RFC 8707)
    exchange    the code that came back, and later each refresh token, for tokens

Nothing here stores or waits for a person, and nothing that another party says is trusted (`login_web.py`).
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from holdfast.core.records import Frozen
from holdfast.errors import McpLoginFailed
from holdfast.mcp_servers import McpServer
from holdfast.tools.mcp.discovery import Discovery, Issuer, same_issuer
from holdfast.tools.mcp.login_web import LoginWeb, decoded, short, text_in
from holdfast.tools.web.client import Fetched, Outgoing

TOKEN_CHARS_MAX = 16_384
EXPIRES_S_MAX = 10 * 365 * 86_400
_TOKEN = re.compile(r"[\x21-\x7e]+")
SECRET = ("code", "code_verifier", "refresh_token")  # of what is asked with
# What an authorization server says when the same question will get the same answer.
FINAL = frozenset(
    {"invalid_grant", "invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope"}
)


class OAuthRefused(McpLoginFailed):
    """The authorization server refused for good: a person has to log in."""


class Client(Frozen):
    """Who we are there."""

    id: str
    secret: str | None = None
    method: str = "none"  # how the secret is shown


class Tokens(Frozen):
    access: str
    refresh: str | None = None
    expires_s: int | None = None
    scope: str | None = None


class Challenge(Frozen):
    """A request of a person's browser that is under way: what its answer is judged by."""

    url: str
    state: str
    verifier: str
    redirect_uri: str


class OAuth:
    """For one server. Raises McpLoginFailed for whatever another party does."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._web = LoginWeb(server)

    async def discover(self) -> Issuer:
        return await Discovery(self._server, self._web).discover()

    # --- who we are, and the link -----------------------------------------------------------------------

    async def register(self, issuer: Issuer, redirect_uri: str, scope: str | None) -> Client:
        if self._server.client_id:
            secret = self._server.client_secret()
            return Client(id=self._server.client_id, secret=secret, method="client_secret_post" if secret else "none")
        if issuer.registration_endpoint is None:
            words = "registers no clients by itself: register one there, and give client_id"
            raise self._web.failed(
                f"{short(issuer.issuer)} {words}, with redirect_port if it wants a fixed redirect URI"
            )
        wanted = {
            "client_name": "holdfast",
            "application_type": "native",
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            **({"scope": scope} if scope else {}),
        }
        headers = (("content-type", "application/json"), ("accept", "application/json"))
        outgoing = Outgoing(method="POST", headers=headers, body=msgspec.json.encode(wanted))
        got = await self._web.ask(issuer.registration_endpoint, outgoing)
        found = self._web.object(got, "registration")
        if got.status not in (200, 201) or not text_in(found, "client_id"):
            raise self._web.failed(f"{short(issuer.issuer)} did not register us: {_refusal(got, found)}")
        secret = text_in(found, "client_secret")
        method = text_in(found, "token_endpoint_auth_method") or ("client_secret_basic" if secret else "none")
        if method not in ("none", "client_secret_basic", "client_secret_post") or (method != "none" and not secret):
            raise self._web.failed(f"{short(issuer.issuer)} wants to know us by {short(method)}, which we cannot do")
        return Client(id=str(found["client_id"]), secret=secret, method=method)

    def authorize(self, issuer: Issuer, client: Client, redirect_uri: str, scope: str | None) -> Challenge:
        verifier, state = secrets.token_urlsafe(64), secrets.token_urlsafe(32)
        digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code",
            "client_id": client.id,
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": digest,
            "code_challenge_method": "S256",
            "resource": issuer.resource,
            **({"scope": scope} if scope else {}),
        }
        mark = "&" if "?" in issuer.authorization_endpoint else "?"
        url = f"{issuer.authorization_endpoint}{mark}{urlencode(asked, quote_via=quote)}"
        return Challenge(url=url, state=state, verifier=verifier, redirect_uri=redirect_uri)

    def code_of(self, issuer: Issuer, challenge: Challenge, answer: Mapping[str, str]) -> str | None:
        """The code in what came back to the redirect URI; None if it is no answer to this challenge."""
        if not secrets.compare_digest(answer.get("state", "").encode(), challenge.state.encode()):
            return None
        said = answer.get("iss")
        if (said is None and issuer.names_itself) or (said is not None and not same_issuer(said, issuer.issuer)):
            raise self._web.failed(
                f"the answer is not from {short(issuer.issuer)}, where you were sent: it is not used"
            )
        if error := answer.get("error"):
            raise self._web.failed(f"it was refused: {short(' '.join((error, answer.get('error_description', ''))))}")
        code = answer.get("code", "")
        if not code or len(code) > TOKEN_CHARS_MAX:
            raise self._web.failed("what came back holds no code")
        return code

    # --- tokens -----------------------------------------------------------------------------------------

    async def exchange(self, issuer: Issuer, client: Client, challenge: Challenge, code: str) -> Tokens:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": challenge.redirect_uri,
            "code_verifier": challenge.verifier,
            "resource": issuer.resource,
        }
        return await self._tokens(issuer.token_endpoint, client, form)

    async def refresh(self, token_endpoint: str, client: Client, refresh_token: str, resource: str) -> Tokens:
        """Raises OAuthRefused where the token counts no more; else what was wrong may be over the next time."""
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": resource}
        return await self._tokens(token_endpoint, client, form)

    async def revoke(self, revocation_endpoint: str, client: Client, token: str) -> None:
        # A client without a secret has an empty one: servers made with the MCP SDK insist on the field.
        form = {"token": token} if client.secret else {"token": token, "client_secret": ""}
        got = await self._post(revocation_endpoint, client, form)
        if got.status >= 400:
            raise self._web.failed(f"it was not revoked: HTTP status {got.status}")

    async def _tokens(self, url: str, client: Client, form: dict[str, str]) -> Tokens:
        got = await self._post(url, client, form)
        if got.status != 200:
            said = decoded(got) or {}
            kind = OAuthRefused if 400 <= got.status < 500 and said.get("error") in FINAL else McpLoginFailed
            shown = [value for value in (*map(form.get, SECRET), client.secret) if value]
            raise kind(self._server.name, f"no tokens came: {_refusal(got, said, shown)}")
        found = self._web.object(got, "token")
        access, refresh, lasts = text_in(found, "access_token"), found.get("refresh_token"), found.get("expires_in")
        if str(found.get("token_type", "")).lower() != "bearer":
            raise self._web.failed("the tokens that came are none for a bearer")
        if access is None or not _is_token(access) or not (refresh is None or _is_token(refresh)):
            raise self._web.failed("what came is no token that a header can hold")
        try:
            expires_s = None if lasts is None else max(0, min(int(lasts), EXPIRES_S_MAX))
        except (TypeError, ValueError):
            expires_s = None
        return Tokens(access=access, refresh=refresh, expires_s=expires_s, scope=text_in(found, "scope"))

    async def _post(self, url: str, client: Client, form: dict[str, str]) -> Fetched:
        headers = [("content-type", "application/x-www-form-urlencoded"), ("accept", "application/json")]
        if client.secret and client.method == "client_secret_basic":
            pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
            headers.append(("authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
        else:
            form = {**form, "client_id": client.id, **({"client_secret": client.secret} if client.secret else {})}
        return await self._web.ask(
            url, Outgoing(method="POST", headers=tuple(headers), body=urlencode(form).encode())
        )


def _is_token(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= TOKEN_CHARS_MAX and _TOKEN.fullmatch(value) is not None


def _refusal(got: Fetched, said: Mapping[str, Any], shown: Iterable[str] = ()) -> str:
    """Its own words, without what it was shown: some repeat that."""
    words = " ".join(str(said[key]) for key in ("error", "error_description") if said.get(key))
    for value in shown:
        words = words.replace(value, "[…]")
    return f"HTTP status {got.status}{f', {short(words)}' if words else ''}"


def scopes_wanted(asked: Iterable[str], issuer: Issuer) -> str | None:
    """What is asked for, or else what the server wants; and to stay logged in, where there is such a scope."""
    wanted = list(dict.fromkeys(asked)) or list(issuer.wanted)
    if wanted and "offline_access" in issuer.scopes and "offline_access" not in wanted:
        wanted.append("offline_access")
    return " ".join(wanted) or None
