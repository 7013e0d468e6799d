"""Whatever commands load, for processes that are forked with it: see `tests/support/forks.py`."""

import pkgutil
import warnings
from importlib import import_module

warnings.simplefilter("error")  # as `python -W error` has it: before what modules say of their own

for name in ("holdfast.store.sqlite.store", "holdfast.store.postgres.store", "holdfast.cli"):
    package = import_module(name)
for found in pkgutil.walk_packages(package.__path__, "holdfast.cli."):
    import_module(found.name)
