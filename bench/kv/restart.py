"""From the start of a replica until it serves, with a static prefix: computed, or from a Redis."""

from __future__ import annotations

from collections.abc import Callable

from bench.harness import Run, median
from bench.kv.replicas import Replicas, prefix_store, prompts
from outrider.models.vocabulary import Vocabulary

NUM_TOKENS = 1500
"""Of the prefix, about."""


async def measure(
    vocabulary: Vocabulary, count: int, threads: int, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds of each of `count` starts, by what the replica had."""
    replicas = Replicas(vocabulary, threads)
    (ids,) = prompts(vocabulary, NUM_TOKENS, 1)
    prefix = {"name": "rules", "tenants": ("*",), "system": vocabulary.decode(list(ids))}
    computed: dict[str, object] = {"prefixes": (prefix,)}
    async with prefix_store() as store:
        stored = {**computed, "prefix_store": store.settings}
        async with replicas.one("first", **stored):
            await store.until_stored(NUM_TOKENS // 40)
        ways = {"no prefix": {}, "computed": computed, "from the Redis": stored}
        found: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(count):
            for way, values in ways.items():
                async with replicas.one("new", **values) as (_, service):
                    found[way].append(service.start_s)
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
