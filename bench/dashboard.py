"""The dashboard of docs/monitoring with the figures of a storm: `python -m bench.dashboard docs/dashboard.png [S]`.

Three servers with a worker each, a real Prometheus that asks them every two seconds, and people who start chats. In
the middle third servers are killed with -9 or told to stop, and started again. Then every panel is drawn from its own
query, as the dashboard's file has it, asked of that Prometheus. Debian has it: `apt-get install prometheus`. It takes
four minutes longer than what it shows.
"""

import asyncio
import io
import json
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import httpx2

from holdfast.server.access import load_token
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
DASHBOARD = ROOT / "docs" / "monitoring" / "dashboard.json"
SERVERS = 3
SCRAPE_S = 2
EVERY_S = 0.6  # between two new chats
LOST_TOKENS = 0.05  # of all people
WARM_S = 240.0  # before the picture begins: the dashboard's rates look minutes back
BLOW_S = 9.0  # between two blows of the storm
WEIGHTS = {"support": 5, "billing": 4, "broke": 1}
TITLE = "docs/monitoring/dashboard.json, three servers; shaded: a storm of kill -9 and SIGTERM"
UNITS = {"ops": "per second", "s": "seconds"}

SCRAPE = """
global: {{scrape_interval: {every}s, scrape_timeout: {every}s}}
scrape_configs:
  - job_name: holdfast
    metrics_path: /metrics
    authorization: {{credentials_file: {token}}}
    static_configs:
{targets}
"""


class Server:
    """One that is started again under the same port, as a supervisor does."""

    def __init__(self, n: int, folder: Path) -> None:
        self.name = f"server {n}"
        self.port = free_port()
        self._folder = folder
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        command = ["serve", "bench.weathered:app", "--port", str(self.port), "--home", str(self._folder)]
        with (self._folder / "words").open("ab") as words:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "holdfast", *command, cwd=ROOT, stdout=words, stderr=words
            )

    async def end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(how)
            await self._process.wait()


async def prometheus(servers: list[Server], folder: Path, port: int) -> Process:
    program = shutil.which("prometheus")
    assert program is not None, "there is no prometheus here: apt-get install prometheus"
    token = folder / "scrape-token"
    token.write_text(load_token(str(folder))[0])
    targets = "\n".join(
        f'      - {{targets: ["127.0.0.1:{one.port}"], labels: {{instance: "{one.name}"}}}}' for one in servers
    )
    settings = folder / "prometheus.yml"
    settings.write_text(SCRAPE.format(every=SCRAPE_S, token=token, targets=targets))
    where = [f"--config.file={settings}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus-words").open("wb") as words:
        return await asyncio.create_subprocess_exec(
            program, *where, f"--web.listen-address=127.0.0.1:{port}", stdout=words, stderr=words
        )


async def start_chats(servers: list[Server], token: str, until: float) -> None:
    """People: each starts a chat with one of the servers and reads what comes of it. Some have lost their token."""
    reading: set[asyncio.Task[None]] = set()
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(timeout=30, headers=headers, limits=httpx2.Limits(max_connections=None)) as client:
        while time.monotonic() < until:
            (agent,) = random.choices(list(WEIGHTS), list(WEIGHTS.values()))
            task = asyncio.create_task(talk(client, random.choice(servers), agent))
            reading.add(task)
            task.add_done_callback(reading.discard)
            await asyncio.sleep(EVERY_S)
        for task in reading:
            task.cancel()


async def talk(client: httpx2.AsyncClient, server: Server, agent: str) -> None:
    with suppress(httpx2.HTTPError):  # it is being started: another person's chat
        if random.random() < LOST_TOKENS:
            await client.get(f"{server.url}/api/chats", headers={"authorization": "Bearer lost"})
            return
        made = await client.post(f"{server.url}/api/chats", json={"agent": agent, "message": "Could you help me?"})
        if made.status_code != 201:
            return
        async with client.stream("GET", f"{server.url}/api/chats/{made.json()['id']}/events") as answer:
            async for _ in answer.aiter_bytes():
                pass


