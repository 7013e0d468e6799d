"""What a team alerts on: the figures of `/metrics`, and the rules and the dashboard that are built on them."""

import json
import re
from pathlib import Path

import httpx2 as httpx
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Agent, App, Hook, Veto, diagnostics, tool
from holdfast.health.prometheus import prometheus
from holdfast.server.http import http_app
from holdfast.telemetry import LABELS_MAX, OTHER, Distribution, Tally
from holdfast.testing import Call, Count, Fail, ScriptedModel
from tests.support.receiver import REACH, Receiver
from tests.support.turns import QUICK, rested
from tests.support.waiting import eventually

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"


@tool
async def fine() -> str:
    """All is well."""
    return "well"


@tool
async def fall() -> str:
    """Fall."""
    raise ValueError("off the rock")


@tool
async def pay() -> str:
    """Pay."""
    return "paid"


def guard(call: object, context: object) -> Veto | None:
    return Veto(reason="not on Sundays") if getattr(call, "name", "") == "pay" else None


def figures() -> dict[str, float]:
    """Every sample, by its name and its labels."""
    text = prometheus(diagnostics(detailed=True)).decode()
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_turns_calls_attempts_tokens_and_times_are_counted_by_what_became_of_them(store_url: str) -> None:
    calls = [Call(name=name) for name in ("fine", "fall", "pay", "made_up_by_the_model")]
    broke = [Fail(status=402, message="out of credit")]
    first = ScriptedModel(broke, broke, name="first")
    model = ScriptedModel([Count(input_tokens=30, output_tokens=12), *calls], "Done.", name="m")
    works = Agent("works", first, fallbacks=[model], tools=[fine, fall, pay], hooks=[Hook("before_tool", guard)])
    fails = Agent("fails", ScriptedModel([Fail(status=401, message="no such key")], name="n"))
    app = App(store_url, agents=[works, fails], retry=QUICK)
    async with app, app.worker():
        for agent in (works, fails):
            await rested(await app.create(agent, "go"))
        found = figures()
    assert found["holdfast_turns_total['', 'done', 'works']"] == 1
    assert found["holdfast_turns_total['authentication', 'failed', 'fails']"] == 1
    assert found["holdfast_attempts_failed_total['fallback', 'first', 'payment', 'works']"] == 2
    assert found["holdfast_attempts_failed_total['authentication', 'fails', 'n', 'none']"] == 1
    assert found["holdfast_steps_total['', 'm', 'works']"] == 2
    assert found["holdfast_tokens_total['input', 'm', 'works']"] >= 30
    outcomes = {("fine", "ok"), ("fall", "raised"), ("denied", "pay"), ("other", "refused")}
    for outcome in outcomes:
        assert found[f"holdfast_calls_total{sorted([*outcome, 'works'])}"] == 1
    assert found["holdfast_turn_seconds_count['works']"] == 1
    assert found["holdfast_first_token_seconds_count['m', 'works']"] == 2
    assert found["holdfast_call_seconds_count['fine', 'works']"] == 1
    assert found["holdfast_claim_delay_seconds_count[]"] == 2


async def test_what_endpoints_are_told_is_in_the_metrics(store_url: str) -> None:
    async with Receiver() as receiver:
        app = App(store_url, agents=[Agent("echo", "scripted")], webhook_reach=REACH)
        async with app, app.worker() as worker:
            await app.webhooks.create("ops", receiver.url)
            await app.webhooks.disable((await app.webhooks.create("other", receiver.url))[0].id)
            await rested(await app.create("echo", "go"))
            await receiver.until(lambda: len(receiver.got) == 1)

            async def is_settled() -> bool:
                return not await app.store.deliveries.any_pending()

            await eventually(is_settled)
            await worker.deliverer.sum_up()
            found = figures()
    told = {name: found[f"holdfast_webhooks_{name}{[worker.name]}"] for name in ("endpoints", "endpoints_disabled")}
    assert told == {"endpoints": 1, "endpoints_disabled": 1}
    for name in ("pending", "oldest_pending_s", "failed_attempts_total", "given_up_total", "shed_total"):
        assert found[f"holdfast_webhooks_{name}{[worker.name]}"] == 0
    assert found[f"holdfast_webhooks_delivered_total{[worker.name]}"] == 1


def test_the_labels_of_a_figure_are_bounded() -> None:
    tally, times = Tally("tool"), Distribution((1.0,), "tool")
    for n in range(LABELS_MAX + 50):
        tally.add(f"tool {n}")
        times.add(0.5, f"tool {n}")
    assert len(tally.counts) == LABELS_MAX + 1
    assert tally.counts[(OTHER,)] == 50
    assert len(times.told()["rows"]) == LABELS_MAX + 1


def test_a_distribution_counts_within_each_bound_and_beyond() -> None:
    times = Distribution((1.0, 5.0), "tool")
    for seconds in (0.5, 1.0, 3.0, 100.0):
        times.add(seconds, "a")
    assert times.told()["rows"] == [["a", 2, 1, 1, 104.5]]


async def test_every_figure_that_rules_and_dashboard_name_is_told(store_url: str) -> None:
    agent = Agent("a", ScriptedModel([Call(name="fine")], "Done."), tools=[fine])
    async with App(store_url, agents=[agent]) as app, app.worker():
        await rested(await app.create("a", "go"))
        headers = {"Authorization": "Bearer " + "t" * 32}
        transport = httpx.ASGITransport(app=http_app(app, token="t" * 32))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            text = (await client.get("/metrics")).text
    told = {name for family in text_string_to_metric_families(text) for name in _names(family.name, family.type)}
    panels = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = (MONITORING / "alerts.yml").read_text(encoding="utf-8")
    alerts = re.findall(r"^        expr: (.+)$", rules, re.MULTILINE)
    assert len(alerts) == rules.count("- alert: ")
    asked += alerts
    named = {name for expr in asked for name in re.findall(r"holdfast_[a-z_]+", expr)}
    assert named - told == set()


def _names(name: str, kind: str) -> set[str]:
    if kind == "counter":
        return {f"{name}_total"}
    return {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
