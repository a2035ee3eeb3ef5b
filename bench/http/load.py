"""Streams at once, over HTTP, at every system alike: the same questions, greedy, of fixed length.

A round asks every system, one after the other; another begins each time. A stream that ends is
followed by the next, so that so many are always open.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bench.harness import Run
from bench.harness.http_client import HttpClient
from bench.harness.load import Answer, WorkResult, send
from bench.harness.statistics import pooled
from bench.peers.lineup import rotated

CONCURRENCIES: Final = (1, 8, 32)
MAX_TOKENS: Final = 64

_numbers = itertools.count(1)

Outcomes: TypeAlias = dict[tuple[str, int], list[WorkResult]]
"""All rounds, by system and streams at once."""


@dataclass(frozen=True, slots=True)
class Server:
    """A system that is up."""

    name: str
    host: str
    port: int
    key: str = ""
    model: str = ""
    fields: tuple[tuple[str, Any], ...] = ()
    """Further ones of its requests."""


def body(server: Server, question: str) -> dict[str, Any]:
    """A request. Its number keeps it from what a system remembers of the same question."""
    number = f"{next(_numbers):06d} is this chat."
    return {
        "model": server.model,
        "messages": [
            {"role": "system", "content": number},
            {"role": "user", "content": question},
        ],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **dict(server.fields),
    }


async def ask(server: Server, questions: Sequence[str], concurrency: int) -> WorkResult:
    """All questions, so many at once, each stream over a connection that is kept."""
    idle = [HttpClient(server.host, server.port, server.key) for _ in range(concurrency)]

    async def one(question: str, answer: Answer) -> None:
        client = idle.pop()
        await client.chat(body(server, question), answer)
        idle.append(client)

    done = await send(questions, one, concurrency=concurrency)
    for client in idle:
        client.close()
    return done


async def compete(
    servers: Sequence[Server], rounds: Sequence[tuple[int, Sequence[str]]]
) -> Outcomes:
    """`rounds`: streams at once, and what to ask."""
    by_name = {server.name: server for server in servers}
    outcomes: Outcomes = {}
    for server in servers:
        await ask(server, ["Say hello."] * 2, 2)  # it warms up
    for turn, (concurrency, questions) in enumerate(rounds):
        for name in rotated(by_name, turn):
            done = await ask(by_name[name], questions, concurrency)
            outcomes.setdefault((name, concurrency), []).append(done)
    return outcomes


def report(run: Run, outcomes: Outcomes) -> None:
    """Table and samples; the figure is how many errors there were."""
    table = run.table(
        f"Chats of {MAX_TOKENS} tokens streamed over HTTP, the same model and cores: our own load",
        *("streams", "system", "errors", "n", "TTFT ms, p50", "TTFT ms, p95"),
        *("ITL ms, p50", "ITL ms, p95", "tokens/s"),
    )
    table.note("tokens/s: the median of rounds. ITL: between events that had text.")
    num_errors = 0
    for (name, concurrency), rounds in sorted(outcomes.items(), key=lambda it: it[0][1]):
        answers = [answer for one in rounds for answer in one.answers]
        good = [answer for answer in answers if not answer.error]
        errors = [answer.error for answer in answers if answer.error]
        num_errors += len(errors)
        for error in dict.fromkeys(errors):
            print(f"{name}, {concurrency} streams: {error}")
        ttft = [it.ttft_ms for it in good]
        gaps = pooled([it.gaps_ms() for it in good])
        rates = [one.tokens_per_s for one in rounds]
        table.add(
            *(concurrency, name, len(errors), len(good)),
            *(table.median(ttft), table.quantile(ttft, 0.95)),
            *(table.median(gaps), table.quantile(gaps, 0.95), table.median(rates)),
        )
        label = f"{name}, {concurrency} streams"
        run.samples(f"{label}, TTFT", ttft, unit="ms")
        run.samples(f"{label}, ITL", gaps, unit="ms")
        run.samples(f"{label}, tokens/s", rates, unit="1/s")
    run.figures["errors"] = num_errors
