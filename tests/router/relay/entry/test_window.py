"""Prompts that no replica has room for are refused before anything is done for them."""

from __future__ import annotations

from outrider.v1 import inference_pb2
from tests.router.relay.mesh import DIGEST, Mesh, opening


async def test_a_prompt_beyond_every_context_is_refused_with_both_numbers() -> None:
    mesh = Mesh()
    edge = mesh.edge()
    mesh.send(edge, opening(1, tokens=2048))
    (frame,) = await mesh.at_edge(edge)
    assert frame.error.reason == "PROMPT_TOO_LONG"
    assert "2048 tokens, at most 2047 fit" in frame.error.message
    mesh.send(edge, opening(2, tokens=2047))
    held = inference_pb2.PromptDelta(prefix_tokens=3000)
    mesh.send(edge, opening(3, ids=held, vocabulary_digest=DIGEST))
    assert [frame.error.message for frame in await mesh.at_edge(edge)] == [
        "the prompt has 3000 tokens, at most 2047 fit; shorten it"
    ]
    assert len(mesh.table) == 1
    mesh.metrics.close()


def test_the_longest_context_is_that_of_replicas_that_said_one() -> None:
    mesh = Mesh()
    assert mesh.registry.longest_context("m") == 2048
    assert mesh.registry.longest_context("other") == 0
    mesh.metrics.close()
