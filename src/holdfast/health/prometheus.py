"""The figures of `health` as Prometheus text."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

STATUSES = ("ok", "degraded", "draining", "unhealthy")

_PUBLIC = {
    "thread_count": "threads of this process",
    "asyncio_task_count": "asyncio tasks of this process",
    "running_executions": "chats being driven now",
    "conversation_history_size": "messages kept in memory",
    "conversation_history_limit": "messages kept in memory at most, of one chat",
    "uptime_s": "seconds since this process started",
}
_PROCESS = {
    "rss_bytes": "resident memory",
    "descriptors": "open file descriptors",
    "descriptors_max": "open file descriptors at most",
}
_WORKER_GAUGES = {
    "chats": "chats being driven now",
    "chats_max": "chats driven at most",
    "draining": "1 while the worker hands over",
    "lease_trust_left_ms": "how long the worker may still act without a renewal",
    "loop_lag_ms": "how late the event loop is",
    "claim_ms": "duration of a claim, moving average",
    "commit_ms": "duration of a commit, moving average",
    "sync_threads": "threads for synchronous tools and hooks",
    "threads_abandoned": "threads that hang in somebody's code",
}
_WORKER_COUNTERS = {
    "claims_taken": "chats claimed",
    "claims_skipped": "claims not made for want of room or trust",
    "claims_failed": "claims that failed",
    "commits": "commits of runners",
    "commits_failed": "commits that failed and were tried again",
    "steps_missed": "steps that came to nothing, because the chat was not what they were made for",
    "chats_left_after_misses": "chats that a runner left because its steps came to nothing",
    "loop_stalls": "times the event loop stalled",
    "hooks_failed": "hooks that failed",
    "bodies_abandoned": "tool bodies that ignored their cancellation",
    "runner_errors": "runners that ended with an error",
    "chats_not_driven": "chats that the worker held and did not drive, found and handed over",
    "delta_flushes": "flushes of streamed text",
    "delta_flushes_failed": "flushes of streamed text that failed and were tried again",
    "previews_cut": "previews that ended before their response did",
    "poison_chats": "chats failed because they had lost every worker",
}


def prometheus(diagnosis: Mapping[str, Any]) -> bytes:
    """`diagnosis` is what `health.diagnose` found, in detail."""
    registry = CollectorRegistry()
    registry.register(_Collected(diagnosis))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, diagnosis: Mapping[str, Any]) -> None:
        self._found = diagnosis

    def collect(self) -> Iterator[Metric]:
        status = GaugeMetricFamily("holdfast_status", "1 for the status that is", labels=["status"])
        for name in STATUSES:
            status.add_metric([name], float(self._found["status"] == name))
        yield status
        reasons = GaugeMetricFamily("holdfast_reason", "1 for everything that is amiss", labels=["reason"])
        for reason in self._found["reasons"]:
            reasons.add_metric([reason], 1.0)
        yield reasons
        yield from _gauges("holdfast_", _PUBLIC, self._found["diagnostics"])
        yield from _gauges("holdfast_process_", _PROCESS, self._found.get("process", {}))
        workers = [worker for app in self._found.get("apps", ()) for worker in app["workers"] or ()]
        for name, text in _WORKER_GAUGES.items():
            yield _of_workers(GaugeMetricFamily(f"holdfast_worker_{name}", text, labels=["worker"]), name, workers)
        for name, text in _WORKER_COUNTERS.items():
            yield _of_workers(CounterMetricFamily(f"holdfast_worker_{name}", text, labels=["worker"]), name, workers)
        yield from _store(self._found.get("apps", ()))


def _gauges(prefix: str, names: Mapping[str, str], values: Mapping[str, Any]) -> Iterator[Metric]:
    for name, text in names.items():
        if isinstance(value := values.get(name), int | float):
            yield GaugeMetricFamily(f"{prefix}{name}", text, value=float(value))


def _of_workers(family: Any, name: str, workers: list[Mapping[str, Any]]) -> Metric:
    for worker in workers:
        if isinstance(value := worker.get(name), int | float):
            family.add_metric([str(worker.get("worker"))], float(value))
    metric: Metric = family
    return metric


def _store(apps: Any) -> Iterator[Metric]:
    """Every number that a store tells of itself."""
    family = GaugeMetricFamily("holdfast_store", "figures of the store", labels=["app", "figure"])
    for n, app in enumerate(apps):
        for name, value in (app["store"] or {}).items():
            if isinstance(value, int | float):
                family.add_metric([str(n), name], float(value))
    yield family
