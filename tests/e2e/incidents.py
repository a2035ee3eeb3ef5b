"""Incidents with real causes in a mesh of real processes, each for as long as its block lasts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client.parser import text_string_to_metric_families

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.cli.local.admin_page import read_page
from outrider.cli.local.certificates import of_process
from outrider.cli.local.state import running_mesh
from outrider.client import Client, Message, SamplingParams, connect
from outrider.durable_files import write_atomic
from outrider.edge_list import EdgeList, ListedEdge, sign
from outrider.errors import NoReplicaError
from outrider.models.catalog import DEFAULT_MODEL
from outrider.rpc import make_channel
from outrider.rpc.certificate_expiry import NOT_AFTER
from outrider.tls.certificates import utc_now
from outrider.tls.development import DevelopmentCa, write
from outrider.tls.identity import PeerIdentity, Role
from outrider.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from services.edge.quic import certificate as edge_certificate
from tests.redis_server import RedisServer

Begin = Callable[["Stage"], AbstractAsyncContextManager[None]]
"""Begins an incident, and ends it with the block."""

CALL_MS: Final = 10
"""Of each call of the fake engine: replies last without using the CPU."""
CHUNK_TOKENS: Final = 32
MAX_SESSIONS: Final = 2
MAX_QUEUE: Final = 16
"""Of a replica: with 12 waiting sessions it lets LOW ones wait."""
LATE_TOKENS: Final = 1500
"""A prompt of so many takes a replica some 0.5 s: 47 calls."""
POLL_S: Final = 0.05
MAX_CHATS: Final = 48
"""More than both replicas and their queues take."""
MAX_WAIT_S: Final = 300
"""Nobody is refused within an incident because he waited."""
_LIST_KEY: Final = Ed25519PrivateKey.generate()
"""Signs lists of edges."""

CONFIG: Final = """
[router.admission]
max_wait_medium_s = {max_wait_s}
max_wait_low_s = {max_wait_s}

[inference]
fake_call_ms = {call_ms}

[inference.scheduler]
max_sessions = {max_sessions}
max_queue = {max_queue}
prefill_chunk_tokens = {chunk_tokens}

[inference.prefix_store]
url = "{url}"
key = "{key}"
min_tokens = 64

[tokenizer.shared_cache]
url = "{url}"
key = "{key}"
min_chars = 1
timeout_ms = 1000.0

[edge]
edge_list = "{edge_list}"
certificate = "{certificate}"
private_key = "{private_key}"
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """A mesh of a region with two replicas, two routers, a tokenizer and an edge, and its Redis."""

    mesh: LocalMesh
    redis: RedisServer
    edge_certificate: Path
    edge_key: Path
    edge_list: Path

    @property
    def key(self) -> str:
        """The development key."""
        return (self.mesh.state_dir / "development.key").read_text("utf-8").strip()

    def pids(self, role: str) -> list[int]:
        """Of the processes that run now: those that were killed have successors."""
        state = running_mesh(self.mesh.state_dir)
        assert state is not None
        return [row["pid"] for row in state.services if row["role"] == role]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of the edge, with a key: what its chats said is found again."""
        host, port = self.mesh.edge
        async with connect(host, port, ca=self.edge_certificate, key=self.key) as client:
            yield client

    def values(self, role: str, metric: str, **labels: str) -> list[float]:
        """Values of a metric's rows that have these labels, of all services of a role."""
        return [
            sample.value
            for row in self.mesh.services(role)
            for family in text_string_to_metric_families(
                read_page(self.mesh.state.host, row["admin_port"])
            )
            for sample in family.samples
            if sample.name == metric and labels.items() <= sample.labels.items()
        ]

    def post(self, path: str, body: bytes) -> int:
        """The status with which the edge answers a request over HTTP, in JSON."""
        port = self.mesh.state.service("edge")["http_port"]
        request = urllib.request.Request(
            f"http://{self.mesh.state.host}:{port}{path}",
            body,
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


@contextmanager
def stage(folder: Path, redis: RedisServer) -> Iterator[Stage]:
    """A stage whose files lie in `folder`."""
    certificate, key = edge_certificate.ensure(folder / "edge", ["localhost"], utc_now())
    edge_list = folder / "edges.json"
    write_atomic(edge_list, _edge_list(timedelta(days=60)))
    config = folder / "outrider.toml"
    told = CONFIG.format(
        max_wait_s=MAX_WAIT_S,
        call_ms=CALL_MS,
        max_sessions=MAX_SESSIONS,
        max_queue=MAX_QUEUE,
        chunk_tokens=CHUNK_TOKENS,
        url=redis.url,
        key="k" * 32,
        edge_list=edge_list,
        certificate=certificate,
        private_key=key,
    )
    config.write_text(told, "utf-8")
    shape = ("--replicas", "2", "--routers", "2")
    with local_mesh(
        engine="fake", regions="us-east", http=True, config=config, shape=shape
    ) as mesh:
        yield Stage(mesh, redis, certificate, key, edge_list)


async def until(condition: Callable[[], bool]) -> None:
    """Return once it holds; it may take its time. AssertionError after a minute."""
    try:
        async with asyncio.timeout(60.0):
            while not await asyncio.to_thread(condition):
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"still not true: {condition}") from None


