"""What HTTP adds to the time to the first token over our own protocol: the same mesh, the same
chats, in turn, over connections that are up.

Every chat begins with a number of its own, so that no prefix is reused. The native client decodes
tokens and keeps a chat's state for resumption; the HTTP client does no more than find the text.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import Final

from bench.harness import Run, median
from bench.harness.http_client import HttpClient
from bench.harness.load import Answer
from bench.harness.local_mesh import LocalMesh
from outrider.client import Client, Committed, Message, SamplingParams, connect

_QUESTION: Final = "Explain to a child what the moon does to the sea, and why it is twice a day."
_MAX_TOKENS: Final = 4
_WARM_UPS: Final = 5
AIM_MS: Final = 2.0

_numbers = itertools.count(1)


@dataclass(slots=True)
class Samples:
    """Milliseconds to the first token, pair by pair."""

    native: list[float] = field(default_factory=list)
    http: list[float] = field(default_factory=list)

    @property
    def added(self) -> list[float]:
        return [http - native for http, native in zip(self.http, self.native, strict=True)]


async def measure(mesh: LocalMesh, key: str, num_pairs: int) -> Samples:
    """One chat at a time; which way goes first changes from pair to pair. Raises RuntimeError for a
    chat that failed."""
    samples = Samples()
    host, http_port = mesh.state.host, mesh.state.service("edge")["http_port"]
    async with (
        connect(*mesh.edge, ca=mesh.ca, key=key) as native,
        HttpClient(host, http_port, key) as http,
    ):
        for turn in range(-_WARM_UPS, num_pairs):
            if turn % 2:
                one, two = await _native(native), await _http(http)
            else:
                two, one = await _http(http), await _native(native)
            if turn >= 0:
                samples.native.append(one)
                samples.http.append(two)
    return samples


def _chat() -> tuple[str, str]:
    return f"{next(_numbers):06d} is this chat.", _QUESTION


async def _native(client: Client) -> float:
    system, question = _chat()
    messages = [Message("system", system), Message("user", question)]
    sampling = SamplingParams(temperature=0.0, max_tokens=_MAX_TOKENS)
    began = time.perf_counter()
    first = 0.0
    async with client.chat(messages, sampling=sampling) as chat:
        async for event in chat:
            if isinstance(event, Committed) and not first:
                first = time.perf_counter()
    return (first - began) * 1000


async def _http(client: HttpClient) -> float:
    system, question = _chat()
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"messages": messages, "temperature": 0, "max_tokens": _MAX_TOKENS, "stream": True}
    done = Answer(began_at=time.perf_counter())
    await client.chat(body, done)
    if done.error:
        raise RuntimeError(done.error)
    return done.ttft_ms


def report(run: Run, by_engine: dict[str, Samples]) -> None:
    """Table, samples and figures."""
    table = run.table(
        "Time to the first token, ms: over HTTP and over our own protocol, the same mesh on the "
        "loopback, one chat at a time",
        *("engine", "way", "n", "p50", "p95", "p99"),
    )
    for engine, samples in by_engine.items():
        ways = {"our own": samples.native, "HTTP": samples.http, "added": samples.added}
        for way, times in ways.items():
            tail = (table.quantile(times, share) for share in (0.95, 0.99))
            table.add(engine, way, len(times), table.median(times), *tail)
            run.samples(f"{engine}, {way}", times, unit="ms")
        run.figures[f"http_added_ttft_ms_{engine}"] = round(median(samples.added), 2)
    run.figures["aim_added_ttft_ms"] = AIM_MS
