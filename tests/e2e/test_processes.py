"""Two processes of an edge and of a router, real ones: both serve, a client that moves stays with
its own, one that is killed costs a pause, and limits are those of both together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.faults.chats import ReferenceChat, make_reference_chats
from bench.harness.local_mesh import LocalMesh, local_mesh
from outrider.cli.local.state import running_mesh
from outrider.client import Client, Committed, Event, Interrupted, Message, Resumed, connect
from outrider.client.chat import Chat
from outrider.client.liveness import Liveness, LivenessLimits
from outrider.errors import OutriderError, UnavailableError
from outrider.testing import eventually
from outrider.workers.steering import process_of
from outrider.workers.worker import VARIABLE
from tests.edge.integration.trouble import quic

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

NUM_TOKENS = 300
NUM_SHORT_TOKENS = 20
CALL_MS = 10.0
"""A reply of NUM_TOKENS, without drafts, lasts for seconds: it is not over before its process is
killed, or its client has moved."""
NUM_CLIENTS = 20
AT_A_TIME = 4
MAX_CONNECTIONS = 24
SHAPE = ("--edge-processes", "2", "--router-processes", "2")
PATIENT = LivenessLimits(busy_s=60.0, idle_s=60.0, answer_s=60.0)
_PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def mesh() -> Iterator[LocalMesh]:
    with local_mesh(
        engine="fake",
        regions="here",
        http=True,
        shape=SHAPE,
        settings=(
            f"edge.quic.max_connections_per_address={MAX_CONNECTIONS}",
            "edge.drain_s=120",
            "edge.drafter.model=none",
            f"inference.fake_call_ms={CALL_MS}",
        ),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def references() -> list[ReferenceChat]:
    return make_reference_chats("fake", num_tokens=NUM_TOKENS)


def admin(mesh: LocalMesh, role: str, path: str) -> str:
    port = mesh.state.service(role)["admin_port"]
    with urllib.request.urlopen(f"http://{mesh.state.host}:{port}{path}") as reply:
        return str(reply.read().decode())


def by_worker(mesh: LocalMesh, role: str, name: str, **labels: str) -> dict[str, float]:
    """A metric of each process of a service with these labels, over its other ones."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(admin(mesh, role, "/metrics")):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                worker = sample.labels["worker"]
                found[worker] = found.get(worker, 0.0) + sample.value
    return found


def workers(parent: int) -> dict[int, int]:
    """The pid of each process of a service, by its number."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    pids = {}
    for pid in children:
        with contextlib.suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            told = [line for line in environ if line.startswith(VARIABLE.encode() + b"=")]
            if told:
                pids[json.loads(told[0].partition(b"=")[2])["index"]] = int(pid)
    return pids


def runs(pid: int) -> bool:
    """Whether it has not ended; it may wait to be noticed by its parent (proc(5))."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


async def halfway(client: Client, reference: ReferenceChat) -> tuple[Chat, list[Event]]:
    """A chat that has some of its reply."""
    asked = [Message("user", reference.prompt)]
    chat = client.chat(asked, sampling=reference.sampling, speculation="off")
    await chat.__aenter__()
    events: list[Event] = []
    while not any(isinstance(event, Committed) for event in events):
        events.append(await anext(chat))
    return chat, events


async def finish(chat: Chat, events: list[Event], reference: ReferenceChat) -> list[Event]:
    """The rest; all of it is as it has to be."""
    events += [event async for event in chat]
    result = await chat.result()
    assert (result.text, result.ids) == (reference.text, reference.ids)
    assert "".join(event.text for event in events if isinstance(event, Committed)) == reference.text
    return events


def connected(mesh: LocalMesh) -> contextlib.AbstractAsyncContextManager[Client]:
    host, port = mesh.edge
    return connect(host, port, ca=mesh.ca, timeout_s=30.0)


