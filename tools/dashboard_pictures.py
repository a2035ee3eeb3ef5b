"""Pictures of the dashboards, drawn from the queries that Grafana would send.

    python -m tools.dashboard_pictures

starts a mesh of the real model in two regions and a Prometheus that scrapes it, asks more and then
less for some minutes, stops a replica in between, and writes docs/images/dashboard-*.svg. Grafana
itself is not involved.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.harness.prometheus import Prometheus, jobs_of, running_prometheus
from outrider.cli.local import development_key
from outrider.client import Client, Message, SamplingParams, connect
from outrider.errors import OutriderError
from tools.dashboards import DASHBOARDS, RATE_INTERVAL, Dashboard, Line, Panel

FOLDER: Final = Path(__file__).parents[1] / "docs" / "images"
_RATE_WINDOW: Final = "20s"
_STEP_S: Final = 2.0
_MAX_CHATS: Final = 6
_STOPPED: Final = (0.5, 0.65)
"""From which to which share of the time a replica is stopped."""
_PROMPTS: Final = (
    "Why is the sky blue?",
    "List the planets of the solar system, one to a line.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
)
_INSTRUCTIONS: Final = (
    "You are the assistant of a public library. Answer in plain words, and briefly. Say where one "
    "may read more. If you do not know an answer, say so. " * 6
)
"""Long, and the same for all chats: its KV is found again, and moves between replicas."""
_CONFIG: Final = """
[router]
currency = "USD"

[[router.prices]]
prompt_per_million = 1.0
reply_per_million = 10.0
"""
_COLUMNS: Final = 2
_UNITS: Final = {"s": "seconds", "percentunit": "share", "Bps": "bytes/s", "reqps": "per second"}


async def ask(mesh: LocalMesh, duration_s: float) -> None:
    """More and more chats at a time, and then fewer; a replica is stopped meanwhile."""
    host, port = mesh.edge
    began = time.monotonic()
    count = itertools.count(1)
    replica = mesh.services("inference")[0]

    def share() -> float:
        return (time.monotonic() - began) / duration_s

    async def asker(client: Client, number: int) -> None:
        while (at := share()) < 1.0:
            if number >= _MAX_CHATS * (1.0 - abs(2.0 * at - 1.0)) + 1:
                await asyncio.sleep(0.5)
                continue
            prompt = f"{next(count)}. {_PROMPTS[number % len(_PROMPTS)]}"  # asked by nobody before
            asked = [Message("system", _INSTRUCTIONS), Message("user", prompt)]
            try:
                async with client.chat(asked, sampling=SamplingParams(max_tokens=64)) as chat:
                    await chat.result()
            except OutriderError:
                await asyncio.sleep(0.5)  # it is counted

    async def stopper() -> None:
        await asyncio.sleep(_STOPPED[0] * duration_s)
        os.kill(replica["pid"], signal.SIGSTOP)
        try:
            await asyncio.sleep((_STOPPED[1] - _STOPPED[0]) * duration_s)
        finally:
            os.kill(replica["pid"], signal.SIGCONT)

    # KV that lasts is a tenant's: nobody's chats leave none behind.
    key = development_key.read(mesh.state_dir)
    async with connect(host, port, ca=mesh.ca, key=key) as client:
        await asyncio.gather(*(asker(client, number) for number in range(_MAX_CHATS)), stopper())


def draw(
    dashboard: Dashboard, prometheus: Prometheus, start_s: float, end_s: float, path: Path
) -> None:
    """All panels of a dashboard as one SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = dashboard.uid
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    num_rows = -(-len(dashboard.panels) // _COLUMNS)
    figure, axes = pyplot.subplots(
        num_rows, _COLUMNS, figsize=(14, 2.6 * num_rows), squeeze=False, layout="constrained"
    )
    figure.suptitle(dashboard.title)
    for panel, axis in zip(dashboard.panels, axes.flat, strict=False):
        _draw_panel(panel, axis, prometheus, start_s, end_s)
    for axis in axes.flat[len(dashboard.panels) :]:
        axis.set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _draw_panel(
    panel: Panel, axis: Any, prometheus: Prometheus, start_s: float, end_s: float
) -> None:
    for line in panel.lines:
        query = line.expression.replace(RATE_INTERVAL, _RATE_WINDOW)
        for series in prometheus.query_range(query, start_s, end_s, _STEP_S):
            points = [(float(at) - start_s, float(value)) for at, value in series["values"]]
            axis.plot(*zip(*points, strict=True), label=legend(line, series["metric"]), lw=1.2)
    axis.set_title(panel.title, fontsize=9, loc="left")
    axis.set_ylabel(_UNITS.get(panel.unit, ""), fontsize=7)
    axis.set_xlim(0, end_s - start_s)
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def legend(line: Line, labels: dict[str, str]) -> str:
    """The text of a series, as Grafana writes it."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), line.legend).strip()


def _config(folder: Path) -> Path:
    file = folder / "outrider.toml"
    file.write_text(_CONFIG, "utf-8")
    return file


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the mesh and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="openvino", help="as of `outrider up`")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        local_mesh(
            engine=options.engine,
            config=_config(Path(folder)),
            shape=("--prefix-store", "redis"),
        ) as mesh,
        running_prometheus(jobs_of(mesh)) as prometheus,
    ):
        start_s = time.time()
        asyncio.run(ask(mesh, options.minutes * 60))
        time.sleep(2)  # the last scrape
        options.folder.mkdir(parents=True, exist_ok=True)
        for dashboard in DASHBOARDS:
            name = dashboard.uid.removeprefix("outrider-")
            path = options.folder / f"dashboard-{name}.svg"
            draw(dashboard, prometheus, start_s, time.time(), path)
            print(path)


if __name__ == "__main__":
    main()
