"""An edge with a real draft model in a real process: exact text whatever becomes of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.client import Client, Message, Provisional
from outrider.codec.shipped import shipped_table
from outrider.models.catalog import DEFAULT_MODEL, SHIPPED
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.drafter.metrics import DrafterState
from services.edge.drafter.settings import DrafterConfig
from services.edge.session.display import DisplayPolicy
from services.edge.session.draft_chain import DraftLimits
from tests.edge.integration.running import Running, running
from tests.edge.integration.trouble import said
from tests.engines.draft_making import make_draft

REPLY = (
    "The sea is wide and the wind is cold. A ship went out at dawn, and nobody saw it again "
    "until the moon stood over the harbour and the bells of the town began to ring."
)
ASK = [Message("user", "Tell me of the sea.")]
START_S = 240.0
"""Until the model is loaded, on a machine that is busy with much else."""

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def draft_file(
    tmp_path_factory: pytest.TempPathFactory, model_store: ModelStore, vocabulary: Vocabulary
) -> Path:
    """Four of the target's layers and the head of its 2,000 most frequent ids: poor drafts."""
    target = model_store.ensure(DEFAULT_MODEL.source, sha256=DEFAULT_MODEL.sha256).path
    table = shipped_table(vocabulary.tokens_digest)
    assert table is not None
    ids = sorted(int(i) for i in table.to_id[:2000])
    path = tmp_path_factory.mktemp("draft") / "poor.draft.gguf"
    return make_draft(target, path, ids, digest=vocabulary.digest.hex())


@asynccontextmanager
async def drafting(
    vocabulary: Vocabulary, folder: Path, draft_model: str, state: DrafterState, **config: Any
) -> AsyncIterator[Running]:
    config = {
        "catalog": SHIPPED,
        "drafter": DrafterConfig(model=draft_model),
        "drafts": DraftLimits(min_survival=0.01),
    } | config
    async with running(vocabulary, folder, REPLY, **config) as mesh:
        await eventually(lambda: mesh.model.drafter.state is state, timeout_s=START_S)
        yield mesh


async def text(client: Client, **options: Any) -> str:
    return await said(client.chat(ASK, provisional=True, **options))


async def held_chat(mesh: Running, client: Client) -> asyncio.Task[str]:
    """A chat that has had some tokens, and whose next ones the region keeps back."""
    mesh.region.gate.clear()
    mesh.region.hold_at = 6
    chat = asyncio.create_task(text(client))
    await eventually(lambda: any(live.committed >= 6 for live in mesh.region.live.values()))
    return chat


async def kill_in_the_middle(mesh: Running, client: Client) -> None:
    """Of a chat that it drafts for: chats go on while it is away, and it comes back."""
    link = mesh.model.drafter
    chat = await held_chat(mesh, client)
    (live,) = mesh.region.live.values()
    await eventually(lambda: bool(live.drafts))
    first = link.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: link.pid not in (None, first), timeout_s=START_S)
    mesh.region.gate.set()
    assert await chat == REPLY
    assert await text(client) == REPLY
    await eventually(lambda: link.state is DrafterState.READY, timeout_s=START_S)
    assert mesh.of_model("outrider_edge_drafter_restarts_total", DEFAULT_MODEL.name) == 1


async def stop_for_a_while(mesh: Running, client: Client) -> None:
    """It hears and says nothing; then it drafts again."""
    pid = mesh.model.drafter.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    assert await text(client) == REPLY
    os.kill(pid, signal.SIGCONT)
    chat = await held_chat(mesh, client)
    (live,) = mesh.region.live.values()
    await eventually(lambda: bool(live.drafts))
    mesh.region.gate.set()
    assert await chat == REPLY


async def test_a_model_drafts_dies_comes_back_and_stalls(
    vocabulary: Vocabulary, tmp_path: Path, draft_file: Path
) -> None:
    ready = DrafterState.READY
    async with (
        drafting(vocabulary, tmp_path, str(draft_file), ready) as mesh,
        mesh.client() as client,
    ):
        assert await text(client) == REPLY
        await kill_in_the_middle(mesh, client)
        await stop_for_a_while(mesh, client)
        # Which source wins is the sources' affair; that the model was asked is not.
        await eventually(
            lambda: mesh.of_model("outrider_edge_drafter_calls_total", DEFAULT_MODEL.name) > 0
        )
        drafted = "outrider_edge_drafter_drafted_tokens_total"
        assert (
            sum(
                mesh.of_model(drafted, DEFAULT_MODEL.name, source=name)
                for name in ("suffix", "model", "both")
            )
            > 0
        )
        await eventually(
            lambda: mesh.of_model("outrider_edge_drafter_sessions", DEFAULT_MODEL.name) == 0
        )
        assert mesh.model.drafter.num_sessions == 0


