"""Death on the same host: a worker holds a `flock` on a file of its own; a free lock means that it is dead.

The kernel drops the lock with the process, however it ends. Pids are not used: they are reused, a killed process
that its parent has not reaped still has one, and containers have their own.

A `flock` belongs to the open file, not to the process. The worker's guard inherits the descriptor, so the lock is
free only when both are gone: a worker does not count as dead while its children are still being ended.
"""

import fcntl
import os
import weakref

from holdfast.errors import ConfigError


class HostLock:
    """Held from construction until `release`, or until this process is gone."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError where another user could put another file in its place, and OSError."""
        folder = os.path.dirname(path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ConfigError(
                f"{folder}, where workers keep their locks, belongs to another user or can be written to by others, "
                "who could have a living worker taken for dead: remove it, or use another (PostgreSQL: set TMPDIR)"
            )
        self.path = path
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise
        _held.add(self)

    def fileno(self) -> int:
        """For the guard to inherit. Only while the lock is held."""
        assert self._fd is not None
        return self._fd

    def release(self) -> None:
        if self._fd is not None:
            _remove(self.path)
            os.close(self._fd)
            self._fd = None


_held: "weakref.WeakSet[HostLock]" = weakref.WeakSet()


def _let_go_in_a_fork() -> None:
    """A forked child that does not exec (multiprocessing) would hold the lock for us after our death."""
    for lock in _held:
        if lock._fd is not None:
            os.close(lock._fd)
            lock._fd = None


os.register_at_fork(after_in_child=_let_go_in_a_fork)


def is_dead(path: str) -> bool:
    """True only if the file is there and unlocked. A missing one says nothing: it may be in a container."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that two who look at the same moment do not take each other for the holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def forget(path: str) -> None:
    """Remove the file of a worker that was found dead."""
    if is_dead(path):
        _remove(path)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
