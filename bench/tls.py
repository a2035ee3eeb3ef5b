"""What mutual TLS costs on the way of a token: a session frame to another process and back, over a
stream that is up, with certificates and without, by turns; and what it costs to connect.

A frame there and back is two hops of the mesh, so a hop's cost is half of the difference. Both
processes run the services' own servers and channels, on the event loop that services use.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import uvloop

from bench.harness import Run, median, parser, start
from outrider.rpc import bind, make_channel, make_server
from outrider.tls import PLAINTEXT, PeerIdentity, Role, Tls
from outrider.tls.certificates import utc_now
from outrider.tls.development import DevelopmentCa, settings, write
from outrider.v1 import inference_pb2, inference_pb2_grpc

_FAR_SIDE = "far-side"
"""First argument of the process that answers."""
WAYS = ("plaintext", "mutual TLS")
_FRAMES = 100
"""Of one turn, one after the other."""
_TOKENS = b"\x00" * 24
"""About what a commit of some tokens takes."""


@dataclass(slots=True)
class Samples:
    """By way, turn by turn."""

    round_trip_us: dict[str, list[float]] = field(default_factory=lambda: {w: [] for w in WAYS})
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: {w: [] for w in WAYS})
    """Of this process alone, per frame there and back."""
    connect_ms: dict[str, list[float]] = field(default_factory=lambda: {w: [] for w in WAYS})


_Call = grpc.aio.StreamStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]


async def measure(ports: dict[str, int], tls: Tls, turns: int) -> Samples:
    """Alternate the two ways."""
    samples = Samples()
    certificates = {"plaintext": PLAINTEXT, "mutual TLS": tls}
    async with contextlib.AsyncExitStack() as stack:
        calls: dict[str, _Call] = {}
        for way in WAYS:
            address = f"127.0.0.1:{ports[way]}"
            channel = make_channel(address, tls=certificates[way], role=Role.INFERENCE)
            await stack.enter_async_context(channel)
            calls[way] = inference_pb2_grpc.InferenceServiceStub(channel).Generate()
            stack.callback(calls[way].cancel)
        for turn in range(-5, turns):
            for way in WAYS if turn % 2 else WAYS[::-1]:
                took_us, cpu_us = await _turn(calls[way])
                connect_ms = await _connect(ports[way], certificates[way])
                if turn >= 0:  # the first few warm both ways up
                    samples.round_trip_us[way].append(took_us)
                    samples.cpu_us[way].append(cpu_us)
                    samples.connect_ms[way].append(connect_ms)
    return samples


async def _turn(call: _Call) -> tuple[float, float]:
    frame = inference_pb2.SessionUp(session=1)
    frame.draft.ids = _TOKENS
    request = inference_pb2.GenerateRequest(frames=[frame])
    began, cpu_began = time.perf_counter(), time.process_time()
    for _ in range(_FRAMES):
        await call.write(request)
        await call.read()
    cpu_s, took_s = time.process_time() - cpu_began, time.perf_counter() - began
    return took_s * 1e6 / _FRAMES, cpu_s * 1e6 / _FRAMES


async def _connect(port: int, tls: Tls) -> float:
    began = time.perf_counter()
    async with make_channel(f"127.0.0.1:{port}", tls=tls, role=Role.INFERENCE) as channel:
        await channel.channel_ready()
        return (time.perf_counter() - began) * 1000


def report(run: Run, samples: Samples) -> None:
    columns = ("what", "way", "n", "p50", "p95", "p99")
    table = run.table(
        "A session frame to another process and back: mutual TLS against plaintext", *columns
    )
    for what, by_way in (
        ("round trip, us", samples.round_trip_us),
        ("CPU time of the sender, us", samples.cpu_us),
        ("connecting, ms", samples.connect_ms),
    ):
        for way in WAYS:
            values = by_way[way]
            tail = (table.quantile(values, share) for share in (0.95, 0.99))
            table.add(what, way, len(values), table.median(values), *tail)
            name, _, unit = what.partition(", ")
            run.samples(f"{name}, {way}", values, unit=unit)
    plain, tls = (samples.round_trip_us[way] for way in WAYS)
    added = [(b - a) / 2 for a, b in zip(plain, tls, strict=True)]
    run.samples("added per hop", added, unit="us")
    run.figures["added_us_per_hop"] = round(median(added), 2)
    plain, tls = (samples.connect_ms[way] for way in WAYS)
    run.figures["added_connect_ms"] = round(median(tls) - median(plain), 2)


@contextlib.contextmanager
def far_side(folder: Path) -> Iterator[dict[str, int]]:
    """The other process; its ports by way."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.tls", _FAR_SIDE, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield {way: int(process.stdout.readline()) for way in WAYS}
        finally:
            process.stdin.close()


def issue(folder: Path) -> Tls:
    """Certificates of both processes; this one's."""
    ca, now = DevelopmentCa(utc_now()), utc_now()
    for name, role in (("server", Role.INFERENCE), ("client", Role.ROUTER)):
        config = write(folder, name, ca.issue(PeerIdentity(role), now), ca.pem)
    return Tls.open(config)


Context = grpc.aio.ServicerContext[Any, Any]


class Echo(inference_pb2_grpc.InferenceServiceServicer):
    """Answers each session frame with one as small."""

    async def Generate(
        self, request_iterator: AsyncIterator[inference_pb2.GenerateRequest], context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        async for request in request_iterator:
            down = inference_pb2.SessionDown(session=request.frames[0].session)
            yield inference_pb2.GenerateResponse(frames=[down])

    async def Drain(
        self, request: inference_pb2.DrainRequest, context: Context
    ) -> inference_pb2.DrainResponse:
        return inference_pb2.DrainResponse()

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.GetModelResponse:
        return inference_pb2.GetModelResponse(model="m")

    async def WatchLoad(
        self, request: inference_pb2.WatchLoadRequest, context: Context
    ) -> AsyncIterator[inference_pb2.WatchLoadResponse]:
        yield inference_pb2.WatchLoadResponse()

    async def WatchKv(
        self, request: inference_pb2.WatchKvRequest, context: Context
    ) -> AsyncIterator[inference_pb2.WatchKvResponse]:
        yield inference_pb2.WatchKvResponse()


async def serve(folder: Path) -> None:
    """The far side: the same echo service without certificates and with them, until standard input
    ends. Prints both ports first."""
    tls = Tls.open(settings(folder, "server"), Role.INFERENCE)
    servers = []
    for certificates in (PLAINTEXT, tls):
        server = make_server(certificates)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(Echo(), server)
        print(bind(server, "127.0.0.1", 0, certificates), flush=True)
        await server.start()
        servers.append(server)
    async with tls.watched():
        await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        await server.stop(None)


def main() -> int:
    arguments = parser("tls", __doc__ or "").parse_args()
    run = start("tls", arguments)
    with tempfile.TemporaryDirectory(prefix="outrider-tls-") as name:
        folder = Path(name)
        tls = issue(folder)
        with (
            far_side(folder) as ports,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            report(run, runner.run(measure(ports, tls, 20 if run.quick else 600)))
    run.finish()
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [_FAR_SIDE]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(Path(sys.argv[2])))
    else:
        raise SystemExit(main())
