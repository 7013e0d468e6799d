"""An MCP server that wants a login by OAuth, and the authorization server with it: the SDK's own, on loopback.

Refresh tokens count once. `person` is what a person's browser does with the link that it is given.
"""

import asyncio
import secrets
import socket
import time
from collections import Counter
from types import TracebackType
from typing import Any, Self

import httpx2
import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl


class Provider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.access: dict[str, AccessToken] = {}
        self.lasts_s = 3600
        self.counts: Counter[str] = Counter()
        self.issued: list[str] = []  # every token and code that there ever was
        self.deaf = False  # no token counts, whatever was given for it
        self.refreshing = asyncio.Event()  # one has come; set `go` lets it through
        self.go = asyncio.Event()
        self.go.set()

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.counts["registered"] += 1
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(24),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        self.issued.append(code.code)
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._tokens(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        self.counts["refreshes"] += 1
        self.refreshing.set()
        await self.go.wait()
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self.refresh.pop(refresh_token.token, None) is None:  # two came at once
            self.counts["reused"] += 1
        return self._tokens(client.client_id, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return None if self.deaf or found is None or (found.expires_at or 0) < time.time() else found

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.counts["revoked"] += 1
        self.refresh.clear()
        self.access.clear()

    def revoke_all(self) -> None:
        self.refresh.clear()
        self.access.clear()

    def _tokens(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access, refresh = f"at-{secrets.token_urlsafe(24)}", f"rt-{secrets.token_urlsafe(24)}"
        self.issued += [access, refresh]
        until = int(time.time() + self.lasts_s)
        self.access[access] = AccessToken(
            token=access, client_id=client_id, scopes=scopes, expires_at=until, resource=resource
        )
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes, resource=resource)
        return OAuthToken(
            access_token=access, refresh_token=refresh, expires_in=self.lasts_s, scope=" ".join(scopes) or None
        )


class OAuthServer:
    """`async with OAuthServer() as served:` It can be stopped and started again at the same port, with its logins."""

    def __init__(self) -> None:
        self.provider = Provider()
        self.calls: list[str] = []
        self.begun = asyncio.Event()
        self._port = 0
        self._running: tuple[uvicorn.Server, asyncio.Task[None]] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/mcp"

    async def start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen()
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(self._app(), log_level="critical", timeout_graceful_shutdown=0)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listener]))
        while not server.started:
            assert not task.done(), task.exception()
            await asyncio.sleep(0.01)
        self._running = (server, task)

    async def stop(self) -> None:
        if self._running is not None:
            server, task = self._running
            server.should_exit = server.force_exit = True
            await task
            self._running = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _app(self) -> Any:
        origin = self.url.removesuffix("/mcp")
        server = MCPServer(
            "guarded",
            log_level="CRITICAL",
            auth_server_provider=self.provider,
            auth=AuthSettings(
                issuer_url=AnyHttpUrl(origin),
                resource_server_url=AnyHttpUrl(self.url),
                required_scopes=["use"],
                validate_token_resource=True,
                client_registration_options=ClientRegistrationOptions(
                    enabled=True, valid_scopes=["use", "more"], default_scopes=["use"]
                ),
                revocation_options=RevocationOptions(enabled=True),
            ),
        )

        @server.tool()
        async def echo(text: str) -> str:
            self.calls.append(text)
            return text

        @server.tool()
        async def hang(text: str) -> str:
            self.calls.append(text)
            self.begun.set()
            await asyncio.sleep(3600)
            return text

        return server.streamable_http_app()


async def person(link: str) -> str:
    """Where the browser is sent to once the person has agreed."""
    async with httpx2.AsyncClient() as browser:
        answer = await browser.get(link)
    assert answer.status_code == 302, answer.text
    return str(answer.headers["location"])
