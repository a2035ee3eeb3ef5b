"""1, 8 and 32 streams at once over HTTP, beside llama.cpp's server on the same model and cores, in
one run. What HTTP adds to the first token's time is in `bench.overhead`.

llama.cpp takes part where it is installed: the same GGUF, and its fastest quantisation.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from bench import tuning
from bench.harness import Run, parser, start
from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.harness.prompts import PromptSupply
from bench.http import load
from bench.http.load import CONCURRENCIES, Server
from bench.peers import llamacpp
from bench.peers.lineup import LLAMACPP_Q4_0, LLAMACPP_Q4_1, record_settings
from bench.peers.llamacpp import LlamaServer, llama_server
from outrider.cli.local import development_key
from outrider.models.catalog import DEFAULT_MODEL

_READY = ("inference.prepare_first=true",)
"""Nothing compiles beside what is measured."""


def ours(mesh: LocalMesh) -> list[Server]:
    """The mesh, with drafts and without."""
    key = development_key.read(mesh.state_dir)
    port = mesh.state.service("edge")["http_port"]
    return [
        Server(
            f"outrider, drafts {'off' if speculation == 'off' else 'on'}",
            mesh.state.host, port, key, DEFAULT_MODEL.name, (("speculation", speculation),),
        )
        for speculation in ("off", "on")
    ]  # fmt: skip


async def peers(stack: contextlib.AsyncExitStack, run: Run) -> list[Server]:
    """llama.cpp's servers, up until the stack closes."""
    if not llamacpp.PEER.is_installed():
        print(f"llama.cpp: {llamacpp.PEER.hint}", file=sys.stderr)
        return []
    setups = tuning.chosen("throughput", must_be_recorded=not run.quick)
    servers: dict[str, LlamaServer] = {}
    for name in (LLAMACPP_Q4_1, LLAMACPP_Q4_0):
        model = llamacpp.same_model() if name == LLAMACPP_Q4_1 else llamacpp.BEST_MODEL
        try:
            servers[name] = await stack.enter_async_context(llama_server(model, setups[name]))
        except RuntimeError as error:
            print(f"{name} took no part: {error}", file=sys.stderr)
            run.setting(name, took_no_part=str(error))
    record_settings(run, servers)
    return [Server(name, "127.0.0.1", system.port) for name, system in servers.items()]


async def beside_others(run: Run, num_rounds: int, per_stream: int) -> None:
    """All systems are up; one is asked at a time."""
    threads = len(os.sched_getaffinity(0))
    supply = PromptSupply("chat")
    mesh_up = local_mesh(regions="local", threads=threads, settings=_READY, http=True)
    with mesh_up as mesh:
        async with contextlib.AsyncExitStack() as stack:
            servers = [*ours(mesh), *await peers(stack, run)]
            run.setting("outrider", threads=threads, replicas=1, settings=_READY)
            rounds = [
                (streams, supply.take(streams * per_stream if streams > 1 else 4 * per_stream))
                for _ in range(num_rounds)
                for streams in CONCURRENCIES
            ]
            load.report(run, await load.compete(servers, rounds))


def main() -> int:
    run = start("http", parser("http", __doc__ or "").parse_args())
    num_rounds, per_stream = (1, 1) if run.quick else (3, 4)
    asyncio.run(beside_others(run, num_rounds, per_stream))
    run.finish()
    return int(bool(run.figures["errors"]))


if __name__ == "__main__":
    sys.exit(main())
