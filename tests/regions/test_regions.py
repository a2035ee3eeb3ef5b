"""Chats over three regions on hosts of their own, of which one is lost, cut off or slow."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import dns.rcode
import pytest

from bench.faults.chats import ChatLoad, ReferenceChat
from bench.regions.incidents import INCIDENTS, interrupted
from bench.regions.mesh import CLIENTS, NEAR, ONE_WAY_MS, REGIONS, SITE, RegionalMesh
from bench.relay.lane import Conditions
from outrider.cli.local.certificates import OPERATOR, of_process
from outrider.client import Committed, connect
from outrider.errors import NoReplicaError, UnavailableError
from outrider.models.chat import Message

pytestmark = [pytest.mark.hosts, pytest.mark.asyncio(loop_scope="session")]
NUM_CHATS = 24
MANY_CHATS = 200
LIMIT_S = 180.0


async def reply(mesh: RegionalMesh, key: str, asked: ReferenceChat) -> str:
    """The text of a reply."""
    async with connect(mesh.urls[0], ca=mesh.ca, key=key, timeout_s=30.0) as client:
        message = Message("user", asked.prompt)
        async with client.chat([message], sampling=asked.sampling) as chat:
            return (await chat.result()).text


@asynccontextmanager
async def chatting(mesh: RegionalMesh, references: list[ReferenceChat]) -> AsyncIterator[ChatLoad]:
    """Chats that are under way in the block; all of them have to be exact."""
    async with ChatLoad(mesh, references, NUM_CHATS) as load:
        while not all(chat.times for chat in load.running):
            load.check()
            await asyncio.sleep(0.05)
        yield load
    assert load.totals.problem == "", load.totals.errors


@pytest.mark.parametrize("name", INCIDENTS)
async def test_nothing_is_lost_whatever_happens_to_the_nearest_region(
    mesh: RegionalMesh, references: list[ReferenceChat], name: str
) -> None:
    num_chats = MANY_CHATS if name == "power lost" else NUM_CHATS
    totals, pauses_ms = await interrupted(mesh, INCIDENTS[name], references, num_chats)
    assert totals.problem == "", totals.errors
    assert len(pauses_ms) >= 0.75 * num_chats, "they were under way"
    assert totals.chats >= num_chats


async def test_a_tenant_that_is_bound_to_a_region_is_refused_rather_than_moved(
    mesh: RegionalMesh, references: list[ReferenceChat]
) -> None:
    asked = references[0]
    assert await reply(mesh, mesh.bound_key, asked) == asked.text
    await mesh.lose(NEAR)
    with pytest.raises(NoReplicaError):
        await reply(mesh, mesh.bound_key, asked)
    assert await reply(mesh, mesh.key, asked) == asked.text, "others are served elsewhere"
    await mesh.bring_back(NEAR)
    assert await reply(mesh, mesh.bound_key, asked) == asked.text


async def bound_reply(mesh: RegionalMesh, asked: ReferenceChat, ids: list[int]) -> None:
    """Collect the ids of a reply to the bound tenant, whose client leaves all retries to its edge.
    Raises the error that ends it."""
    async with connect(
        mesh.urls[0], ca=mesh.ca, key=mesh.bound_key, timeout_s=30.0, reconnect=None
    ) as client:
        message = Message("user", asked.prompt)
        async with client.chat([message], sampling=asked.sampling) as chat:
            async for event in chat:
                if isinstance(event, Committed):
                    ids += event.ids


@asynccontextmanager
async def only_near(mesh: RegionalMesh) -> AsyncIterator[None]:
    """No replica of another region gets a session in the block."""
    moved: set[str] = set()
    others = [region for region in REGIONS if region != NEAR]

    async def watch() -> None:
        while True:
            for region in others:
                with suppress(UnavailableError):
                    rows = await mesh.replicas_seen(region)
                    moved.update(it["name"] for it in rows if it["sessions"])
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert moved <= {it.name for it in mesh.regions[NEAR]}


async def until_under_way(ids: list[int]) -> None:
    while len(ids) < 5:
        await asyncio.sleep(0.05)


async def test_a_bound_reply_ends_where_it_is_when_its_region_does_not_come_back(
    mesh: RegionalMesh, references: list[ReferenceChat]
) -> None:
    asked, ids = references[1], list[int]()
    async with asyncio.timeout(LIMIT_S), only_near(mesh):
        reply = asyncio.create_task(bound_reply(mesh, asked, ids))
        await until_under_way(ids)
        await mesh.lose(NEAR)
        with pytest.raises(NoReplicaError):
            await reply
    assert 5 <= len(ids) < len(asked.ids)
    assert tuple(ids) == asked.ids[: len(ids)]
    await mesh.bring_back(NEAR)


async def test_a_bound_reply_goes_on_when_its_region_comes_back(
    mesh: RegionalMesh, references: list[ReferenceChat]
) -> None:
    asked, ids = references[2], list[int]()
    async with asyncio.timeout(LIMIT_S), only_near(mesh):
        reply = asyncio.create_task(bound_reply(mesh, asked, ids))
        await until_under_way(ids)
        await mesh.hosts.cut(mesh.hosts.around(NEAR))
        for region in REGIONS:
            while region != NEAR and await num_ready(mesh, region):
                await asyncio.sleep(0.05)
        await mesh.hosts.mend(mesh.hosts.around(NEAR))
        await reply
    assert tuple(ids) == asked.ids
    await mesh.until_whole()


async def num_ready(mesh: RegionalMesh, region: str) -> int:
    """Replicas of NEAR that take sessions, as a region's router sees them."""
    rows = await mesh.replicas_seen(region)
    return sum(it["region"] == NEAR and it["state"] == "READY" for it in rows)


