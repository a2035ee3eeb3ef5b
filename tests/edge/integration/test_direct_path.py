"""Commits straight from a replica to an edge, through a whole mesh that is real but for its engine:
the text is what it is without, whatever becomes of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.client import Client, Committed, Message, SamplingParams
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.telemetry import RESUMED_CHATS
from services.edge.upstream import retry_times
from tests.telemetry.mesh import WholeMesh, whole_mesh

NUM_CHATS = 4
ON = {"direct_path": True}
ALLOWED = {"direct_path_regions": ("*",)}


async def reply(client: Client, seed: int, behind: int = 0, mesh: WholeMesh | None = None) -> str:
    """The text of a chat; behind so many tokens the streams to edges are ended."""
    sampling = SamplingParams(temperature=0.8, seed=seed, max_tokens=150, ignore_eos=True)
    num_committed = 0
    async with client.chat([Message("user", f"chat {seed}")], sampling=sampling) as chat:
        async for event in chat:
            if isinstance(event, Committed):
                num_committed += len(event.ids)
                if mesh is not None and num_committed > behind:
                    for stream in list(mesh.replica.direct_service._streams):
                        stream.close()
                    mesh = None
        result = await chat.result()
    assert len(result.ids) == 150
    return result.text


async def replies(client: Client) -> list[str]:
    return list(await asyncio.gather(*(reply(client, seed) for seed in range(NUM_CHATS))))


def at_edge(mesh: WholeMesh, result: str) -> float:
    value = mesh.edge_metrics.registry.get_sample_value
    return value("outrider_edge_direct_sessions_total", {"result": result}) or 0.0


def reopened(mesh: WholeMesh) -> float:
    value = mesh.edge_metrics.registry.get_sample_value
    return value(f"{RESUMED_CHATS}_total", {"how": "reopened"}) or 0.0


async def at_router(mesh: WholeMesh) -> float:
    return sum(
        sample.value
        for family in await mesh.scraped()
        for sample in family.samples
        if sample.name == "outrider_router_direct_sessions_total"
    )


async def test_the_text_is_the_same_through_the_router_directly_and_from_one_to_the_other(
    words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_times, "FIRST_BACKOFF_S", 0.0)
    # Calls that wait, so that replies last until their edge has its stream.
    async with (
        whole_mesh(words, tmp_path, edge_settings=ON, router_settings=ALLOWED, call_ms=5.0) as mesh,
        mesh.client() as client,
    ):
        texts = await replies(client)

        async def chat_until(is_enough: Callable[[], bool], behind: int | None = None) -> None:
            """A chat is not direct if its reply is over before its edge has a stream."""
            async with asyncio.timeout(200):
                while not is_enough():
                    if behind is None:
                        assert await replies(client) == texts
                    else:
                        assert await reply(client, 0, behind, mesh) == texts[0]

        await chat_until(lambda: at_edge(mesh, "direct") > NUM_CHATS)
        assert mesh.replica.direct_service.num_streams == 1, "one stream for all chats"
        await chat_until(lambda: reopened(mesh) > 0, behind=1)
        before = reopened(mesh)
        await chat_until(lambda: reopened(mesh) > before, behind=60)

        mesh.replica.direct_service.close()
        await eventually(lambda: mesh.replica.direct_service.num_streams == 0)
        num_direct = at_edge(mesh, "direct")
        await chat_until(lambda: at_edge(mesh, "unreachable") > 0)
        assert at_edge(mesh, "direct") == num_direct
        async with asyncio.timeout(60):  # its next tick tells its counters
            while await at_router(mesh) != num_direct:
                pass
        await eventually(lambda: len(mesh.replica.table.direct_paths) == 0)


@pytest.mark.parametrize(
    ("edge", "router"), [({}, ALLOWED), (ON, {}), (ON, {"direct_path_regions": ("us",)})]
)
async def test_it_takes_both_an_edge_that_wants_it_and_a_router_that_allows_it(
    words: Vocabulary, tmp_path: Path, edge: dict[str, bool], router: dict[str, tuple[str, ...]]
) -> None:
    async with (
        whole_mesh(words, tmp_path, edge_settings=edge, router_settings=router) as mesh,
        mesh.client() as client,
    ):
        await reply(client, 1)
        assert mesh.replica.direct_service.num_streams == 0
        assert len(mesh.replica.table.direct_paths) == 0
        assert at_edge(mesh, "direct") == 0
