"""Replicas whose engines write whole replies: a chat outlives the replica that serves it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from outrider.client import Committed, SamplingParams
from outrider.errors import NoReplicaError
from tests.e2e.two_replicas import ASK, Kind, small_mesh

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

TURNS = Kind({"engine": "fake-turns", "fake_token_ms": 4.0})
"""Its next token depends on those before it alone: one that is lost, or comes twice, shows."""


async def test_a_reply_goes_on_elsewhere_and_says_that_it_is_inexact(tmp_path: Path) -> None:
    async with small_mesh(tmp_path, TURNS, TURNS, num_tokens=300, allows_inexact=True) as mesh:
        one, other = [it.model_identity for it in await mesh.listed()]
        assert one != other, "processes of such an engine promise no common bits"
        whole = await mesh.ask()
        interrupted = await mesh.ask(kills=True)
    assert interrupted.ids == whole.ids and len(whole.ids) == 300
    assert interrupted.text == whole.text
    assert interrupted.inexact and not whole.inexact


async def test_without_leave_a_reply_ends_with_its_replica(tmp_path: Path) -> None:
    async with small_mesh(tmp_path, TURNS, TURNS, num_tokens=300) as mesh:
        with pytest.raises(NoReplicaError, match="allow_inexact"):
            await mesh.ask(kills=True)
        assert len((await mesh.ask()).ids) == 300, "new chats go anywhere"


async def test_thirty_two_chats_beside_each_other(tmp_path: Path) -> None:
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    async with small_mesh(tmp_path, TURNS, TURNS, num_tokens=60) as mesh:
        alone = await mesh.ask()

        async def chat() -> tuple[int, ...]:
            async with mesh.client.chat(ASK, sampling=sampling) as one:
                return (await one.result()).ids

        replies = await asyncio.gather(*(chat() for _ in range(32)))
    assert replies == [alone.ids] * 32


async def test_a_stopped_replica_lets_its_replies_end(tmp_path: Path) -> None:
    kind = Kind({**TURNS.settings, "drain_s": 60.0})
    async with small_mesh(tmp_path, kind, num_tokens=300) as mesh:
        sampling = SamplingParams(max_tokens=300, ignore_eos=True)
        async with mesh.client.chat(ASK, sampling=sampling) as chat:
            async for event in chat:
                if isinstance(event, Committed) and event.upto >= 20:
                    break
            mesh.replicas[0].signal(signal.SIGTERM)
            result = await chat.result()
    assert len(result.ids) == 300 and not result.inexact
