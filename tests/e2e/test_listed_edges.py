"""An edge process is killed (SIGKILL) in the middle of a reply. Its client was given that edge
alone by name, and reads on at one of the signed list: the reply is whole and exact."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.faults.chats import PROMPTS, ReferenceChat, make_reference_chats
from bench.harness.mesh import Service
from outrider.client import Message, Resumed, connect
from outrider.testing import eventually
from tests.e2e.two_edges import Fleet, running

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

NUM_TOKENS = 250
LIMIT_S = 120.0
BEGUN_BYTES = 100
"""Of a reply: its client has the list by now, and most of the reply is to come."""


@pytest.fixture(scope="module")
def reference() -> ReferenceChat:
    (reference, *_) = make_reference_chats("fake", NUM_TOKENS, PROMPTS[:1])
    return reference


@asynccontextmanager
async def fleet_of(name: str) -> AsyncIterator[Fleet]:
    async with asyncio.timeout(LIMIT_S), running(name) as fleet:
        yield fleet


async def test_a_chat_goes_on_at_an_edge_of_the_list_when_its_own_is_killed(
    reference: ReferenceChat, tmp_path: Path
) -> None:
    asked = [Message("user", reference.prompt)]
    known = tmp_path / "known.json"
    async with fleet_of("listed-edges") as fleet:
        first, _ = fleet.edges
        options: dict[str, Any] = {
            "ca": fleet.ca,
            "edge_list_keys": [fleet.list_key],
            "edge_list_file": known,
        }
        async with connect(f"quic://{first.address}", **options) as client:
            await eventually(known.is_file)
            async with client.chat(asked, sampling=reference.sampling) as chat:
                await anext(aiter(chat))
                first.kill()
                resumed = [event async for event in chat if isinstance(event, Resumed)]
                result = await chat.result()
        assert (result.ids, result.text) == (reference.ids, reference.text) and len(resumed) == 1
        # Another program, while its edge is still gone.
        async with connect(f"quic://{first.address}", **options) as client:
            async with client.chat(asked, sampling=reference.sampling) as chat:
                assert (await chat.result()).text == reference.text


async def test_the_command_goes_on_at_an_edge_of_the_list() -> None:
    async with fleet_of("listed-edges-command") as fleet:
        first, second = fleet.edges
        truth, _ = await asyncio.to_thread(shown, command(fleet, second))
        read, told = await asyncio.to_thread(shown, command(fleet, first), meanwhile=first.kill)
    assert read == truth and b"outrider: back after " in told


def shown(
    command: list[str], *, meanwhile: Callable[[], None] = lambda: None
) -> tuple[bytes, bytes]:
    """What a command prints, and what it says on standard error. `meanwhile` is called when a part
    of the reply is there."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        begun = process.stdout.read(BEGUN_BYTES)
        meanwhile()
        rest, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, told
    return begun + rest, told


def command(fleet: Fleet, edge: Service) -> list[str]:
    """Asks this edge, and knows the key of the list."""
    where = ("--edge", edge.address, "--ca", str(fleet.ca), "--edge-list-key", fleet.list_key)
    asked = ("--prompt", PROMPTS[0], "--no-provisional", "--max-tokens", str(NUM_TOKENS))
    return [sys.executable, "-m", "outrider.cli.main", "chat", *where, *asked]
