"""aiperf as the load: streams of chats over HTTP from a client that is nobody's here, with the time
between tokens. Its environment takes 1.2 GB. The questions are its own, of random words."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness import TOO_FEW, Cell, Run
from bench.harness.statistics import num_needed
from bench.harness.tables import FEW_SAMPLES
from bench.http.load import MAX_TOKENS, Server
from bench.judges.environments import environment
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.vocabulary import Vocabulary

PACKAGE: Final = "aiperf==0.13.0"
_PROMPT_TOKENS: Final = 60
_MAX_RUN_S: Final = 600


@dataclass(frozen=True, slots=True)
class Row:
    """What aiperf tells of one system."""

    name: str
    streams: int
    num_chats: int
    errors: int
    ttft_ms: tuple[float, float]
    """Median and p95."""
    itl_ms: float
    """Median over chats of the mean time from token to token."""
    tokens_per_s: float


def write_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    """The model's, as its library reads one from a folder; it looks on the network for others."""
    facts = vocabulary.facts
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": facts.bos_token,
        "eos_token": facts.eos_token,
    }
    (folder / "tokenizer.json").write_text(vocabulary.tokenizer_json, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")


def ask(server: Server, vocabulary: Vocabulary, num_chats: int, streams: int, seed: int) -> Row:
    """So many chats, so many at once; blocks. Raises CalledProcessError."""
    program = environment("aiperf", PACKAGE) / "aiperf"
    fields = {"temperature": 0, "ignore_eos": True, **dict(server.fields)}
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), vocabulary)
        results = Path(folder) / "results"
        key = ("--api-key", server.key) if server.key else ()
        subprocess.run(
            [
                *(str(program), "profile", "--endpoint-type", "chat", "--streaming", *key),
                *("--model", server.model or DEFAULT_MODEL.name),
                *("--url", f"http://{server.host}:{server.port}", "--ui", "none"),
                *("--concurrency", str(streams), "--request-count", str(num_chats)),
                *("--isl", str(_PROMPT_TOKENS), "--osl", str(MAX_TOKENS)),
                *("--extra-inputs", json.dumps(fields), "--random-seed", str(seed)),
                *("--tokenizer", folder, "--use-server-token-count"),
                *("--artifact-dir", str(results)),
            ],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_MAX_RUN_S,
            check=True,
        )
        told = (results / "profile_export_aiperf.json").read_text(encoding="utf-8")
    return row(server.name, streams, num_chats, json.loads(told))


def row(name: str, streams: int, num_asked: int, told: dict[str, Any]) -> Row:
    """Of aiperf's own summary; chats that are missing in it count as errors."""

    def figure(metric: str, which: str) -> float:
        return float((told.get(metric) or {}).get(which) or 0.0)

    num_chats = round(figure("request_count", "avg"))
    return Row(
        name,
        streams,
        num_chats,
        num_asked - num_chats,
        (figure("time_to_first_token", "p50"), figure("time_to_first_token", "p95")),
        figure("inter_token_latency", "p50"),
        figure("output_token_throughput", "avg"),
    )


def report(run: Run, rows: Sequence[Row]) -> None:
    """Table and figures."""
    table = run.table(
        f"Chats of {MAX_TOKENS} tokens, asked by aiperf",
        *("streams", "system", "errors", "n", "TTFT ms, p50", "p95", "ITL ms, p50", "tokens/s"),
    )
    for it in rows:
        p50_ms, p95_ms = it.ttft_ms
        tail: Cell = p95_ms
        if it.num_chats < num_needed(0.95):
            tail = TOO_FEW
            table.note(FEW_SAMPLES)
        shown = (p50_ms, tail, it.itl_ms, it.tokens_per_s)
        table.add(it.streams, it.name, it.errors, it.num_chats, *shown)
    run.figures["aiperf_errors"] = sum(it.errors for it in rows)