async def test_lost_packets_and_jitter_change_nothing(
    mesh: RegionalMesh, references: list[ReferenceChat]
) -> None:
    await mesh.hosts.take_traffic()
    for (one, other), delay_ms in ONE_WAY_MS.items():
        await mesh.hosts.set(one, other, Conditions(delay_ms, jitter_ms=10.0, loss=0.02))
    async with chatting(mesh, references):
        pass
    traffic = await mesh.hosts.take_traffic()
    for (one, other), delay_ms in ONE_WAY_MS.items():
        await mesh.hosts.set(one, other, Conditions(delay_ms))
    assert all(traffic[way]["lost"] for way in ((CLIENTS, SITE), (SITE, CLIENTS)))


async def test_a_name_server_that_fails_takes_nobody_out_of_service(
    mesh: RegionalMesh, references: list[ReferenceChat]
) -> None:
    async with chatting(mesh, references):
        mesh.names.rcode = dns.rcode.SERVFAIL
        mesh.names.asked.clear()
        names = {f"replicas.{region}.test" for region in REGIONS}
        while not names <= {name for name, _ in mesh.names.asked}:
            await asyncio.sleep(0.05)
        await mesh.until_whole()
        mesh.names.rcode = dns.rcode.NOERROR


async def test_a_region_is_drained_by_an_operator_elsewhere(
    mesh: RegionalMesh, references: list[ReferenceChat]
) -> None:
    async with chatting(mesh, references):
        await drain(mesh, "--move")
        rows = await mesh.replicas_seen("eu-west")
        assert {it["name"] for it in rows if it["state"] == "DRAINING"} == {
            it.name for it in mesh.regions[NEAR][2:]
        }
    await drain(mesh, "--undo")
    await mesh.until_whole()


async def drain(mesh: RegionalMesh, flag: str) -> None:
    """Run `outrider drain --region` against another region's router."""
    tls = of_process(mesh.made.folder, OPERATOR)
    command = (
        *(sys.executable, "-m", "outrider.cli.main", "drain", "--region", NEAR, flag),
        *("--router", mesh.router("us-west").address),
        *("--certificate", str(tls.certificate), "--private-key", str(tls.private_key)),
        *("--ca", str(tls.ca)),
    )
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
