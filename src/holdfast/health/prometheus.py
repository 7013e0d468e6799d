"""The figures of `health` as Prometheus text."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
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
_SERVER = {
    "streams": "event streams that are open",
    "streams_max": "event streams at most",
    "feeds": "chats that readers follow",
    "feed_readers": "readers of feeds",
    "connections": "connections that are open",
    "connections_max": "connections at most",
}
_SERVER_COUNTERS = {
    "streams_cut_off": "event streams whose reader took nothing",
    "connections_refused": "connections that were refused, because all were busy",
    "connections_closed_idle": "connections that were closed to make room",
}
_WORKER_GAUGES = {
    "chats": "chats being driven now",
    "chats_max": "chats driven at most",
    "chats_of_one_owner": "chats being driven now of the owner that has most",
    "draining": "1 while the worker hands over",
    "lease_trust_left_ms": "how long the worker may still act without a renewal",
    "loop_lag_ms": "how late the event loop is",
    "claim_ms": "duration of a claim, moving average",
    "commit_ms": "duration of a commit, moving average",
    "sync_threads": "threads for synchronous tools and hooks",
    "threads_abandoned": "threads that hang in a user's code",
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
    "hooks_failed": "hooks that failed, or gave no answer in time",
    "bodies_abandoned": "tool bodies that ignored their cancellation",
    "runner_errors": "runners that ended with an error",
    "chats_not_driven": "chats that the worker held and did not drive, found and handed over",
    "delta_flushes": "flushes of streamed text",
    "delta_flushes_failed": "flushes of streamed text that failed and were tried again",
    "previews_cut": "previews that ended before their response did",
    "poison_chats": "chats failed because they had lost every worker",
}


# What endpoints are told. What waits is of the whole store, and the same for all workers of it.
_WEBHOOK_GAUGES = {
    "pending": "events that wait for an endpoint, as far as they are counted",
    "oldest_pending_s": "seconds since the oldest of them happened",
    "endpoints": "endpoints that are told",
    "endpoints_disabled": "endpoints that are told nothing, because a receiver or a person said so",
    "sending": "attempts under way",
}
_WEBHOOK_COUNTERS = {
    "delivered": "events that an endpoint took",
    "failed_attempts": "attempts that failed",
    "given_up": "events that no attempt is made for any more",
    "shed": "events that were given up because too many waited for their endpoint",
}


# Of all workers of the process together; their labels are bounded (telemetry.LABELS_MAX).
_TALLIES = {
    "turns": "turns that ended, by outcome and cause",
    "steps": "model responses; finish says of one that is not whole why",
    "tokens": "tokens of model responses, by kind",
    "cost": "what model calls cost, by the agents' prices",
    "attempts_failed": "attempts at a model call that failed, and what followed",
    "calls": "tool calls, by how they ended or whom they wait for",
    "handovers": "chats that were released, or taken over from a worker that was lost",
}
_DURATIONS = {
    "turn_s": ("turn_seconds", "from a turn's start to its end"),
    "first_token_s": ("first_token_seconds", "from the request to the first piece of a response"),
    "call_s": ("call_seconds", "how long a tool ran"),
    "claim_delay_s": ("claim_delay_seconds", "from a turn's start to its first claim"),
}


# Of the requests to this process; routes are templates.
_HTTP_TALLIES = {
    "requests": "requests that were answered, by the class of their status; left: the client did not wait",
    "refused": "requests that were refused, by the code of the problem",
}
_HTTP_DURATIONS = {"seconds": ("seconds", "from a request to the end of its answer, without streams")}


def metrics_of(diagnosis: Mapping[str, Any]) -> Iterator[Metric]:
    return _Collected(diagnosis).collect()


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
        hooks = [{"worker": worker.get("worker"), **(worker.get("webhooks") or {})} for worker in workers]
        for name, text in _WEBHOOK_GAUGES.items():
            yield _of_workers(GaugeMetricFamily(f"holdfast_webhooks_{name}", text, labels=["worker"]), name, hooks)
        for name, text in _WEBHOOK_COUNTERS.items():
            yield _of_workers(CounterMetricFamily(f"holdfast_webhooks_{name}", text, labels=["worker"]), name, hooks)
        outcomes = [worker["outcomes"] for worker in workers if worker.get("outcomes")]
        yield from _tallies("holdfast_", _TALLIES, outcomes)
        yield from _durations("holdfast_", _DURATIONS, outcomes)
        yield from _server(self._found.get("server", {}))
        yield from _store(self._found.get("apps", ()))


def _gauges(prefix: str, names: Mapping[str, str], values: Mapping[str, Any]) -> Iterator[Metric]:
    for name, text in names.items():
        if isinstance(value := values.get(name), int | float):
            yield GaugeMetricFamily(f"{prefix}{name}", text, value=float(value))


def _of_workers(family: Any, name: str, workers: Sequence[Mapping[str, Any]]) -> Metric:
    for worker in workers:
        if isinstance(value := worker.get(name), int | float):
            family.add_metric([str(worker.get("worker"))], float(value))
    metric: Metric = family
    return metric


def _server(figures: Mapping[str, Any]) -> Iterator[Metric]:
    yield from _gauges("holdfast_server_", _SERVER, figures)
    for name, text in _SERVER_COUNTERS.items():
        if name in figures:
            yield CounterMetricFamily(f"holdfast_server_{name}", text, value=float(figures[name]))
    http = [figures["http"]] if "http" in figures else []
    yield from _tallies("holdfast_http_", _HTTP_TALLIES, http)
    yield from _durations("holdfast_http_", _HTTP_DURATIONS, http)
    for told in http:
        yield GaugeMetricFamily("holdfast_http_answering", "requests being answered", value=told["answering"])


def _tallies(prefix: str, names: Mapping[str, str], outcomes: list[Mapping[str, Any]]) -> Iterator[Metric]:
    for name, text in names.items():
        sums: dict[tuple[str, ...], float] = {}
        labels: list[str] = []
        for told in outcomes:
            labels = told[name]["labels"]
            for *values, count in told[name]["counts"]:
                sums[tuple(values)] = sums.get(tuple(values), 0.0) + count
        family = CounterMetricFamily(f"{prefix}{name}", text, labels=labels)
        for values, count in sums.items():
            family.add_metric(values, count)
        yield family


def _durations(
    prefix: str, kinds: Mapping[str, tuple[str, str]], outcomes: list[Mapping[str, Any]]
) -> Iterator[Metric]:
    for name, (shown, text) in kinds.items():
        sums: dict[tuple[str, ...], list[float]] = {}
        labels: list[str] = []
        bounds: list[float] = []
        for told in outcomes:
            labels, bounds = told[name]["labels"], told[name]["bounds_s"]
            for row in told[name]["rows"]:
                values, counts = tuple(row[: len(labels)]), row[len(labels) :]
                known = sums.setdefault(values, [0.0] * len(counts))
                sums[values] = [had + came for had, came in zip(known, counts, strict=True)]
        family = HistogramMetricFamily(f"{prefix}{shown}", text, labels=labels)
        for values, (*counts, total) in sums.items():
            names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
            family.add_metric(values, list(zip(names, accumulate(counts), strict=True)), total)
        yield family


def _store(apps: Any) -> Iterator[Metric]:
    """Every number that a store tells of itself."""
    family = GaugeMetricFamily("holdfast_store", "figures of the store", labels=["app", "figure"])
    for n, app in enumerate(apps):
        for name, value in (app["store"] or {}).items():
            if isinstance(value, int | float):
                family.add_metric([str(n), name], float(value))
    yield family
