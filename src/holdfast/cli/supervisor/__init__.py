"""Several processes of one command: a supervisor starts them, hands them one socket, replaces those that end."""

import os
from typing import NoReturn

import typer

from holdfast.cli.logs import set_up_logging
from holdfast.cli.supervisor.supervisor import Supervisor
from holdfast.cli.trust import check_trust
from holdfast.config import Config, load_config
from holdfast.errors import ConfigError
from holdfast.system.supervised import VARIABLE

PROCESSES_MAX = 512


def supervise_if_wanted(processes: str | None) -> None:
    """Does not return where several processes are wanted: it is their supervisor then. Raises ConfigError."""
    if VARIABLE in os.environ:  # one of them
        return
    check_trust()
    config = load_config(processes=_number(processes))  # type: ignore[arg-type]  # judged there
    count = count_of(config)
    if count > 1:
        _supervise(count, config)


def _number(given: str | None) -> "int | str | None":
    """Raises ConfigError."""
    if given is None or given == "auto":
        return given
    if given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= PROCESSES_MAX:
        return int(given)
    raise ConfigError(f"--processes is {given!r}; it is a number from 1 to {PROCESSES_MAX}, or auto")


def count_of(config: Config) -> int:
    """Raises ConfigError."""
    if config.processes == "auto":
        return cores()
    if config.processes > PROCESSES_MAX:
        raise ConfigError(f"processes is {config.processes}; it can be at most {PROCESSES_MAX}")
    return config.processes


def cores() -> int:
    """That this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _supervise(count: int, config: Config) -> NoReturn:
    set_up_logging(config.log_level, config.log_format)
    raise typer.Exit(Supervisor(count).run())
