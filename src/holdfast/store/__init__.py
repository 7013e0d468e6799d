"""The store remembers. Chosen by URL: `sqlite:///path/to/file.db` or `postgresql://user@host/database`."""

from holdfast.errors import ConfigError
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.urls import shown_url


def open_store(url: str, options: StoreOptions | None = None) -> Store:
    """A store for a URL, not yet opened: use it as an async context manager, or call `open`."""
    options = options or StoreOptions()
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "sqlite":
        from holdfast.store.sqlite.store import SqliteStore  # noqa: PLC0415  a driver loads when its URL is used

        return SqliteStore(rest, options)
    if separator and scheme in ("postgresql", "postgres"):
        from holdfast.store.postgres.store import PostgresStore  # noqa: PLC0415

        return PostgresStore(url, options)
    raise ConfigError(
        f"{shown_url(url)!r} is not a store URL: use sqlite:///path/to/file.db, "
        "sqlite:////absolute/path.db or postgresql://user:password@host/database"
    )
