"""A part of `bench.exactness`: real prompts through the shared mesh equal the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.exactness import Answer, Variant, Work, chosen_model, stages, works
from bench.harness.local_mesh import LocalMesh
from bench.harness.prompts import interleaved, load_prompts
from tests.e2e.reference import Reference

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

NUM_PROMPTS = 7
MAX_TOKENS = 32
VARIANTS = dict(stages(quick=True)[0].variants)


@pytest.fixture(scope="module")
def truths(reference: Reference) -> list[tuple[Work, list[Answer]]]:
    """One prompt of every kind, greedy and sampled, with what the reference says."""
    prompts = interleaved(load_prompts(split="all"))[:NUM_PROMPTS]
    shorter = [
        replace(work, sampling=replace(work.sampling, max_tokens=MAX_TOKENS))
        for work in works(chosen_model("", "openvino"), prompts)
    ]

    def truth(work: Work) -> list[Answer]:
        replies = [reference.reply(prompt.text, work.sampling) for prompt in work.prompts]
        return [Answer(reply.text, reply.ids) for reply in replies]

    return [(work, truth(work)) for work in shorter]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_text_equals_the_reference(
    mesh: LocalMesh, truths: list[tuple[Work, list[Answer]]], variant: Variant
) -> None:
    for work, truth in truths:
        assert variant(mesh, work, truth) == truth
