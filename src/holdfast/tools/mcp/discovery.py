"""Where a login to an MCP server goes.

The server's own metadata (RFC 9728) names its authorization server, whose metadata (RFC 8414) names the endpoints.
Metadata counts only if it names the issuer that it was looked up for, so no server can have a code or a token of
another's sent to itself.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from holdfast.core.records import Frozen
from holdfast.mcp_servers import McpServer
from holdfast.tools.mcp.login_web import LoginWeb, origin_of, short, text_in, texts_in
from holdfast.tools.web.client import Fetched, Outgoing

_PARAMETERS = re.compile(r'([A-Za-z0-9_.-]{1,100})\s*=\s*(?:"([^"]{0,2000})"|([^\s,"]{1,2000}))')


class Issuer(Frozen):
    """An authorization server, as its metadata describes it."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes: tuple[str, ...] = ()
    names_itself: bool = False  # in every answer to a person's browser: `iss` (RFC 9207)
    resource: str = ""  # whom the tokens are for
    wanted: tuple[str, ...] = ()  # scopes that the server itself asks for


class Discovery:
    """For one server. Raises McpLoginFailed for whatever another party does."""

    def __init__(self, server: McpServer, web: LoginWeb) -> None:
        self._server = server
        self._web = web

    async def discover(self) -> Issuer:
        """The authorization server of the first resource metadata that fits."""
        names, itself = [origin_of(self._server.url)], _itself(self._server.url)
        resource = itself
        challenge = await self._challenge()
        wanted = tuple((parameter("scope", challenge) or "").split())
        for url in self._resource_urls(challenge):
            found = await self._web.metadata(url)
            if found is None:
                continue
            resource = text_in(found, "resource") or itself
            if not _covers(resource, itself):
                raise self._web.failed(f"its metadata is about another resource, {short(resource)}")
            names = list(texts_in(found, "authorization_servers"))
            if not names:
                raise self._web.failed("its metadata names no authorization server")
            wanted = wanted or texts_in(found, "scopes_supported")
            break
        return replace(await self._issuer(names[0], resource), wanted=wanted)

    def _resource_urls(self, challenge: str) -> list[str]:
        """Where its metadata may be; what a challenge of its own names comes first, within its origin."""
        parts, origin = urlsplit(self._server.url), origin_of(self._server.url)
        well_known = f"{origin}/.well-known/oauth-protected-resource"
        urls = [f"{well_known}{parts.path.rstrip('/')}"] if parts.path.strip("/") else []
        urls.append(well_known)
        named = parameter("resource_metadata", challenge)
        if named is not None:
            if origin_of(named) != origin:
                raise self._web.failed(f"it names metadata of another origin, {short(named)}")
            urls.insert(0, named)
        return list(dict.fromkeys(urls))

    async def _challenge(self) -> str:
        """What it says to a stranger. One that says nothing may have its metadata where it belongs all the same."""
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        headers = (("content-type", "application/json"), ("accept", "application/json, text/event-stream"))
        outgoing = Outgoing(method="POST", headers=headers, body=body, status_only=True)
        got = await self._web.ask(self._server.url, outgoing)
        return _header(got, "www-authenticate")

    async def _issuer(self, issuer: str, resource: str) -> Issuer:
        for url in _issuer_urls(self._web.checked(issuer)):
            found = await self._web.metadata(url)
            if found is None:
                continue
            said = text_in(found, "issuer") or ""
            if not same_issuer(said, issuer):
                raise self._web.failed(f"the metadata of {short(issuer)} names another issuer, {short(said)}")
            if "S256" not in texts_in(found, "code_challenge_methods_supported"):
                raise self._web.failed(f"{short(issuer)} does not say that it knows PKCE (S256)")
            return Issuer(
                issuer=said,
                authorization_endpoint=self._endpoint(found, "authorization_endpoint"),
                token_endpoint=self._endpoint(found, "token_endpoint"),
                registration_endpoint=self._endpoint(found, "registration_endpoint", needed=False) or None,
                revocation_endpoint=self._endpoint(found, "revocation_endpoint", needed=False) or None,
                scopes=texts_in(found, "scopes_supported"),
                names_itself=found.get("authorization_response_iss_parameter_supported") is True,
                resource=resource,
            )
        raise self._web.failed(
            f"{short(issuer)} has no metadata of an authorization server: it takes no logins by OAuth"
        )

    def _endpoint(self, found: Mapping[str, Any], name: str, *, needed: bool = True) -> str:
        url = text_in(found, name)
        if url is None:
            if needed:
                raise self._web.failed(f"the metadata of its authorization server has no {name}")
            return ""
        if "#" in url:
            raise self._web.failed(f"{name} has a fragment: {short(url)}")
        return self._web.checked(url)


def parameter(name: str, challenge: str) -> str | None:
    """Of a WWW-Authenticate header."""
    for known, quoted, bare in _PARAMETERS.findall(challenge[:8_000]):  # one after the other: not what a value holds
        if known.lower() == name and (quoted or bare):
            return str(quoted or bare)
    return None


def _issuer_urls(issuer: str) -> list[str]:
    """RFC 8414 and OpenID Connect, in the order that the protocol wants."""
    path, origin = urlsplit(issuer).path.rstrip("/"), origin_of(issuer)
    urls = [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
    ]
    return [*urls, f"{origin}{path}/.well-known/openid-configuration"] if path else urls


def same_issuer(said: str, wanted: str) -> bool:
    """Letter by letter; of a bare host, with and without the slash behind it."""
    shorter, longer = sorted((said, wanted), key=len)
    return shorter == longer or (longer == f"{shorter}/" and shorter == origin_of(shorter))


def _covers(resource: str, url: str) -> bool:
    """Whether tokens for this resource are meant for the server: itself, or what it lies below."""
    paths = [f"{urlsplit(one).path.rstrip('/')}/" for one in (url, resource)]
    return origin_of(resource) == origin_of(url) and paths[0].startswith(paths[1])


def _itself(url: str) -> str:
    """A server as a resource: where it is, and no key that its URL may hold."""
    return f"{origin_of(url)}{urlsplit(url).path}"


def _header(got: Fetched, name: str) -> str:
    return ", ".join(value for key, value in got.headers if key.lower() == name)
