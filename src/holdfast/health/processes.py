"""How several processes of one command are, as one: what each told of itself, and what their supervisor knows.

A process that gave no answer in time is named as silent; one that is being replaced while its successor is there does
not count against the whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from holdfast.health.checks import Figure, Status
from holdfast.health.prometheus import metrics_of

MISSING, SILENT = "processes_missing", "process_silent"
# Of the counts that each tells: these are added up. Of others the largest is told.
_ADDED = frozenset({"thread_count", "asyncio_task_count", "running_executions", "conversation_history_size"})

Told = Mapping[str, Any]
"""What `system.supervised` has from the supervisor: `supervisor`, and `processes` with what each `told`."""


def together(told: Told, version: str, *, detailed: bool) -> dict[str, Figure]:
    status, reasons = judge_all(told)
    found: dict[str, Figure] = {"status": status, "reasons": reasons, "version": version}
    found["processes"] = [_line(process, detailed=detailed) for process in told["processes"]]
    if detailed:
        answers = [process["told"] for process in told["processes"] if process["told"]]
        found["supervisor"] = dict(told["supervisor"])
        found["diagnostics"] = _added([answer["diagnostics"] for answer in answers])
        found["apps"] = [app for answer in answers for app in answer.get("apps") or ()]
    return found


def judge_all(told: Told) -> tuple[Status, list[str]]:
    """Work comes to all through one door, so that it is open while one of them can do some."""
    staying = [process for process in told["processes"] if process["state"] == "ready"]
    answers = [process["told"] for process in staying if process["told"]]
    able = [answer for answer in answers if answer["status"] in ("ok", "degraded")]
    reasons = sorted({reason for answer in answers for reason in answer["reasons"]})
    if len(able) < told["supervisor"]["processes_wanted"]:
        reasons.append(MISSING)
    if len(answers) < len(staying):
        reasons.append(SILENT)
    if told["supervisor"]["draining"]:
        return "draining", reasons
    if not able:
        return "unhealthy", reasons
    return ("degraded" if reasons else "ok"), reasons


def _line(process: Mapping[str, Any], *, detailed: bool) -> dict[str, Figure]:
    answer = process["told"] or {}
    line = {"number": process["number"], "state": process["state"], "status": answer.get("status", "silent")}
    line["reasons"] = answer.get("reasons", [])
    if detailed:
        line |= {"pid": process["pid"], "uptime_s": process["uptime_s"]}
        line |= {name: answer[name] for name in ("diagnostics", "process", "server") if name in answer}
    return line


def _added(counts: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for name in dict.fromkeys(name for told in counts for name in told if name != "unknown"):
        values = [told[name] for told in counts if isinstance(told.get(name), int | float)]
        found[name] = (sum(values) if name in _ADDED else max(values)) if values else None
    return found


def prometheus_of_all(told: Told) -> bytes:
    """Each process's own, with its number as a label: a counter of one that was started anew begins at zero, and no
    sum over all of them jumps.
    """
    registry = CollectorRegistry()
    registry.register(_CollectedFromAll(told))
    return generate_latest(registry)


class _CollectedFromAll(Collector):
    def __init__(self, told: Told) -> None:
        self._told = told

    def collect(self) -> list[Metric]:
        families: dict[str, Metric] = {}
        for process in self._told["processes"]:
            for metric in metrics_of(process["told"]) if process["told"] else ():
                family = families.setdefault(metric.name, metric_like(metric))
                for sample in metric.samples:
                    labels = {"process": str(process["number"]), **sample.labels}
                    family.samples.append(sample._replace(labels=labels))
        return [*self._of_supervisor(), *families.values()]

    def _of_supervisor(self) -> list[Metric]:
        facts = self._told["supervisor"]
        states = GaugeMetricFamily("holdfast_processes", "processes under the supervisor, by state", labels=["state"])
        for state in ("starting", "ready", "draining"):
            count = sum(process["state"] == state for process in self._told["processes"])
            states.add_metric([state], float(count))
        wanted = float(facts["processes_wanted"])
        return [
            states,
            GaugeMetricFamily("holdfast_processes_wanted", "processes that there should be", value=wanted),
            CounterMetricFamily(
                "holdfast_process_restarts", "processes that ended by themselves", value=float(facts["restarts"])
            ),
        ]


def metric_like(metric: Metric) -> Metric:
    return Metric(metric.name, metric.documentation, metric.type)
