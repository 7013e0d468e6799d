"""The HTTP surface: routes over `app`, event streams, who gets in. No SQL, no rules of chats."""

from holdfast.server.http import http_app

__all__ = ["http_app"]
