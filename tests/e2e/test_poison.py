"""A request that crashes its replica, among others that do not, while processes are killed: it ends
after three replicas at most, and every other chat is whole and exact."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from random import Random

import pytest

from bench.faults.chats import ReferenceChat, make_reference_chats
from bench.harness.local_mesh import LocalMesh, local_mesh
from outrider.cli.local.state import running_mesh
from outrider.client import Client, Message, ReconnectPolicy, connect
from outrider.errors import PoisonousRequestError
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

POISON = " Quetzalcoatl"
PATIENT = ReconnectPolicy(give_up_after_s=300)


MOVES_INEXACT = '[[router.tenants]]\nname = "*"\nallow_inexact = true\n'


def settings(vocabulary: Vocabulary) -> tuple[str, ...]:
    (crash_id, *_) = vocabulary.encode(POISON)
    # The machine may be slow: nobody is given up for that.
    return (
        f"inference.fake_crash_id={crash_id}",
        "inference.fake_call_ms=5",
        "edge.drafter.model=none",
        "edge.reopen_s=300",
        "router.failover.timeout_s=300",
        "router.return_s=300",
        "router.admission.max_wait_medium_s=300",
    )


def num_crashes(mesh: LocalMesh, event: str = "earlier_process_crashed") -> int:
    """Engine calls that ended a process, as the next process of each replica logs it."""
    logs = [Path(row["log"]) for row in mesh.services("inference")]
    return sum(log.read_text("utf-8").count(event) for log in logs)


async def harmless(client: Client, reference: ReferenceChat) -> None:
    message = [Message("user", reference.prompt)]
    async with client.chat(message, sampling=reference.sampling) as asked:
        result = await asked.result()
    assert (result.text, result.ids) == (reference.text, reference.ids)


async def poisonous(client: Client) -> None:
    message = [Message("user", f"Who was{POISON}?")]
    with pytest.raises(PoisonousRequestError, match="with no other request"):
        async with client.chat(message, sampling=SamplingParams(max_tokens=9)) as asked:
            await asked.result()


async def kill(mesh: LocalMesh, random: Random, count: int) -> list[str]:
    """Any processes, one after the other, each once all are up again; their names."""
    killed = []
    for _ in range(count):
        name = random.choice([row["name"] for row in mesh.state.services])
        state = running_mesh(mesh.state_dir)
        assert state is not None
        with contextlib.suppress(ProcessLookupError):  # its last request may have been the poison
            os.kill(state.service(name)["pid"], signal.SIGKILL)
        killed.append(name)
        await eventually(lambda: is_whole(mesh), timeout_s=300.0)
    return killed


def is_whole(mesh: LocalMesh) -> bool:
    state = running_mesh(mesh.state_dir)
    return state is not None and all(row["is_up"] for row in state.services)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_poisonous_request_ends_and_no_other_does(
    seed: int, vocabulary: Vocabulary
) -> None:
    references = make_reference_chats("fake", num_tokens=400)[:6]
    with local_mesh(engine="fake", settings=settings(vocabulary)) as mesh:
        host, port = mesh.edge
        async with connect(f"quic://{host}:{port}", ca=mesh.ca, reconnect=PATIENT) as client:
            chats = [asyncio.create_task(harmless(client, it)) for it in references[:3]]
            chats.append(asyncio.create_task(poisonous(client)))
            chats += [asyncio.create_task(harmless(client, it)) for it in references[3:]]
            killed = await kill(mesh, Random(seed), 3)
            await asyncio.gather(*chats)
        await eventually(lambda: is_whole(mesh), timeout_s=300.0)
        # A second death of its router or edge may hide a crash that was not reported yet.
        num_deaths = sum(name in ("router", "edge") for name in killed)
        assert 2 <= num_crashes(mesh) <= 3 + max(0, num_deaths - 1)


async def test_others_wait_while_no_replica_has_an_engine(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """Both are started anew, which takes longer than a router waits for one that only broke its
    connection."""
    config = tmp_path / "mesh.toml"
    config.write_text(MOVES_INEXACT, "utf-8")
    chosen = [it for it in settings(vocabulary) if not it.startswith("router.return_s")]
    with local_mesh(engine="fake-turns", settings=chosen, config=config) as mesh:
        host, port = mesh.edge
        async with connect(f"quic://{host}:{port}", ca=mesh.ca, reconnect=PATIENT) as client:
            await poisonous(client)
            for number in range(3):
                message = [Message("user", f"What is river {number}?")]
                async with client.chat(message, sampling=SamplingParams(max_tokens=9)) as asked:
                    assert (await asked.result()).ids
        await eventually(lambda: is_whole(mesh), timeout_s=300.0)


async def test_a_request_that_loses_one_stock_engine_after_the_other_ends(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """The engines write whole replies, and are lost with the request before its first token."""
    config = tmp_path / "mesh.toml"
    config.write_text(MOVES_INEXACT, "utf-8")
    chosen = (*settings(vocabulary), "inference.fake_token_ms=5")
    sampling = SamplingParams(max_tokens=400, ignore_eos=True)

    async def ask(client: Client, text: str) -> tuple[int, ...]:
        async with client.chat([Message("user", text)], sampling=sampling) as asked:
            return (await asked.result()).ids

    with local_mesh(engine="fake-turns", settings=chosen, config=config) as mesh:
        host, port = mesh.edge
        async with connect(f"quic://{host}:{port}", ca=mesh.ca, reconnect=PATIENT) as client:
            texts = ["What is a river?", "What is a lake?", "What is a sea?"]
            alone = [await ask(client, it) for it in texts]
            chats = [asyncio.create_task(ask(client, it)) for it in texts]
            await poisonous(client)
            assert await asyncio.gather(*chats) == alone, "no token is lost, none comes twice"
        await eventually(lambda: is_whole(mesh), timeout_s=300.0)
        assert 2 <= num_crashes(mesh, "engine_lost") <= 3
