"""What a router adds to a session: time to its first token, and its processor time per token."""

from __future__ import annotations

import os
from pathlib import Path

from bench.harness.local_mesh import LocalMesh
from bench.harness.region_client import RegionClient
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams

_TOKENS = 200
_SESSIONS = 5
"""Of one sample: about 150 ms of processor time."""


async def added_ms(mesh: LocalMesh, vocabulary: Vocabulary, pairs: int) -> tuple[list[float], ...]:
    """Milliseconds to the first token, straight and through the router, by turns."""
    direct, routed = [], []
    sampling = SamplingParams(max_tokens=2)
    one, two = _clients(mesh, vocabulary)
    async with one, two:
        for turn in range(-20, pairs):
            ids = [turn % 1000 + 100, *range(200, 260)]  # no prefix block is shared
            times = []
            for client in (one, two):
                reply = await client.generate(ids, sampling, digest=vocabulary.digest)
                times.append(reply.ttft_ms)
            if turn >= 0:  # the first few warm both ways up
                direct.append(times[0])
                routed.append(times[1])
    return direct, routed


async def relay_us(mesh: LocalMesh, vocabulary: Vocabulary, samples: int) -> list[float]:
    """Microseconds of the router's processor time per token, one session at a time; of several
    sessions in a row, because the clock of processor time ticks every 10 ms."""
    _, routed = _clients(mesh, vocabulary)
    pid = mesh.services("router")[0]["pid"]
    taken = []
    sampling = SamplingParams(max_tokens=_TOKENS, ignore_eos=True)
    async with routed:
        await routed.generate([5, 6, 7], sampling, digest=vocabulary.digest)
        for sample in range(samples):
            before, num_tokens = _cpu_s(pid), 0
            for number in range(_SESSIONS):
                ids = [sample * _SESSIONS + number, 6, 7]
                reply = await routed.generate(ids, sampling, digest=vocabulary.digest)
                num_tokens += len(reply.ids)
            taken.append((_cpu_s(pid) - before) * 1e6 / num_tokens)
    return taken


def _clients(mesh: LocalMesh, vocabulary: Vocabulary) -> tuple[RegionClient, RegionClient]:
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
    replica = mesh.address(mesh.services("inference")[0]["name"])
    return (
        RegionClient(coder, replica, via_router=False, tls=mesh.tls("router")),
        RegionClient(coder, mesh.address("router"), via_router=True, tls=mesh.tls("edge")),
    )


def _cpu_s(pid: int) -> float:
    """User and system time of a process (proc(5), fields 14 and 15 of stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
