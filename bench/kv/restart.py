"""From the start of a replica until it serves, with a static prefix: computed, or from a Redis."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import redis

from bench.harness import Run, median
from bench.kv.replicas import Replicas, prompts, redis_server, until_stored
from outrider.models.vocabulary import Vocabulary

NUM_TOKENS = 1500
"""Of the prefix, about."""


async def measure(
    vocabulary: Vocabulary, count: int, threads: int, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds of each of `count` starts, by what the replica had."""
    replicas = Replicas(vocabulary, threads)
    (ids,) = prompts(vocabulary, NUM_TOKENS, 1)
    found: dict[str, list[float]] = {"no prefix": [], "computed": [], "from the Redis": []}
    with (
        redis_server() as port,
        redis.Redis(port=port) as store,
        tempfile.TemporaryDirectory() as folder,
    ):
        config = Path(folder) / "inference.toml"
        text = json.dumps(vocabulary.decode(list(ids)))
        config.write_text(
            f'[[inference.prefixes]]\nname = "rules"\ntenants = ["*"]\nsystem = {text}\n', "utf-8"
        )
        async with replicas.one(port, "first", config):
            await until_stored(store, NUM_TOKENS // 40)
        for number in range(count):
            for way, where, file in (
                ("no prefix", None, None),
                ("computed", None, config),
                ("from the Redis", port, config),
            ):
                began = time.monotonic()
                async with replicas.one(where, "new", file):
                    found[way].append(time.monotonic() - began)
            progress(f"starts with a static prefix: {number + 1} of {count} of each kind")
    return found


def report(run: Run, found: dict[str, list[float]]) -> None:
    table = run.table(
        f"From the start of a replica until it serves, static prefix of {NUM_TOKENS} tokens, s",
        *("prefix", "n", "seconds"),
    )
    for way, times in found.items():
        table.add(way, len(times), table.median(times))
        run.samples(f"start, {way}", times, unit="s")
    run.figures["restart_hot_ms"] = {k: round(median(v) * 1e3) for k, v in found.items()}
