"""A path that a person gave, and that is not as it has to be: one line that names it, not a traceback."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.log_context import logger
from holdfast.safe_text import safe

log = logger("holdfast.cli")

# What is wrong with a path, or with the disk that it is on. Any other error is a bug of ours, and goes on as it is.
OF_PATHS = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EEXIST,
        errno.EFBIG,
        errno.EIO,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


@contextmanager
def given_path(path: Path) -> Iterator[None]:
    """Around what is done with that path, and with nothing else. Raises ConfigError."""
    try:
        yield
    except OSError as error:
        if error.errno not in OF_PATHS:
            raise
        log.debug("a path cannot be used", exc_info=True, extra={"action": "cli.path_refused"})
        raise ConfigError(f"{safe(str(_named(path, error)))}: {error.strerror}") from error


def _named(path: Path, error: OSError) -> Path:
    """The path itself, or the folder on the way to it. The error may name a temporary file, or none at all."""
    named = Path(str(error.filename or path))
    return named if named in path.parents else path
