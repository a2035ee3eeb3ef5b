"""KV moves with a session from one replica process to another: on `outrider drain --move`, and from
a replica that is killed (SIGKILL) in the middle of it. Every text is exact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.faults.chats import ReferenceChat, make_reference_chats
from bench.harness.mesh import HOST, Service
from bench.harness.run_folder import run_folder
from outrider.client import Client, Committed, Message, connect
from outrider.rpc import make_channel
from outrider.v1 import router_pb2, router_pb2_grpc
from tests.cli.invoking import invoke

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

BLOCK = 16
CALL_MS = 20.0
"""Of the fake engine: a reply is there to be interrupted, and computes next to nothing."""
REPLY_TOKENS = 250
HELD_AFTER_BYTES = 4096
"""Some blocks of the fake engine, packed."""
LIMIT_S = 120.0
FAKE: Final[Mapping[str, object]] = {
    "engine": "fake",
    "fake_call_ms": CALL_MS,
    "kv_peers": {"min_tokens": BLOCK, "timeout_ms": 60_000.0},
    # A block a call, slowly as the first guess has it: fetching pays on any machine.
    "scheduler": {"prefill_chunk_tokens": BLOCK, "row_ms": 1000.0},
}
NOTHING: Final[Mapping[str, object]] = {}


@dataclass(eq=False)
class Link:
    """The way to a replica: what its `armed` connections bring stops after some bytes."""

    target: int
    is_armed: bool = False
    """Whether connections that are opened from now on are."""
    is_held: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def port(self) -> AsyncIterator[int]:
        """Where it begins."""
        server = await asyncio.start_server(self._connected, HOST, 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(
        self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        is_armed = self.is_armed
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with ExitStack() as stack:
            stack.callback(to_client.transport.abort)
            try:
                replica, to_replica = await asyncio.open_connection(HOST, self.target)
            except OSError:
                return
            stack.callback(to_replica.transport.abort)
            await asyncio.gather(
                self._pass(client, to_replica, 0),
                self._pass(replica, to_client, HELD_AFTER_BYTES if is_armed else 0),
            )

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, limit: int
    ) -> None:
        """Until the source ends, and no more than `limit` bytes, if it is not 0."""
        num_bytes = 0
        try:
            while data := await source.read(1 << 16):
                if limit and num_bytes + len(data) > limit:
                    data = data[: limit - num_bytes]
                    self.is_held.set()
                num_bytes += len(data)
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


@dataclass(frozen=True)
class Mesh:
    """Two replicas, a router and an edge, in processes of their own."""

    replicas: dict[str, Service]
    links: dict[str, Link]
    router: Service
    edge: Service
    ca: Path

    async def rows(self) -> list[router_pb2.Replica]:
        """The replicas as the router sees them."""
        async with make_channel(self.router.address) as channel:
            stub: router_pb2_grpc.RouterServiceAsyncStub
            stub = router_pb2_grpc.RouterServiceStub(channel)
            return list((await stub.ListReplicas(router_pb2.ListReplicasRequest())).replicas)

    async def until(self, is_so: Callable[[list[router_pb2.Replica]], bool]) -> None:
        """Wait for what the router sees."""
        async with asyncio.timeout(LIMIT_S):
            while not is_so(await self.rows()):
                await asyncio.sleep(0.02)

    async def drain(self, name: str, *flags: str) -> None:
        """`outrider drain`; it has an event loop of its own, so a thread."""
        where = ("--router", self.router.address, "--plaintext")
        done = await asyncio.to_thread(invoke, ["drain", name, *flags, *where])
        assert done.exception is None, done.exception


@asynccontextmanager
async def running(
    replica: Mapping[str, object] = FAKE,
    edge: Mapping[str, object] = NOTHING,
    router: Mapping[str, object] = NOTHING,
) -> AsyncIterator[Mesh]:
    """Settings of their own."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(run_folder("hand-over")).path
        replicas = {
            name: Service(name, "inference", {"replica": name, "region": "here", **replica}, folder)
            for name in ("one", "two")
        }
        links = {name: Link(replica.port) for name, replica in replicas.items()}
        ports = {name: await stack.enter_async_context(it.port()) for name, it in links.items()}
        table = tuple(
            {"name": name, "region": "here", "address": f"{HOST}:{port}"}
            for name, port in ports.items()
        )
        routing = {"region": "here", "replicas": table, "max_backoff_s": 0.5, **router}
        region = Service("router", "router", routing, folder)
        serving: dict[str, object] = {
            "name": "edge",
            "region": "here",
            "routers": (region.address,),
            "state_dir": str(folder),
            "anonymous": True,
            "drafter.model": "none",
            **edge,
        }
        near = Service("edge", "edge", serving, folder)
        services = (*replicas.values(), region, near)
        for service in services:
            stack.callback(service.end)
            service.spawn()
        await asyncio.gather(*(service.ready() for service in services))
        yield Mesh(replicas, links, region, near, folder / "tls" / "cert.pem")


def is_ready(rows: list[router_pb2.Replica], *names: str) -> bool:
    """Whether these, and no others, take sessions."""
    ready = router_pb2.REPLICA_STATE_READY
    return sorted(row.name for row in rows if row.state == ready) == sorted(names)


