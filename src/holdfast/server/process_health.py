"""How this process is, its HTTP side included: for who asks it, and for the other processes that tell of all."""

from typing import Any

from holdfast import __version__
from holdfast.app import App
from holdfast.health.checks import diagnose, verdict
from holdfast.server.streams import Streams


def process_verdict(app: App, streams: Streams) -> dict[str, Any]:
    return _judged(verdict([app], __version__), streams)


def process_diagnosis(app: App, streams: Streams) -> dict[str, Any]:
    return {**_judged(diagnose([app], __version__, detailed=True), streams), "server": streams.figures()}


def _judged(found: dict[str, Any], streams: Streams) -> dict[str, Any]:
    going = streams.going and found["status"] != "unhealthy"
    return {**found, "status": "draining"} if going else found