async def test_clients_spread_over_both_and_one_exposition_counts_all(mesh: LocalMesh) -> None:
    references = make_reference_chats("fake", num_tokens=NUM_SHORT_TOKENS)
    room = asyncio.Semaphore(AT_A_TIME)
    assert json.loads(admin(mesh, "edge", "/ready"))["ready"]
    assert by_worker(mesh, "edge", "outrider_worker_up") == {"0": 1.0, "1": 1.0}

    async def ask(number: int) -> int:
        reference = references[number % len(references)]
        async with room, connected(mesh) as client:
            chat, events = await halfway(client, reference)
            await finish(chat, events, reference)
            return process_of(bytes.fromhex(chat.resume_token[:8]), 2)

    served = await asyncio.gather(*(ask(number) for number in range(NUM_CLIENTS)))
    assert set(served) == {0, 1}
    chats = by_worker(mesh, "edge", "outrider_edge_chats_total")
    assert chats == {str(it): float(served.count(it)) for it in (0, 1)}
    sessions = by_worker(mesh, "router", "outrider_router_placements_total")
    assert sum(sessions.values()) == NUM_CLIENTS
    assert all(sessions.values()), "each edge process spreads its sessions over the router's"


async def test_connections_over_http_spread_too(mesh: LocalMesh) -> None:
    url = f"http://{mesh.state.host}:{mesh.state.service('edge')['http_port']}/v1/models"

    def ask() -> None:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url)

    for _ in range(NUM_CLIENTS):
        await asyncio.to_thread(ask)

    def answers() -> dict[str, float]:
        return by_worker(mesh, "edge", "outrider_edge_http_answers_total", status="401")

    # A client may have its answer before it is counted.
    await eventually(lambda: sum(answers().values()) == NUM_CLIENTS)
    assert set(answers()) == {"0", "1"}


async def test_a_client_whose_address_changes_keeps_its_connection(
    mesh: LocalMesh, references: list[ReferenceChat]
) -> None:
    async with connected(mesh) as client:
        connection = quic(client)
        # A machine that is slow for two seconds would have it dial anew, which is not asked here.
        connection._life.liveness = Liveness(PATIENT, asyncio.get_running_loop().time())
        chat, events = await halfway(client, references[0])
        for _ in range(6):  # another port each time: the kernel's own hash would err half the time
            await client.migrate()
            have = len(events)
            while not any(isinstance(event, Committed) for event in events[have:]):
                events.append(await anext(chat))
        events = await finish(chat, events, references[0])
        assert quic(client) is connection and connection.num_migrations == 6
    assert not any(isinstance(event, Interrupted) for event in events)


async def test_connections_of_one_address_count_at_all_processes(mesh: LocalMesh) -> None:
    async with contextlib.AsyncExitStack() as opened:
        refused: OutriderError | None = None
        num_open = 0
        while refused is None:
            try:
                await opened.enter_async_context(connected(mesh))
                num_open += 1
            except OutriderError as error:
                refused = error
    assert "too many connections from this address" in str(refused)
    # Those of the tests before may not have ended yet.
    assert MAX_CONNECTIONS // 2 < num_open <= MAX_CONNECTIONS
    # They are closed, which the edge hears a moment later.
    open_connections = "outrider_edge_open_connections"
    await eventually(
        lambda: not any(by_worker(mesh, "edge", open_connections).values()), timeout_s=_PATIENCE_S
    )


