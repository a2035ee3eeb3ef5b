"""vLLM behind the mesh, beside its own door: tokens a second, and replicas that die.

    python -m bench.stock_engine [--quick]

One vLLM server on this machine's CPU, of the default model (`python -m bench.peers vllm` installs
it). The same chats are asked by turns at its own HTTP API and at an edge's, behind which a router
and two replicas lead to the same server, on the same cores. Then replicas are killed (SIGKILL)
while chats run: a reply may move, and has to have as many tokens as were asked for, each committed
once, and to be labelled.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from bench.harness import parser, start
from bench.harness.http_client import HttpClient
from bench.harness.load import Answer
from bench.harness.mesh import HOST, Mesh, Service, mesh, replica_rows, until_placing
from bench.peers import vllm
from outrider.client import Client, Committed, ReconnectPolicy, connect
from outrider.errors import OutriderError
from outrider.free_ports import free_tcp_port
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams

PROMPTS: Final = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper and a whale.",
    "List the planets, with one sentence about each of them.",
    "What is a good way to learn a new language as an adult?",
)
_BEGUN_TOKENS: Final = 8
"""A reply of so many tokens is under way."""


@dataclass(frozen=True, slots=True)
class StockMesh:
    """A router and an edge before replicas that lead to one server."""

    made: Mesh
    replicas: tuple[Service, ...]
    router: Service
    edge: Service
    http_port: int

    async def kill(self, replica: Service) -> None:
        """SIGKILL a replica; returns once it serves again."""
        replica.kill()
        await self.made.start(replica)
        await until_placing(self.router, len(self.replicas))


@asynccontextmanager
async def stock_mesh(url: str, num_replicas: int = 2) -> AsyncIterator[StockMesh]:
    """One before the server at `url`, in which replies may go on elsewhere."""
    async with mesh("stock_engine") as made:
        server = {"url": url, "max_sessions": 32}
        replicas = [
            made.service(
                f"replica-{number}",
                "inference",
                {"replica": f"replica-{number}", "engine": "openai-server", "server": server},
                region="here",
            )
            for number in range(num_replicas)
        ]
        router = made.service(
            "router",
            "router",
            {
                "replicas": replica_rows(replicas),
                "max_backoff_s": 0.5,
                "quarantine": {"max_failures": 1_000_000},
                # The server's own door holds nobody back either.
                "admission": {f"slo_ttft_{it}_ms": 600_000.0 for it in ("high", "medium", "low")},
                "tenants": ({"name": "*", "allow_inexact": True},),
            },
            region="here",
        )
        http_port = free_tcp_port()
        edge = made.service(
            "edge",
            "edge",
            {
                "name": "edge",
                "routers": (router.address,),
                "state_dir": str(made.folder),
                "anonymous": True,
                "access": {"http_anonymous": True},
                "drafter.model": "none",
                "http": {"host": HOST, "port": http_port},
            },
            region="here",
        )
        for group in (replicas, [router], [edge]):
            await made.start(*group)
        await until_placing(router, num_replicas)
        yield StockMesh(made, tuple(replicas), router, edge, http_port)


async def tokens_per_s(port: int, num_chats: int, num_tokens: int) -> tuple[float, list[str]]:
    """Of `num_chats` streamed chats at once, over OpenAI's API; and what failed."""

    async def chat(number: int) -> Answer:
        answer = Answer(began_at=time.perf_counter())
        body = {
            "model": DEFAULT_MODEL.name,
            "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with HttpClient(HOST, port) as client:
            await client.chat(body, answer)
        return answer

    began = time.perf_counter()
    answers = await asyncio.gather(*(chat(number) for number in range(num_chats)))
    took_s = time.perf_counter() - began
    errors = [answer.error for answer in answers if answer.error]
    errors += [
        f"{answer.num_tokens} tokens"
        for answer in answers
        if not answer.error and answer.num_tokens != num_tokens
    ]
    return sum(answer.num_tokens for answer in answers) / took_s, errors


@dataclass(slots=True)
class KillTotals:
    """What became of chats while replicas died."""

    kills: int = 0
    chats: int = 0
    tokens: int = 0
    hit: int = 0
    """Chats whose replica died in the middle of the reply."""
    lost: int = 0
    """Tokens that replies are short of what was asked for."""
    doubled: int = 0
    """Tokens that replies have beyond it."""
    wrong_labels: int = 0
    """Replies that moved and do not say that they are inexact, or say so and did not move."""
    differing: int = 0
    """Replies with other ids than the same chat had before, alone: nobody promises the same, as the
    server's bits depend on its batch, but a token lost or doubled in the middle would show here."""
    errors: list[str] = field(default_factory=list)
    pauses_ms: list[float] = field(default_factory=list)


async def one_kill(
    made: StockMesh, client: Client, alone: Sequence[tuple[int, ...]], totals: KillTotals
) -> None:
    """Chats at once; the replica of one of them is killed once all are under way."""
    begun = [asyncio.Event() for _ in alone]
    killed_at = [0.0]
    num_tokens = len(alone[0])

    async def chat(number: int) -> None:
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        message = Message("user", PROMPTS[number % len(PROMPTS)])
        times: list[float] = []
        try:
            async with client.chat([message], sampling=sampling, speculation="off") as asked:
                async for event in asked:
                    if isinstance(event, Committed):
                        times.append(time.monotonic())
                        if event.upto >= _BEGUN_TOKENS:
                            begun[number].set()
                result = await asked.result()
        except OutriderError as error:
            totals.errors.append(f"{error.reason}: {error.message}")
            return
        finally:
            begun[number].set()
        totals.chats += 1
        totals.tokens += len(result.ids)
        totals.lost += max(0, num_tokens - len(result.ids))
        totals.doubled += max(0, len(result.ids) - num_tokens)
        totals.differing += result.ids != alone[number]
        totals.wrong_labels += result.inexact != bool(result.num_moves)
        if result.num_moves:
            totals.hit += 1
            gaps = [b - a for a, b in pairwise(times) if a <= killed_at[0] <= b]
            totals.pauses_ms += [gap * 1e3 for gap in gaps]

    victim = made.replicas[totals.kills % len(made.replicas)]
    chats = [asyncio.create_task(chat(number)) for number in range(len(alone))]
    await asyncio.gather(*(it.wait() for it in begun))
    killed_at[0] = time.monotonic()
    await made.kill(victim)
    await asyncio.gather(*chats)
    totals.kills += 1


async def kills(made: StockMesh, count: int, num_chats: int, num_tokens: int) -> KillTotals:
    """Kill replicas by turns."""
    totals = KillTotals()
    patient = ReconnectPolicy(give_up_after_s=60)
    async with connect(HOST, made.edge.port, ca=made.made.ca, reconnect=patient) as client:
        alone: list[tuple[int, ...]] = []
        for number in range(num_chats):
            sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
            message = Message("user", PROMPTS[number % len(PROMPTS)])
            async with client.chat([message], sampling=sampling, speculation="off") as asked:
                alone.append((await asked.result()).ids)
        while totals.kills < count:
            await one_kill(made, client, alone, totals)
            print(f"kill {totals.kills} of {count}: {totals.hit} hit", file=sys.stderr, flush=True)
    return totals


async def measure(*, quick: bool) -> dict[str, Any]:
    """The figures."""
    num_rounds, num_tokens, num_kills = (1, 16, 2) if quick else (3, 32, 20)
    shares: dict[int, list[float]] = {}
    speeds: dict[int, list[tuple[float, float]]] = {}
    errors: list[str] = []
    async with vllm.vllm_server() as (_, url), stock_mesh(url) as made:
        direct = int(url.rpartition(":")[2])
        for port in (direct, made.http_port):
            await tokens_per_s(port, 2, 8)
        for number in range(num_rounds):
            for num_chats in (1, 8) if quick else (1, 8, 32):
                pair = [0.0, 0.0]
                order = (0, 1) if number % 2 == 0 else (1, 0)
                for which in order:
                    port = (direct, made.http_port)[which]
                    pair[which], failed = await tokens_per_s(port, num_chats, num_tokens)
                    errors += failed
                    if failed:
                        print(f"{len(failed)} failed: {failed[0]}", file=sys.stderr)
                speeds.setdefault(num_chats, []).append((pair[0], pair[1]))
                shares.setdefault(num_chats, []).append(pair[1] / pair[0])
                print(f"{num_chats} chats: {pair[0]:.1f}, {pair[1]:.1f} tokens/s", file=sys.stderr)
        totals = await kills(made, num_kills, 4, num_tokens)
    return {
        "vllm": vllm.VERSION,
        "speed": {
            str(chats): {
                "direct_tokens_s": round(statistics.median(it[0] for it in pairs), 1),
                "mesh_tokens_s": round(statistics.median(it[1] for it in pairs), 1),
                "mesh_share": round(statistics.median(shares[chats]), 3),
                "mesh_shares": [round(it, 3) for it in shares[chats]],
            }
            for chats, pairs in speeds.items()
        },
        "chats_failed": errors,
        "kills": {
            "count": totals.kills,
            "chats": totals.chats,
            "tokens": totals.tokens,
            "moved_and_labelled": totals.hit,
            "tokens_lost": totals.lost,
            "tokens_doubled": totals.doubled,
            "wrong_labels": totals.wrong_labels,
            "differ_from_alone": totals.differing,
            "pause_p50_ms": round(statistics.median(totals.pauses_ms or [0.0])),
            "failed": totals.errors,
        },
    }


def main() -> int:
    """Measure, and record a full run."""
    run = start("stock_engine", parser("stock_engine", __doc__ or "").parse_args())
    if not vllm.PEER.is_installed():
        print(f"vLLM: {vllm.PEER.hint}", file=sys.stderr)
        return 1
    figures = asyncio.run(measure(quick=run.quick))
    run.figures |= figures
    speed = run.table(
        "Tokens a second: vLLM's own door, and an edge's", "chats", "vLLM", "mesh", "share"
    )
    for chats, row in figures["speed"].items():
        speed.add(chats, row["direct_tokens_s"], row["mesh_tokens_s"], row["mesh_share"])
    died = figures["kills"]
    deaths = run.table(
        "Replicas killed (SIGKILL) while four chats run",
        *("kills", "chats", "moved and labelled", "wrong labels", "tokens"),
        *("lost", "committed twice", "other ids than alone", "pause p50, ms"),
    )
    deaths.add(
        *(str(died["count"]), died["chats"], died["moved_and_labelled"], died["wrong_labels"]),
        *(died["tokens"], died["tokens_lost"], died["tokens_doubled"]),
        *(died["differ_from_alone"], died["pause_p50_ms"]),
    )
    run.finish()
    wrong = figures["chats_failed"] or died["failed"] or died["tokens_lost"]
    return int(bool(wrong or died["tokens_doubled"] or died["wrong_labels"]))


if __name__ == "__main__":
    sys.exit(main())
