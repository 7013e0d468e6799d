"""A short deadline for a moment, not for a whole test: what only prepares it has the usual time."""

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from holdfast.store.contract import Store
from holdfast.store.postgres.store import PostgresStore


@contextmanager
def hurried(store: Store, deadline_s: float) -> Iterator[None]:
    """What is asked of this PostgreSQL store meanwhile has only so long."""
    assert isinstance(store, PostgresStore)
    usual = store.options
    store.options = store._transactor._options = replace(usual, deadline_s=deadline_s)
    try:
        yield
    finally:
        store.options = store._transactor._options = usual