async def counted(replica: Service, name: str, label: str) -> float:
    """A counter that has one label, at this value of it."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(await replica.metrics())
        for sample in family.samples
        if sample.name == name and label in sample.labels.values()
    )


async def kv_blocks(replica: Service, result: str) -> float:
    """Blocks between replicas of which this became."""
    return await counted(replica, "outrider_kv_peer_blocks_total", result)


async def exact(client: Client, asked: ReferenceChat, begun: asyncio.Event) -> None:
    """One chat, whose text has to be the reference's; with a token it has begun."""
    message = Message("user", asked.prompt)
    async with client.chat([message], sampling=asked.sampling, speculation="off") as chat:
        async for event in chat:
            if isinstance(event, Committed):
                begun.set()
        result = await chat.result()
    assert (result.text, result.ids) == (asked.text, asked.ids)


async def begin(client: Client, asked: ReferenceChat) -> asyncio.Task[None]:
    """Return once it has a token."""
    begun = asyncio.Event()
    chatting = asyncio.create_task(exact(client, asked, begun))
    waiting = asyncio.create_task(begun.wait())
    async with asyncio.timeout(LIMIT_S):
        await asyncio.wait((chatting, waiting), return_when=asyncio.FIRST_COMPLETED)
    assert not chatting.done(), chatting.exception()
    return chatting


async def test_kv_moves_with_a_session_and_may_stop_on_the_way() -> None:
    prompts = [" ".join(f"{word} {n}" for n in range(160)) for word in ("whale", "lamp")]
    greedy, _, _, sampled = make_reference_chats("fake", REPLY_TOKENS, prompts)
    async with running() as mesh, connect(f"quic://{HOST}:{mesh.edge.port}", ca=mesh.ca) as client:
        await mesh.until(lambda rows: is_ready(rows, "one", "two"))
        chatting = await begin(client, greedy)
        await mesh.until(lambda rows: any(row.sessions for row in rows))
        (holder,) = [row.name for row in await mesh.rows() if row.sessions]
        (other,) = {"one", "two"} - {holder}
        await mesh.drain(holder, "--move")
        await asyncio.wait_for(chatting, LIMIT_S)
        assert await kv_blocks(mesh.replicas[other], "loaded") >= 1
        assert await kv_blocks(mesh.replicas[holder], "served") >= 1

        # The next one has no other choice. Then it moves the other way, and half of its KV comes.
        chatting = await begin(client, sampled)
        await mesh.drain(holder, "--undo")
        await mesh.until(lambda rows: is_ready(rows, "one", "two"))
        mesh.links[other].is_armed = True
        moving = asyncio.create_task(mesh.drain(other, "--move"))
        async with asyncio.timeout(LIMIT_S):
            await mesh.links[other].is_held.wait()
        assert not chatting.done()
        mesh.replicas[other].kill()
        await asyncio.wait_for(chatting, LIMIT_S)
        await asyncio.gather(moving, return_exceptions=True)  # the replica is gone, as it may say
        came = await kv_blocks(mesh.replicas[holder], "loaded")
        assert 1 <= came < len(sampled.prompt) / 4 / BLOCK


async def test_kv_that_was_copied_ahead_outlives_the_replica_that_computed_it() -> None:
    """The replica that serves is killed; the other one has the prompt's KV, and most of the
    reply's."""
    prompt = " ".join(f"whale {n}" for n in range(100))
    greedy, sampled = make_reference_chats("fake", REPLY_TOKENS, [prompt])
    slow = {**FAKE, "fake_call_ms": 60.0, "scheduler": {"prefill_chunk_tokens": 4 * BLOCK}}
    ahead = {"kv_ahead": {"enabled": True}}
    async with (
        running(slow, router=ahead) as mesh,
        connect(f"quic://{HOST}:{mesh.edge.port}", ca=mesh.ca) as client,
    ):
        for asked in (greedy, sampled):
            await mesh.until(lambda rows: is_ready(rows, "one", "two"))
            chatting = await begin(client, asked)
            await mesh.until(lambda rows: any(row.sessions for row in rows))
            (serving,) = [row.name for row in await mesh.rows() if row.sessions]
            (other,) = {"one", "two"} - {serving}
            standby = mesh.replicas[other]
            kept_before = await counted(standby, "outrider_kv_ahead_blocks_total", "kept")
            used_before = await counted(standby, "outrider_kv_tokens_total", "device")
            kept = 0.0
            async with asyncio.timeout(LIMIT_S):
                while kept < len(asked.prompt) / 8 / BLOCK and not chatting.done():
                    now = await counted(standby, "outrider_kv_ahead_blocks_total", "kept")
                    kept = now - kept_before
                    await asyncio.sleep(0.02)
            assert not chatting.done(), "the reply was over before its KV was copied"
            mesh.replicas[serving].kill()
            await asyncio.wait_for(chatting, LIMIT_S)
            async with asyncio.timeout(LIMIT_S):
                used = 0.0
                while used < kept * BLOCK / 2:
                    now = await counted(standby, "outrider_kv_tokens_total", "device")
                    used = now - used_before
                    await asyncio.sleep(0.02)
            mesh.replicas[serving].spawn()
            await mesh.replicas[serving].ready()
