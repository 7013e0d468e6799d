"""`holdfast openapi`: the description of the HTTP API. The one command beside `serve` that loads the server."""

import json

from holdfast.cli.app_choice import app_of_data
from holdfast.cli.options import Where
from holdfast.server.http import http_app


def print_openapi(app_name: str | None) -> None:
    app = app_of_data(Where(app_name, None, None))
    print(json.dumps(http_app(app, token="t" * 32).openapi(), indent=1, ensure_ascii=False))
