"""The alert rules and the dashboard are loaded as their programs load them.

The rules, and every expression of the dashboard, by Prometheus' own `promtool`. Grafana itself is in no registry that
tests may use: of the dashboard's form we check what Grafana asks for when it imports a file.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast import diagnostics
from holdfast.health.prometheus import prometheus as metrics_text
from tests.support import distribution

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
RULES = MONITORING / "alerts.yml"
CHECK_S = 60.0
COLUMNS = 24  # of Grafana's grid
PANELS = {"timeseries", "stat", "gauge", "table", "heatmap", "bargauge", "row", "text", "piechart", "state-timeline"}
UID = re.compile(r"[A-Za-z0-9_-]{1,40}")


@pytest.fixture
def tool() -> str:
    program = distribution.find("promtool")
    if program is None:
        pytest.skip(distribution.missing("promtool"))
    return program


def promtool(program: str, *arguments: str, given: str = "") -> tuple[int, str]:
    """Its exit code, and all that it said."""
    done = subprocess.run(
        [program, *arguments], input=given, timeout=CHECK_S, check=False, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def dashboard() -> dict[str, Any]:
    made: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    return made


def test_prometheus_takes_the_alert_rules(tool: str) -> None:
    code, said = promtool(tool, "check", "rules", str(RULES))
    alerts = RULES.read_text(encoding="utf-8").count("- alert: ")
    assert code == 0, said
    assert f"SUCCESS: {alerts} rules found" in said


def test_prometheus_takes_every_expression_of_the_dashboard(tool: str, tmp_path: Path) -> None:
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    written = [expr.replace("$__rate_interval", "5m").replace("$__interval", "1m") for expr in asked]
    rules = [{"record": f"dashboard:{n}", "expr": expr} for n, expr in enumerate(written)]
    file = tmp_path / "dashboard.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML, too
    code, said = promtool(tool, "check", "rules", str(file))
    assert code == 0, said
    assert f"SUCCESS: {len(asked)} rules found" in said
    file.write_text(json.dumps({"groups": [{"name": "d", "rules": [{"record": "a:b", "expr": "rate(holdfast_x"}]}]}))
    assert promtool(tool, "check", "rules", str(file))[0] != 0, "what is wrong is found"


def test_turns_that_fail_and_a_process_that_is_unhealthy_raise_their_alerts(tool: str, tmp_path: Path) -> None:
    fails = 'holdfast_turns_total{agent="a",cause="payment",outcome="failed",instance="i"}'
    sick = 'holdfast_status{status="unhealthy",instance="i"}'
    series = [{"series": fails, "values": "0+12x40"}, {"series": sick, "values": "1x40"}]

    def raised(name: str, labels: dict[str, str]) -> dict[str, Any]:
        return {"eval_time": "30m", "alertname": name, "exp_alerts": [{"exp_labels": labels}]}

    unhealthy = {"status": "unhealthy", "instance": "i"}
    wanted = [
        raised("HoldfastTurnsFail", {"agent": "a", "cause": "payment"}),
        raised("HoldfastUnhealthy", unhealthy),
    ]
    bare = re.sub(r"\n        annotations:\n          summary: .*", "", RULES.read_text(encoding="utf-8"))
    (tmp_path / "rules.yml").write_text(bare)
    tests = {
        "rule_files": [str(tmp_path / "rules.yml")],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": wanted}],
    }
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps(tests))
    code, said = promtool(tool, "test", "rules", str(file))
    assert code == 0, said
    assert "SUCCESS" in said
    wanted[0]["exp_alerts"][0]["exp_labels"]["cause"] = "kelp"
    file.write_text(json.dumps(tests))
    assert promtool(tool, "test", "rules", str(file))[0] != 0


def test_prometheus_reads_what_the_metrics_tell(tool: str) -> None:
    text = metrics_text(diagnostics(detailed=True)).decode()
    code, said = promtool(tool, "check", "metrics", given=text)
    assert code in (0, 3), said  # 3: it was read, and has advice on names
    assert "error while" not in said


def test_the_dashboard_has_what_grafana_asks_for() -> None:
    made = dashboard()
    assert made["title"]
    assert UID.fullmatch(made["uid"])
    assert isinstance(made["schemaVersion"], int)
    assert made.get("id") is None, "an id of another Grafana would be overwritten"
    assert {"from", "to"} <= set(made["time"])
    variables = {variable["name"]: variable for variable in made["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in made["panels"]:
        assert panel["type"] in PANELS, panel["title"]
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        refs = [target["refId"] for target in panel["targets"]]
        assert refs
        assert len(set(refs)) == len(refs)
        assert all(target["expr"].strip() for target in panel["targets"])


def test_no_two_panels_of_the_dashboard_lie_on_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS, panel["title"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
