"""How often a store asks its database, whatever it asks: transactions, of which each is a statement or several."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.store.contract import Store


class Asked:
    def __init__(self) -> None:
        self.count = 0


@contextmanager
def asking(store: Store) -> Iterator[Asked]:
    """Counts meanwhile. Not the commits of turns, and not the lease, which has a connection of its own."""
    transactor: Any = store._transactor  # type: ignore[attr-defined]
    asked = Asked()

    def counting(run: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **more: Any) -> Any:
            asked.count += 1
            return run(*given, **more)

        return counted

    # All that PostgreSQL's transactor does goes through `run`, also what it writes.
    names = ("run",) if hasattr(transactor, "run") else ("read", "write")
    for name in names:
        setattr(transactor, name, counting(getattr(transactor, name)))
    try:
        yield asked
    finally:
        for name in names:
            delattr(transactor, name)