async def say(client: Client, prompt: str, num_tokens: int, *, system: str = "") -> None:
    """A chat whose reply has so many tokens."""
    sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    asked = [Message("system", system)] if system else []
    async with client.chat([*asked, Message("user", prompt)], sampling=sampling) as chat:
        assert len((await chat.result()).ids) == num_tokens


@asynccontextmanager
async def talking(client: Client) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Chats that are added to the list are cancelled at the end; none may have ended before."""
    chats: list[asyncio.Task[None]] = []
    try:
        yield chats
        assert not [chat for chat in chats if chat.done()]
    finally:
        for chat in chats:
            chat.cancel()
        await asyncio.gather(*chats, return_exceptions=True)


def long_chat(client: Client, number: int) -> asyncio.Task[None]:
    """One that lasts for 19 s or more once a replica has it."""
    return asyncio.create_task(say(client, f"Chat number {number}.", 1900))


async def usual_work(stage: Stage) -> None:
    """Chats that begin alike, one after the other."""
    async with stage.client() as client:
        for number in range(8):
            await say(client, f"Question {number}", 4, system="You answer questions.")


# Processes that stop.


@contextmanager
def halted(pids: Sequence[int]) -> Iterator[None]:
    """Processes that stand still, as on a machine that hangs: their sockets stay open."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def standing_still(role: str, how_many: int) -> Begin:
    """So many processes of a role are halted."""

    @asynccontextmanager
    async def begin(stage: Stage) -> AsyncIterator[None]:
        with halted(stage.pids(role)[:how_many]):
            yield

    return begin


def killed(role: str) -> Begin:
    """A process of a role is killed, and nobody starts it again until the end."""

    @asynccontextmanager
    async def begin(stage: Stage) -> AsyncIterator[None]:
        with halted([stage.mesh.state.supervisor_pid]):
            os.kill(stage.pids(role)[0], signal.SIGKILL)
            yield

    return begin


@asynccontextmanager
async def redis_killed(stage: Stage) -> AsyncIterator[None]:
    """Replicas look there for prompts' beginnings, and a tokenizer for texts. Each finds that Redis
    is gone with what it is asked next, and by itself that it is back."""
    stage.redis.kill()
    try:
        await asyncio.gather(_miss_prefix_store(stage), _miss_token_cache(stage))
        yield
    finally:
        stage.redis.start()


async def _miss_prefix_store(stage: Stage) -> None:
    """Chats of long prompts, until each replica knows."""

    def is_known() -> bool:
        return set(stage.values("inference", "outrider_kv_store_up")) == {0}

    async with stage.client() as client, asyncio.timeout(60.0):
        while not await asyncio.to_thread(is_known):
            prompts = (f"{time.monotonic_ns()} {one} " + "of many words " * 40 for one in range(4))
            await asyncio.gather(*(say(client, prompt, 1) for prompt in prompts))


