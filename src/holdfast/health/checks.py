"""What is going on in this process, as data: cheap, without secrets, and never in the way.

Collecting reads figures that others keep. It does no I/O but a look at /proc and at whether the database file is
there, waits for nothing, works without a running event loop and from any thread, and never raises: what cannot be
told is null, with the reason beside it.
"""

import asyncio
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from holdfast.config import HISTORY_LIMIT, Config
from holdfast.core.wake import WakeState
from holdfast.models.calls import Caller
from holdfast.models.resolve import Models
from holdfast.store.contract import Store
from holdfast.store.incidents import FAILED_OVER, WENT_BACK, Incident
from holdfast.store.write_probe import PROOF_S
from holdfast.system import cover
from holdfast.system.keys import is_sealed
from holdfast.tools.figures import figures as tool_figures
from holdfast.worker.held_chat import MISSES_MAX
from holdfast.worker.worker import Worker

Status = Literal["ok", "degraded", "draining", "unhealthy"]
Figure = Any

STALLED_MS = 1_000
STORE_FAILING_S = 5.0
MISSES_TOLD = 3  # steps in a row that came to nothing
INCIDENT_TOLD_S = 600.0
_STARTED = time.monotonic()


class OpenApp(Protocol):
    """What is looked at: an App that is open."""

    config: Config
    store: Store
    loop: asyncio.AbstractEventLoop | None

    @property
    def workers(self) -> Sequence[Worker]: ...

    @property
    def caller(self) -> Caller: ...

    @property
    def models(self) -> Models: ...


class Figures:
    """Values by name. One that cannot be read is None, and `unknown` says why."""

    def __init__(self) -> None:
        self.values: dict[str, Figure] = {}
        self.unknown: dict[str, str] = {}

    def add(self, name: str, read: Callable[[], Figure], absent: str = "not known here") -> None:
        try:
            value = read()
        except Exception as error:  # noqa: BLE001  a figure that cannot be read must not hide the others
            value, absent = None, f"{type(error).__name__}: {error}"
        self.values[name] = _sound(value)
        if value is None:
            self.unknown[name] = _sound(absent)

    def told(self) -> dict[str, Figure]:
        return {**self.values, "unknown": self.unknown} if self.unknown else self.values


