"""What a reply over HTTP tells of its drafts and moves, before a real mesh and before a scripted
region; and what the edge logs of the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from httpx2 import AsyncClient
from structlog.types import EventDict

from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.access.config import AccessConfig
from services.edge.http.config import HttpConfig
from tests.edge.integration.chat_routes import CHAT, CHAT_ROUTES, ChatRoute, data_of
from tests.edge.integration.running import Running
from tests.mesh import running_mesh

SETTINGS = {"http": HttpConfig(port=0), "access": AccessConfig(http_anonymous=True)}
NUM_TOKENS = 60
WANTED = {"return_metrics": True, "ignore_eos": True, "seed": 1}


def limited(route: ChatRoute) -> dict[str, Any]:
    """A reply of NUM_TOKENS is asked for."""
    limit = "max_output_tokens" if route.path == "/v1/responses" else "max_tokens"
    return {**route.body, **WANTED, limit: NUM_TOKENS}


def metrics_in(parts: list[Any]) -> dict[str, Any]:
    """Those of the one part that has them."""
    (found,) = [
        it["metrics"]
        for part in parts
        for it in (part, part.get("response", {}))
        if "metrics" in it
    ]
    return dict(found)


async def test_a_reply_says_what_speculation_did_for_it(words: Vocabulary, tmp_path: Path) -> None:
    """The engine repeats itself, so the region's own drafts are often right, and so are the edge's
    where the same was asked before. Calls take a while, so that drafts are worth their price
    however busy the machine is."""
    found = []
    options = FakeOptions(vocabulary_size=words.size, min_rows=2, repetition=1.0, call_ms=5.0)
    opened = running_mesh(words, tmp_path, edge=SETTINGS, engine=lambda: FakeEngine(options))
    async with opened as mesh:
        where = f"http://127.0.0.1:{mesh.edges[0].ports.http}"
        async with AsyncClient(base_url=where, timeout=30) as client:
            for route in CHAT_ROUTES:
                whole = await client.post(route.path, json=limited(route))
                found.append(metrics_in([whole.json()]))
                stream = await client.post(route.path, json=limited(route) | {"stream": True})
                found.append(metrics_in(data_of(stream.content)))
            bare = await client.post(CHAT.path, json={**CHAT.body, "max_tokens": 2})
            assert "metrics" not in bare.text
    for it in found:
        tokens, drafts = it["tokens"], it["speculative_decoding"]
        assert sum(tokens.values()) == NUM_TOKENS and tokens["unknown"] == it["moves"] == 0
        assert tokens["edge"] + tokens["region"] == drafts["num_accepted_draft_tokens"] > 0
        assert sum(drafts["acceptance_histogram"]) == drafts["num_spec_steps"] > 0
        assert drafts["num_spec_tokens"] == 8, "what a replica takes into one call by default"
        assert 0 < it["time_to_first_token_ms"]
        assert it["mean_itl_ms"] * (NUM_TOKENS - 1) == pytest.approx(
            it["generation_time_ms"], abs=0.1
        )


@pytest.mark.edge(**SETTINGS)
async def test_moves_are_counted_and_logged(
    logs: list[EventDict], mesh: Running, caller: AsyncClient
) -> None:
    mesh.region.stop_after = 4
    body = {**CHAT.body, "return_metrics": True}
    reply = asyncio.create_task(caller.post(CHAT.path, json=body))
    await eventually(lambda: any(it.committed >= 4 for it in mesh.region.live.values()))
    mesh.region.stop_after = None
    mesh.region.break_streams()
    metrics = (await reply).json()["metrics"]
    assert metrics["moves"] == 1 and len(mesh.region.opened) == 2
    await mesh.settled()
    (told,) = [line for line in logs if line["event"] == "chat_ended"]
    assert told["tokens_by_source"] == metrics["tokens"]
    assert (told["num_moves"], told["num_verified_drafts"]) == (1, 0)
    assert told["ttft_ms"] == pytest.approx(metrics["time_to_first_token_ms"], abs=0.1)
