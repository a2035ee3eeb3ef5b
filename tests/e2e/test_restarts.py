"""Several edges and routers with a distance between them, each of whose processes is killed in turn
(SIGKILL) while a chat streams: `outrider up` starts it again where it was, and the chat goes on,
exact."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from bench.faults.chats import ReferenceChat, make_reference_chats
from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.cli import operator
from outrider.cli.local.state import running_mesh, supervisor_pid
from outrider.client import Client, Message, ReconnectPolicy, connect
from outrider.rpc import make_channel
from outrider.testing import eventually
from outrider.tls import Role
from outrider.v1 import router_pb2, router_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

NO_DRAFTER = ("edge.drafter.model=none",)
"""It would load the real model each time that the edge starts; that it comes back is seen in
tests/edge/drafter."""
RTT_MS = 60
SHAPE = ("--routers", "2", "--edges", "2", "--rtt", str(RTT_MS))
PATIENT = ReconnectPolicy(give_up_after_s=60)


def status(mesh: LocalMesh) -> dict[str, Any]:
    """What `outrider status` says."""
    found: dict[str, Any] = json.loads(
        outrider("status", "--json", "--state-dir", str(mesh.state_dir)).stdout
    )
    return found


def log_of(mesh: LocalMesh) -> str:
    """What the supervisor said."""
    return (mesh.state_dir / "up.log").read_text(encoding="utf-8")


def is_back(mesh: LocalMesh, name: str) -> bool:
    """Whether a process was started again, and is up."""
    state = running_mesh(mesh.state_dir)
    row = state.service(name) if state else {}
    return bool(row.get("restarts") == 1 and row["is_up"])


async def serves_with_all(mesh: LocalMesh) -> None:
    """Return when the router has both replicas."""
    tls, ready = operator.of_mesh(mesh.state_dir), router_pb2.REPLICA_STATE_READY
    async with make_channel(mesh.address("router"), tls=tls, role=Role.ROUTER) as channel:
        stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(channel)
        async with asyncio.timeout(60.0):
            while True:
                request = router_pb2.ListReplicasRequest()
                listed = await stub.ListReplicas(request, wait_for_ready=True)
                if [row.state for row in listed.replicas] == [ready, ready]:
                    return


async def first_final_ms(mesh: LocalMesh, edge: str, reference: ReferenceChat) -> float:
    """Of a chat at this edge: time to its first final token."""
    host, port = mesh.state.host, mesh.state.service(edge)["port"]
    async with connect(host, port, ca=mesh.ca) as client:
        message = Message("user", reference.prompt)
        async with client.chat([message], sampling=reference.sampling) as asked:
            result = await asked.result()
    assert (result.text, result.ids) == (reference.text, reference.ids)
    assert result.timings.committed_ttft_ms is not None
    return result.timings.committed_ttft_ms


async def chat(client: Client, reference: ReferenceChat, is_enough: Callable[[], bool]) -> int:
    """Chats, one after the other until it is enough, each exact; how many."""
    count = 0
    while not count or not is_enough():
        async with client.chat(
            [Message("user", reference.prompt)], sampling=reference.sampling
        ) as asked:
            result = await asked.result()
        assert (result.text, result.ids) == (reference.text, reference.ids)
        count += 1
    return count


async def test_whoever_is_killed_is_started_again_where_it_was() -> None:
    reference = make_reference_chats("fake", num_tokens=400)[0]
    with local_mesh(engine="fake", shape=SHAPE, settings=NO_DRAFTER) as mesh:
        host, port = mesh.edge
        before = {row["name"]: row for row in mesh.state.services}
        told = outrider("status", "--state-dir", str(mesh.state_dir)).stdout
        assert told.count(f"{RTT_MS} ms from the edges") == 2
        assert await first_final_ms(mesh, "edge-2", reference) >= RTT_MS
        is_over = False
        async with connect(f"quic://{host}:{port}", ca=mesh.ca, reconnect=PATIENT) as client:
            chatting = asyncio.create_task(chat(client, reference, lambda: is_over))
            for name, row in before.items():
                os.kill(row["pid"], signal.SIGKILL)
                await eventually(partial(is_back, mesh, name), timeout_s=60.0)
                # The router has to have found the replica again: with the next one killed too, it
                # would have none.
                await serves_with_all(mesh)
                assert not chatting.done(), chatting.exception()
            is_over = True
            assert await chatting >= 1
        found = status(mesh)
        assert [row["state"] for row in found["replicas"]] == ["READY", "READY"]
        after = {row["name"]: row for row in found["services"]}
        assert all(row["is_up"] for row in after.values())
        for name, row in before.items():
            assert after[name]["pid"] != row["pid"]
            end = after[name]["last_end"]
            assert end["why"] == "killed (signal 9)"
            assert end["at_s"] < end["back_at_s"]
            for key in ("port", "admin_port", "log"):
                assert after[name][key] == row[key]
        said = log_of(mesh)
        for name in before:
            assert f"{name} killed (signal 9); it is started again in 0.5 s" in said
            assert f"{name} is up again" in said
        await stops_by_ctrl_c(mesh, after["edge-2"]["pid"])


async def stops_by_ctrl_c(mesh: LocalMesh, pid: int) -> None:
    """The supervisor, in the pause before it starts the process again that is killed here."""
    known = len(log_of(mesh))
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: "it is started again" in log_of(mesh)[known:])
    supervisor = supervisor_pid(mesh.state_dir)
    assert supervisor is not None
    os.kill(supervisor, signal.SIGINT)  # by a command it would come when the pause is over
    await eventually(lambda: supervisor_pid(mesh.state_dir) is None)
    assert "is up again" not in log_of(mesh)[known:]