async def _miss_token_cache(stage: Stage) -> None:
    """Texts for the tokenizer, until it knows."""

    def is_known() -> bool:
        return stage.values("tokenizer", "outrider_tokenization_shared_cache_up") == [0]

    tls = stage.mesh.tls("router")
    channel = make_channel(stage.mesh.address("tokenizer"), tls=tls, role=Role.TOKENIZER)
    stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
    stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
    async with channel, asyncio.timeout(60.0):
        while not await asyncio.to_thread(is_known):
            text = f"A text of {time.monotonic_ns()}."
            asked = tokenizer_pb2.EncodeRequest(number=1, text=text, cache_salt=b"salt")
            async for _ in stub.Encode(iter([asked])):
                pass


# Certificates.


@asynccontextmanager
async def mesh_certificate_ends(stage: Stage) -> AsyncIterator[None]:
    """The tokenizer gets a certificate for half a day, of a CA that all were told of before."""
    async with _another_ca(stage, timedelta(days=60)) as ca:
        issued = ca.issue(PeerIdentity(Role.TOKENIZER), utc_now(), timedelta(hours=12))
        path = of_process(stage.mesh.state_dir, "tokenizer").ca
        assert path is not None
        write(path.parent, "tokenizer", issued, path.read_bytes())
        yield


@asynccontextmanager
async def mesh_ca_ends(stage: Stage) -> AsyncIterator[None]:
    """One of the CAs that the mesh trusts ends in twenty days."""
    async with _another_ca(stage, timedelta(days=20)):
        yield


@asynccontextmanager
async def edge_certificate_ends(stage: Stage) -> AsyncIterator[None]:
    """The edge is given a certificate that ends in half a day."""
    made_at = utc_now() - edge_certificate.VALIDITY + timedelta(hours=12)
    folder = stage.edge_certificate.parent / "old"
    certificate, key = edge_certificate.ensure(folder, ["localhost"], made_at)
    with _restored(stage.edge_key, stage.edge_certificate):
        write_atomic(stage.edge_key, key.read_bytes())
        write_atomic(stage.edge_certificate, certificate.read_bytes())
        yield


@asynccontextmanager
async def edge_list_ends(stage: Stage) -> AsyncIterator[None]:
    """The edge is given a list of edges that ends in six days, then one that lasts."""
    write_atomic(stage.edge_list, _edge_list(timedelta(days=6)))
    try:
        yield
    finally:
        write_atomic(stage.edge_list, _edge_list(timedelta(days=60)))


