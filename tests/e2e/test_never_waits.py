"""The real model behind the real services, and an edge whose draft stream fails in all ways."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from bench.harness.local_mesh import LocalMesh
from bench.harness.region_client import Drafter, RegionClient, Reply
from outrider.codec.ranks import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.loading import load_vocabulary
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

ASK = "Write the numbers from one to thirty, each on a line of its own, like this: Number 1."
SAMPLING = SamplingParams(max_tokens=96)
TOLERANCE = 1.4
"""What a draft must promise depends on how long calls take, so their number varies a little."""


def silent(reply: Sequence[int]) -> Sequence[int]:
    """A black hole: nothing of what the edge sends arrives."""
    return ()


def garbage(vocabulary: Vocabulary) -> Drafter:
    rng = Random(1)
    return lambda reply: [rng.randrange(vocabulary.size) for _ in range(8)]


def outdated(reply: Sequence[int]) -> Sequence[int]:
    """As if from another place of the text: what came delayed."""
    return reply[-30:-20]


async def generate(
    mesh: LocalMesh, vocabulary: Vocabulary, drafters: Sequence[Drafter]
) -> list[Reply]:
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.digest))
    ids = vocabulary.encode_chat([Message("user", ASK)])
    async with RegionClient(coder, mesh.address("router"), via_router=True) as client:
        return [
            await client.generate(
                ids,
                SAMPLING,
                digest=vocabulary.digest,
                drafter=drafter,
                # Nobody drafts from what the replica said to the others.
                cache_salt=f"salt {number}".encode(),
            )
            for number, drafter in enumerate(drafters)
        ]


def test_no_failing_stream_costs_the_session_calls(mesh: LocalMesh) -> None:
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    drafters = [silent, silent, garbage(vocabulary), outdated]
    replies = asyncio.run(generate(mesh, vocabulary, drafters))
    texts = {tuple(reply.ids) for reply in replies}
    assert len(texts) == 1, "the text is the same"
    _, without, *failing = (len(reply.commit_times) for reply in replies)
    assert without < 0.8 * len(replies[0].ids), "the region's own drafts are right here"
    assert max(failing) <= TOLERANCE * without + 2, (without, failing)