async def blow(servers: list[Server], begin: float, end: float) -> list[float]:
    """When each blow fell."""
    await asyncio.sleep(max(0.0, begin - time.monotonic()))
    fell: list[float] = []
    for n in range(1_000):
        if time.monotonic() >= end:
            break
        server = servers[n % len(servers)]
        fell.append(time.time())
        await server.end(signal.SIGTERM if n % 3 == 2 else signal.SIGKILL)
        await server.start()
        await asyncio.sleep(BLOW_S)
    return fell


def asked(port: int, query: str, begin: float, end: float) -> list[dict[str, Any]]:
    values = {"query": query, "start": begin, "end": end, "step": SCRAPE_S}
    with urlopen(f"http://127.0.0.1:{port}/api/v1/query_range?{urlencode(values)}", timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def legend(form: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        form = form.replace("{{" + name + "}}", value or "–")
    return form


def lines(
    port: int, panel: dict[str, Any], begin: float, end: float
) -> Iterator[tuple[str, list[float], list[float]]]:
    for target in panel["targets"]:
        for series in asked(port, target["expr"], begin, end):
            when: list[float] = []
            values: list[float] = []
            for at, value in series["values"]:
                if when and float(at) - begin - when[-1] > 3 * SCRAPE_S:  # it was away: no line leads over that
                    when.append(float(at) - begin)
                    values.append(math.nan)
                when.append(float(at) - begin)
                values.append(float(value))
            yield legend(target["legendFormat"], series["metric"]), when, values


def draw(port: int, begin: float, end: float, fell: list[float], path: Path) -> None:
    import matplotlib  # noqa: PLC0415  only here, and it takes its time

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415  which matplotlib brings

    panels = json.loads(DASHBOARD.read_text())["panels"]
    rows = 1 + max(panel["gridPos"]["y"] for panel in panels) // panels[0]["gridPos"]["h"]
    figure, axes = pyplot.subplots(rows, 2, figsize=(13, 2.55 * rows), dpi=75, constrained_layout=True)
    for panel in panels:
        place = panel["gridPos"]
        at = axes[place["y"] // place["h"]][place["x"] // place["w"]]
        for name, when, values in lines(port, panel, begin, end):
            at.plot(when, values, label=name, linewidth=1.4)
        at.axvspan(fell[0] - begin, fell[-1] - begin, color="#f3e2d0", zorder=0)
        for blow_at in fell:
            at.axvline(blow_at - begin, color="#d9b48f", linewidth=0.7, zorder=0)
        at.set_title(panel["title"], fontsize=10, loc="left", fontweight="bold")
        unit = UNITS.get(panel["fieldConfig"]["defaults"].get("unit", ""), "")
        at.set_ylabel(unit, fontsize=8)
        at.set_xlim(0, end - begin)
        at.set_ylim(bottom=0, top=1.3 * at.get_ylim()[1])
        at.tick_params(labelsize=8)
        at.grid(visible=True, color="#e8e8e8", linewidth=0.6)
        if at.get_legend_handles_labels()[1]:
            at.legend(fontsize=7, loc="upper left", ncols=2, framealpha=0.85)
    figure.suptitle(TITLE, fontsize=11)
    figure.supxlabel("seconds", fontsize=9)
    whole = io.BytesIO()
    figure.savefig(whole)
    Image.open(whole).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(path, optimize=True)


async def main(path: Path, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        servers = [Server(n, folder) for n in range(1, SERVERS + 1)]
        port = free_port()
        watching = await prometheus(servers, folder, port)
        try:
            for server in servers:
                await server.start()
            await is_watched(port)
            began, clock = time.time() + WARM_S, time.monotonic() + WARM_S
            third = seconds / 3
            chats = asyncio.create_task(start_chats(servers, load_token(name)[0], clock + seconds))
            fell = await blow(servers, clock + third, clock + 2 * third)
            await chats
            draw(port, began, time.time(), fell, path)
        finally:
            for server in servers:
                await server.end(signal.SIGTERM)
            watching.terminate()
            await watching.wait()


async def is_watched(port: int) -> None:
    """Prometheus has figures of every server."""
    give_up_at = time.monotonic() + 120
    while time.monotonic() < give_up_at:
        with suppress(URLError, OSError):
            now = time.time()
            if len(asked(port, "holdfast_running_executions", now, now)) == SERVERS:
                return
        await asyncio.sleep(0.5)
    raise TimeoutError("Prometheus has no figures of the servers")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 300.0))
