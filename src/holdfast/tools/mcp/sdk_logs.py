"""What the SDK writes to the log: with a traceback, for every message of a server that it does not understand.

A server that sends nothing else would fill the disk. So each place of its code says something once a minute.
"""

import logging
import time

EVERY_S = 60.0
# The last is the name that the SDK's session gives itself; others may have the same.
_LOGGERS = ("mcp.client.streamable_http", "mcp.shared.jsonrpc_dispatcher", "client")
_CODE = ("/mcp/client/", "/mcp/shared/")


class Seldom(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, int], float] = {}  # by place; there are a few dozen

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or not any(folder in record.pathname for folder in _CODE):
            return True
        place, now = (record.pathname, record.lineno), time.monotonic()
        if now - self._said.get(place, -EVERY_S) < EVERY_S:
            return False
        self._said[place] = now
        return True


def say_seldom() -> None:
    for name in _LOGGERS:
        found = logging.getLogger(name)
        if not any(isinstance(one, Seldom) for one in found.filters):
            found.addFilter(Seldom())