async def test_a_process_that_is_killed_costs_a_pause_and_is_back(
    mesh: LocalMesh, references: list[ReferenceChat]
) -> None:
    parent = mesh.state.service("edge")["pid"]
    before = workers(parent)
    async with connected(mesh) as client:
        chat, events = await halfway(client, references[0])
        served = process_of(bytes.fromhex(chat.resume_token[:8]), 2)
        os.kill(before[served], signal.SIGKILL)
        events = await finish(chat, events, references[0])
        assert any(isinstance(event, Resumed) for event in events)
        assert process_of(bytes.fromhex(chat.resume_token[:8]), 2) != served
    await eventually(
        lambda: by_worker(mesh, "edge", "outrider_worker_up") == {"0": 1.0, "1": 1.0},
        timeout_s=_PATIENCE_S,
    )
    after = workers(parent)
    assert after[1 - served] == before[1 - served], "the other one was left alone"
    assert after[served] != before[served]
    restarts = by_worker(mesh, "edge", "outrider_worker_restarts_total")
    assert restarts == {str(served): 1.0}
    short = make_reference_chats("fake", num_tokens=NUM_SHORT_TOKENS)[0]
    for _ in range(NUM_CLIENTS):
        async with connected(mesh) as client:
            chat, events = await halfway(client, short)
            await finish(chat, events, short)
        if process_of(bytes.fromhex(chat.resume_token[:8]), 2) == served:
            break
    else:
        pytest.fail("the process that was started again gets no clients")


async def test_a_chat_comes_back_to_its_process_by_its_token(
    mesh: LocalMesh, references: list[ReferenceChat]
) -> None:
    """A connection that ends without the client's doing: the chat goes on where it ran."""

    def num_resumed(*ways: str) -> float:
        resumed = "outrider_edge_resumed_chats_total"
        found = [by_worker(mesh, "edge", resumed, how=how) for how in ways]
        return sum(sum(chats.values()) for chats in found)

    # Of the tests before, others may have come back; and on a busy machine once more than is meant.
    here, anew = num_resumed("attached", "replayed"), num_resumed("rerun")
    async with connected(mesh) as client:
        for reference in references[:2]:
            chat, events = await halfway(client, reference)
            served = chat.resume_token[:8]
            connection = quic(client)
            connection._lose(UnavailableError("the way was lost"))
            events = await finish(chat, events, reference)
            assert any(isinstance(event, Resumed) for event in events)
            process = process_of(bytes.fromhex(served), 2)
            assert process_of(bytes.fromhex(chat.resume_token[:8]), 2) == process
    assert num_resumed("attached", "replayed") - here >= 2
    assert num_resumed("rerun") == anew, "none of them ran anew"


async def test_all_drain_when_the_parent_is_told_to_stop_and_when_it_is_killed(
    mesh: LocalMesh, references: list[ReferenceChat]
) -> None:
    def serving() -> dict[str, Any]:
        state = running_mesh(mesh.state_dir)
        assert state is not None
        return state.service("edge")

    async def ends(parent: int, signals: list[tuple[int, signal.Signals]]) -> None:
        """Chats under way do not notice; all processes end by themselves, and others serve."""
        before = workers(parent).values()
        assert len(before) == 2
        async with contextlib.AsyncExitStack() as opened:
            clients = [await opened.enter_async_context(connected(mesh)) for _ in range(4)]
            asked = list(zip(clients, references, strict=False))
            under_way = await asyncio.gather(*(halfway(*each) for each in asked))
            for pid, number in signals:
                os.kill(pid, number)
            finishing = (
                finish(*each, reference)
                for each, (_, reference) in zip(under_way, asked, strict=True)
            )
            for events in await asyncio.gather(*finishing):
                assert [event for event in events if isinstance(event, Interrupted)] == []
        await eventually(
            lambda: not any(runs(pid) for pid in (parent, *before)),
            timeout_s=_PATIENCE_S,
        )
        await eventually(
            lambda: serving()["is_up"] and serving()["pid"] != parent, timeout_s=_PATIENCE_S
        )

    parent = serving()["pid"]
    # As systemd does it: every process is told, and the parent passes it on besides.
    everybody = [(pid, signal.SIGTERM) for pid in (parent, *workers(parent).values())]
    await ends(parent, everybody)
    parent = serving()["pid"]
    await ends(parent, [(parent, signal.SIGKILL)])
    async with connected(mesh) as client:
        chat, events = await halfway(client, references[0])
        await finish(chat, events, references[0])
