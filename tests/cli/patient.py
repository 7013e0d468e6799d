"""The desk's app where a tool that hears nothing is waited for: whoever presses Ctrl-C again may take their time."""

from holdfast.worker import tool_body
from tests.cli.desk import app

__all__ = ["app"]

tool_body.KILL_S = 100.0