def _edge_list(validity: timedelta) -> bytes:
    """A list that is newer than those before."""
    ends_at = (utc_now() + validity).timestamp()
    edges = EdgeList((ListedEdge("localhost", 1),), time.time_ns() // 1_000_000, int(ends_at))
    return sign(edges, _LIST_KEY).encoded()


@asynccontextmanager
async def _another_ca(stage: Stage, validity: timedelta) -> AsyncIterator[DevelopmentCa]:
    """A CA that all processes trust beside the mesh's own, which lasts for longer."""
    now = utc_now()
    ca = DevelopmentCa(now, validity=validity)

    def is_known() -> bool:
        ends = [
            stage.values(role, NOT_AFTER, certificate="mesh_ca")
            for role in ("edge", "router", "tokenizer", "inference")
        ]
        return max(chain.from_iterable(ends)) <= (now + validity).timestamp()

    files = of_process(stage.mesh.state_dir, "tokenizer")
    assert files.ca is not None and files.private_key is not None and files.certificate is not None
    with _restored(files.private_key, files.certificate, files.ca):
        write_atomic(files.ca, files.ca.read_bytes() + ca.pem)
        await until(is_known)
        yield ca


@contextmanager
def _restored(*files: Path) -> Iterator[None]:
    """These files are at the end as they were, in this order."""
    before = {path: path.read_bytes() for path in files}
    try:
        yield
    finally:
        for path, data in before.items():
            write_atomic(path, data)


# More work than there is room for.


@asynccontextmanager
async def queue_stays(stage: Stage) -> AsyncIterator[None]:
    """Chats have lasted for long lately, so that routers keep further ones until there is room."""
    async with stage.client() as client:
        await asyncio.gather(*(say(client, f"One of some: {number}.", 150) for number in range(12)))
        async with talking(client) as chats:
            await _one_after_the_other(
                client,
                chats,
                lambda: (
                    sum(
                        stage.values(
                            "router", "outrider_router_waiting_sessions", priority="MEDIUM"
                        )
                    )
                    > 0
                ),
            )
            yield


@asynccontextmanager
async def replica_overloaded(stage: Stage) -> AsyncIterator[None]:
    """Chats have been short lately, so that routers let a replica's queue grow."""
    async with stage.client() as client:
        for number in range(10):
            shorts = (say(client, f"A short one: {number} {one}.", 1) for one in range(8))
            await asyncio.gather(*shorts)
        async with talking(client) as chats:
            await _one_after_the_other(
                client,
                chats,
                lambda: any(
                    1 in stage.values("inference", "outrider_overload_level", state=state)
                    for state in ("queue_low", "refuse")
                ),
            )
            yield


async def _one_after_the_other(
    client: Client, chats: list[asyncio.Task[None]], is_enough: Callable[[], bool]
) -> None:
    """Begin long chats until it is enough."""
    while not await asyncio.to_thread(is_enough):
        assert len(chats) < MAX_CHATS
        chats.append(long_chat(client, len(chats)))


@asynccontextmanager
async def drain_stuck(stage: Stage) -> AsyncIterator[None]:
    """A replica is drained while a chat runs there that lasts."""
    async with stage.client() as client, talking(client) as chats:
        chats.append(long_chat(client, 0))

        def running() -> list[str]:
            names = [row["name"] for row in stage.mesh.services("inference")]
            return [it for it in names if stage.mesh.metric(it, "outrider_sessions_running")]

        await until(lambda: bool(running()))
        drain = ("drain", running()[0], "--state-dir", str(stage.mesh.state_dir))
        waited = await asyncio.to_thread(outrider, *drain, "--timeout", "0", check=False)
        assert waited.returncode, "no session was left"
        try:
            yield
        finally:
            await asyncio.to_thread(outrider, *drain, "--undo")


# Chats that go wrong, or slowly.


@asynccontextmanager
async def chats_fail(stage: Stage) -> AsyncIterator[None]:
    """A client's chats may be held only in a region that has no replicas."""
    async with stage.client() as client:
        for number in range(5):
            asked = [Message("user", f"Stay here: {number}.")]
            with pytest.raises(NoReplicaError):
                async with client.chat(asked, residency=("ap-south",)) as chat:
                    await chat.result()
    yield


@asynccontextmanager
async def first_tokens_late(stage: Stage) -> AsyncIterator[None]:
    """Prompts are long, and the engine takes its time for each call."""
    async with stage.client() as client:
        async with again_and_again(
            lambda: say(client, f"{time.monotonic_ns()} " + "word " * LATE_TOKENS, 1)
        ):
            yield


@asynccontextmanager
async def system_messages_differ(stage: Stage) -> AsyncIterator[None]:
    """A client puts what changes into its system messages: more than one a second, on average over
    half an hour."""

    async def ask() -> None:
        said = [{"role": "system", "content": f"{time.monotonic_ns()}"} for _ in range(300)]
        asked = {"model": DEFAULT_MODEL.name, "input": [*said, {"role": "user", "content": "Hi"}]}
        body = json.dumps(asked).encode()
        assert await asyncio.to_thread(stage.post, "/v1/responses/input_tokens", body) == 200

    async with again_and_again(ask):
        yield


@asynccontextmanager
async def loop_stalls(stage: Stage) -> AsyncIterator[None]:
    """A client sends requests that take long to read, and are refused."""
    said = [{"role": "user", "content": "again"}] * 25_000
    body = json.dumps({"model": DEFAULT_MODEL.name, "messages": said}).encode()

    async def ask() -> None:
        assert await asyncio.to_thread(stage.post, "/v1/chat/completions", body) == 400

    async with again_and_again(ask), again_and_again(ask):
        yield


@asynccontextmanager
async def again_and_again(act: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Act again and again. Raises what one of the acts raised."""

    async def acting() -> None:
        while True:
            await act()

    task = asyncio.create_task(acting())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
