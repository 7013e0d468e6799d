"""`holdfast login`: a new link that logs one browser in, once."""

import sys

from holdfast.app import have_home
from holdfast.cli.app_choice import app_with_data, opened
from holdfast.cli.options import Where
from holdfast.config import Config
from holdfast.server.access import load_token
from holdfast.server.addresses import database_digest, is_listening, listening
from holdfast.server.sessions import link_of, new_link_code


async def print_link(where: Where, url: str | None) -> None:
    """The link leads to the servers that listen now and have the same data. Without one, to where it would be."""
    app = app_with_data(where)
    have_home(app.config)
    token, _ = load_token(app.config.home)
    async with opened(app):
        code = await new_link_code(app.store, token)
    urls = [url.rstrip("/")] if url is not None else _served_at(app.config)
    for one in urls:
        print(link_of(one, code))
    if len(urls) > 1:
        _say(f"{len(urls)} servers listen: the link works once, at any of them")


def _served_at(config: Config) -> list[str]:
    ours = database_digest(config)
    servers = listening(config.home)
    for server in servers:
        if server.database != ours:
            _say(f"the server at {server.url} has another database: name its app (--app), or its --database")
    if urls := [server.url for server in servers if server.database == ours]:
        return urls
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)
    configured = f"http://{host}:{config.port}"
    if not is_listening(configured):
        _say("nobody listens there now; `holdfast serve` does")
    return [configured]


def _say(words: str) -> None:
    print(f"holdfast: {words}", file=sys.stderr)