def _sound(value: Figure) -> Figure:
    """Without lone surrogates, which no JSON can hold: a thread may be named after a file whose name is no text, and
    an error says what it likes.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_sound(name): _sound(inner) for name, inner in value.items()}
    return [_sound(inner) for inner in value] if isinstance(value, list) else value


def verdict(views: Sequence[OpenApp], version: str) -> dict[str, Figure]:
    """How this process is, without a figure: what anyone may know, of whom chats are none of the business."""
    status, reasons = judge(views)
    return {"status": status, "reasons": reasons, "version": version}


def diagnose(views: Sequence[OpenApp], version: str, *, detailed: bool = False) -> dict[str, Figure]:
    """The verdict, and a few counts. `detailed` adds what only an operator should see."""
    found = {**verdict(views, version), "diagnostics": _counts(views).told()}
    if detailed:
        found["process"] = _process(version).told()
        found["apps"] = [_app(view).told() for view in views]
    return found


# --- how it is ----------------------------------------------------------------------------------------


def judge(views: Sequence[OpenApp]) -> tuple[Status, list[str]]:
    """The status, and a code for everything that is not as it should be, worst first."""
    workers = [worker for view in views for worker in view.workers]
    stores = [view.store for view in views]
    unhealthy = sorted({*_codes(UNHEALTHY, workers), *_codes(STORE_UNHEALTHY, stores)})
    degraded = sorted({*_codes(DEGRADED, workers), *_codes(STORE_DEGRADED, stores)})
    if unhealthy:
        return "unhealthy", unhealthy + degraded
    if any(worker.draining for worker in workers):
        return "draining", degraded
    return ("degraded" if degraded else "ok"), degraded


def _codes(table: Mapping[str, Callable[[Any], bool]], things: Iterable[Any]) -> list[str]:
    things = list(things)
    return sorted(code for code, applies in table.items() if any(_holds(applies, thing) for thing in things))


def _holds(applies: Callable[[Any], bool], thing: Any) -> bool:
    try:
        return applies(thing)
    except Exception:  # noqa: BLE001  as above
        return False


UNHEALTHY: Mapping[str, Callable[[Worker], bool]] = {
    "loop_stalled": lambda worker: worker.watchdog is not None and worker.watchdog.lag_ms >= STALLED_MS,
    "lease_not_trusted": lambda worker: worker.running and worker.trust_left_ms == 0,
    "store_unavailable": lambda worker: worker.running and worker.store_failing_s >= STORE_FAILING_S,
}
DEGRADED: Mapping[str, Callable[[Worker], bool]] = {
    "guard_down": lambda worker: worker.running and worker.guard is not None and not worker.guard.alive,
    "hooks_suspended": lambda worker: bool(worker.hooks.suspended),
    "threads_abandoned": lambda worker: worker.sync.abandoned > 0,
    "tools_overdue": lambda worker: any(tool.age_s > tool.deadline_s + 5.0 for tool in worker.running_tools()),
    "store_failing": lambda worker: worker.running and 0 < worker.store_failing_s < STORE_FAILING_S,
    "mcp_server_away": lambda worker: any(link.away for link in worker.tool_servers.links),
    "mcp_server_needs_login": lambda worker: any(link.needs_login for link in worker.tool_servers.links),
    "steps_missed": lambda worker: any(missed >= MISSES_TOLD for missed in worker.missed_in_a_row),
    "tools_uncovered": lambda worker: worker.config.cover_tools == "always" and bool(cover.figures()["problem"]),
    "scheduler_silent": lambda worker: worker.running and worker.scheduler.is_silent,
    "chats_unreadable": lambda worker: worker.store.unreadable > 0,
}
STORE_UNHEALTHY: Mapping[str, Callable[[Store], bool]] = {
    "store_gone": lambda store: store.gone,
    "no_writes": lambda store: store.pulse.failing_s >= STORE_FAILING_S,
}
STORE_DEGRADED: Mapping[str, Callable[[Store], bool]] = {
    WENT_BACK: lambda store: _is_recent(store, WENT_BACK),
    FAILED_OVER: lambda store: _is_recent(store, FAILED_OVER),
    "wake_stream_down": lambda store: store.wakes is not None and store.wakes.state is WakeState.RECONNECTING,
    "writes_failing": lambda store: store.pulse.error is not None and store.pulse.failing_s < STORE_FAILING_S,
    "wal_in_doubt": lambda store: bool(store.stats().get("in_doubt")),
    "wal_over_bound": lambda store: _over(store.stats(), "wal_bytes", "wal_bytes_bound"),
}


def _is_recent(store: Store, incident: Incident) -> bool:
    age_s = store.incidents.age_s(incident)
    return age_s is not None and age_s < INCIDENT_TOLD_S


def _over(stats: Mapping[str, Any], value: str, bound: str) -> bool:
    return value in stats and bound in stats and stats[value] > stats[bound]


# --- figures ------------------------------------------------------------------------------------------


def _counts(views: Sequence[OpenApp]) -> Figures:
    workers = [worker for view in views for worker in view.workers]
    figures = Figures()
    figures.add("thread_count", threading.active_count)
    figures.add("asyncio_task_count", lambda: _task_count(views), "no event loop of holdfast runs in this process")
    figures.add("running_executions", lambda: sum(len(worker.running_chats) for worker in workers))
    figures.add("conversation_history_size", lambda: sum(worker.history_size for worker in workers))
    figures.add(
        "conversation_history_limit",
        lambda: max((view.config.history_limit for view in views), default=HISTORY_LIMIT),
    )
    pulses = [view.store.pulse for view in views]
    ages = [pulse.age_s for pulse in pulses if pulse.age_s is not None]
    figures.add("write_proved_s", lambda: _rounded(max(ages, default=None)), "no write was proved yet")
    figures.add("write_proved_s_max", lambda: PROOF_S)
    figures.add("writes_failing_s", lambda: _rounded(max((pulse.failing_s for pulse in pulses), default=0.0)))
    figures.add("writes_failing_s_max", lambda: STORE_FAILING_S)
    figures.add("uptime_s", lambda: round(time.monotonic() - _STARTED, 1))
    return figures


def _task_count(views: Sequence[OpenApp]) -> int | None:
    loops = {view.loop for view in views if view.loop is not None and not view.loop.is_closed()}
    return sum(len(asyncio.all_tasks(loop)) for loop in loops) if loops else None


def _process(version: str) -> Figures:
    figures = Figures()
    figures.add("pid", os.getpid)
    figures.add("rss_bytes", _rss_bytes)
    figures.add("descriptors", lambda: len(list(Path("/dev/fd").iterdir())))
    figures.add("descriptors_max", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    figures.add("tools", tool_figures)
    figures.add("environment_open_to_tools", _environment_is_open, "no process was started for a tool yet")
    figures.add("threads", lambda: sorted(thread.name for thread in threading.enumerate()))
    figures.add(
        "versions",
        lambda: {"holdfast": version, "python": platform.python_version(), "platform": platform.platform()},
    )
    return figures


def _environment_is_open() -> bool | None:
    """To what tools start: of one of our commands it is not."""
    return False if is_sealed() else cover.is_open()


def _rss_bytes() -> int:
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    # Not what is, but what was at most: all that macOS tells without a library. In bytes there, in KiB elsewhere.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _app(view: OpenApp) -> Figures:
    figures = Figures()
    figures.add("store", lambda: view.store.stats())
    figures.add("last_write_error", lambda: view.store.pulse.error, "there was none")
    figures.add("providers", lambda: view.caller.providers.figures())
    figures.add("transport", lambda: view.models.figures())
    figures.add("local_models", lambda: view.models.local_figures())
    figures.add("workers", lambda: [worker_figures(worker).told() for worker in view.workers])
    return figures


def worker_figures(worker: Worker) -> Figures:
    figures = Figures()
    figures.add("worker", lambda: worker.name)
    figures.add("agents", lambda: worker.agents)
    figures.add("draining", lambda: worker.draining)
    figures.add("chats", lambda: len(worker.running_chats))
    figures.add("chats_max", lambda: worker.config.chats_max)
    figures.add("chats_of_one_owner", lambda: max(worker.chats_by_owner().values(), default=0))
    figures.add("chats_per_owner_max", lambda: worker.config.chats_per_owner_max)
    figures.add("lease_trust_left_ms", lambda: worker.trust_left_ms)
    figures.add("lease_ttl_ms", lambda: worker.store.options.lease_ttl_ms)
    watchdog, off = worker.watchdog, "the worker is not started"
    figures.add("loop_lag_ms", lambda: watchdog.lag_ms if watchdog else None, off)
    figures.add("loop_stalls", lambda: watchdog.stall_count if watchdog else None, off)
    figures.add("last_stalls", lambda: [_as_dict(stall) for stall in watchdog.stalls[-5:]] if watchdog else None, off)
    figures.add("claims_made", lambda: worker.claim_times.count)
    figures.add("claims_taken", lambda: worker.claims_taken)
    figures.add("claims_skipped", lambda: worker.claims_skipped)
    figures.add("claims_failed", lambda: worker.claim_times.failed)
    figures.add("claim_ms", lambda: _rounded(worker.claim_times.average_ms), "none was made yet")
    figures.add("commits", lambda: worker.commit_times.count)
    figures.add("commits_failed", lambda: worker.commit_times.failed)
    figures.add("steps_missed", lambda: worker.misses.count)
    figures.add("steps_missed_in_a_row", lambda: max(worker.missed_in_a_row, default=0))
    figures.add("steps_missed_in_a_row_max", lambda: MISSES_MAX)
    figures.add("chats_left_after_misses", lambda: worker.misses.left)
    figures.add("commit_ms", lambda: _rounded(worker.commit_times.average_ms), "none was made yet")
    figures.add("commit_longest_ms", lambda: _rounded(worker.commit_times.longest_ms))
    figures.add("tools_running", lambda: [_as_dict(tool) for tool in worker.running_tools()])
    figures.add("mcp_servers", lambda: [_told(worker, link.figures()) for link in worker.tool_servers.links])
    figures.add("hooks_suspended", lambda: worker.hooks.suspended)
    figures.add("hooks_failed", lambda: worker.hooks.failed)
    figures.add("sync_threads", lambda: worker.sync.thread_count)
    figures.add("sync_threads_max", lambda: worker.sync.size)
    figures.add("threads_abandoned", lambda: worker.sync.abandoned)
    figures.add("bodies_abandoned", lambda: worker.bodies_abandoned)
    figures.add("history_bytes", lambda: worker.histories.bytes)
    figures.add("history_bytes_max", lambda: worker.histories.bytes_max)
    figures.add("strays", lambda: len(worker.strays))
    figures.add("chats_not_driven", lambda: worker.strays.found)
    figures.add("runner_errors", lambda: worker.runner_errors)
    figures.add("last_error", lambda: worker.last_error, "there was none")
    figures.add("delta_flushes", lambda: worker.deltas.flushes)
    figures.add("delta_flushes_failed", lambda: worker.deltas.failed_flushes)
    figures.add("delta_bytes", lambda: worker.deltas.buffered_bytes)
    figures.add("delta_bytes_max", lambda: worker.deltas.buffered_bytes_max)
    figures.add("previews_cut", lambda: worker.deltas.streams_cut)
    figures.add("repairs", lambda: dict(worker.sweeper.repairs))
    figures.add("receipts_pruned", lambda: worker.receipts_pruned)
    figures.add("retention", worker.pruner.figures)
    figures.add("schedules", lambda: _told(worker, worker.scheduler.figures()))
    figures.add("webhooks", worker.deliverer.figures)
    figures.add("poison_chats", lambda: worker.store.recovery.poisoned)
    figures.add("titles_made", lambda: worker.titles.made)
    figures.add("memory", lambda: _told(worker, worker.chronicler.figures()))
    figures.add("budgets", worker.draws.figures)
    figures.add("compactions_made", lambda: worker.compactions.made)
    figures.add("compactions_trimmed", lambda: worker.compactions.trimmed)
    figures.add("compactions_failed", lambda: worker.compactions.failed)
    figures.add("last_compaction_error", lambda: worker.compactions.last_error, "there was none")
    figures.add("outcomes", worker.outcomes.told)
    figures.add("guard", lambda: _guard(worker), "it is not started")
    return figures


def _guard(worker: Worker) -> dict[str, Figure] | None:
    guard = worker.guard
    if guard is None:
        return None
    return {
        "alive": guard.alive,
        "pid": guard.pid,
        "groups": guard.group_count,
        "restarts": guard.restarts,
        "last_error": guard.last_error,
    }


def _told(worker: Worker, figures: dict[str, Any]) -> dict[str, Figure]:
    """What another program said may hold what it was given."""
    clean = worker.secrets.taken_out
    return {name: clean(value) if isinstance(value, str) else value for name, value in figures.items()}


def _as_dict(record: Any) -> dict[str, Figure]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)