@pytest.mark.parametrize("draft_model", ["/nowhere/draft.gguf", "no-such-model"])
async def test_a_missing_model_costs_nothing_but_its_drafts(
    vocabulary: Vocabulary, tmp_path: Path, draft_model: str
) -> None:
    unusable = DrafterState.UNUSABLE
    async with (
        drafting(vocabulary, tmp_path, draft_model, unusable) as mesh,
        mesh.client() as client,
    ):
        assert await text(client) == REPLY
        assert mesh.of_model("outrider_edge_drafter_state", DEFAULT_MODEL.name, state="unusable")
        assert draft_model in mesh.model.drafter.reason


async def test_a_model_that_cannot_be_converted_is_not_tried_again(
    vocabulary: Vocabulary, tmp_path: Path, model_store: ModelStore
) -> None:
    target = model_store.ensure(DEFAULT_MODEL.source, sha256=DEFAULT_MODEL.sha256).path
    digest, path = vocabulary.digest.hex(), tmp_path / "no-layers.draft.gguf"
    make_draft(target, path, [5, 6], digest=digest, layers=())
    async with drafting(vocabulary, tmp_path, str(path), DrafterState.UNUSABLE) as mesh:
        assert "lacks llama.block_count" in mesh.model.drafter.reason
        assert mesh.of_model("outrider_edge_drafter_restarts_total", DEFAULT_MODEL.name) == 0


async def test_chats_do_not_wait_for_a_model_that_loads(
    vocabulary: Vocabulary, tmp_path: Path, draft_file: Path
) -> None:
    starting = DrafterState.STARTING
    async with (
        drafting(vocabulary, tmp_path, str(draft_file), starting) as mesh,
        mesh.client() as client,
    ):
        assert mesh.edge._ready() == (False, "the drafter loads its model")
        assert await text(client) == REPLY
        assert mesh.model.drafter.state is starting
        # The edge says that it is ready after 10 s in any case: a slow machine may take longer.
        await eventually(lambda: mesh.model.drafter.state is DrafterState.READY, timeout_s=START_S)
        assert mesh.edge._ready()[0]


async def shown_and_sent(mesh: Running, client: Client, question: str, reply: str) -> str:
    """All text that a client was shown before it was final, and all that was drafted for it."""
    vocabulary, seen = mesh.region.vocabulary, list[str]()
    mesh.region.reply = (*vocabulary.encode(reply), min(vocabulary.stop_ids))
    mesh.region.gate.clear()
    mesh.region.hold_at = 0
    async with client.chat([Message("user", question)]) as chat:
        await eventually(lambda: any(live.drafts for live in mesh.region.live.values()))
        (live,) = mesh.region.live.values()
        seen.append(drafted(vocabulary, live.drafts))
        mesh.region.gate.set()
        async for event in chat:
            seen.append(event.text if isinstance(event, Provisional) else "")
            seen.append(drafted(vocabulary, live.drafts))
    return " ".join(seen)


def drafted(vocabulary: Vocabulary, ids: list[int]) -> str:
    return b"".join(map(vocabulary.token_bytes, ids)).decode(errors="replace")


async def test_a_stranger_is_neither_shown_nor_drafted_what_another_was_told(
    vocabulary: Vocabulary, tmp_path: Path, draft_file: Path
) -> None:
    letter = "Dear Miriam, your blood test was positive."
    display = DisplayPolicy(threshold=0.01, first_threshold=0.01)
    config = {"display": display, "uploads": "always"}
    async with drafting(
        vocabulary, tmp_path, str(draft_file), DrafterState.READY, **config
    ) as mesh:
        async with mesh.client() as owner, mesh.client() as stranger:
            for question in ("Write to Miriam.", "Again.", "Once more, please."):
                mesh.region.reply = (*vocabulary.encode(letter), min(vocabulary.stop_ids))
                assert await said(owner.chat([Message("user", question)])) == letter
            seen = await shown_and_sent(mesh, stranger, "What is two plus two?", "It is four.")
            assert seen.strip()
            assert not {"Dear", "Miriam", "blood", "positive"} & set(seen.replace(",", " ").split())
            seen = await shown_and_sent(mesh, owner, "And to whom did you write?", letter)
            assert "Dear" in seen, "the same attack, where it may"
