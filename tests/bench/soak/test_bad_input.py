"""What the soak takes for bad input is refused by a real replica as the soak expects."""

from __future__ import annotations

import random

import pytest

from bench.soak.bad_input import BadInput
from outrider.errors import BadTokenBlockError
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import inference_pb2
from tests.inference.harness import CODER, opening, reference, running

LONG = SamplingParams(max_tokens=200, ignore_eos=True)


@pytest.mark.parametrize("name", BadInput(CODER, random.Random(1)).names)
async def test_every_bad_opening_gets_the_error_that_the_soak_asks_for(name: str) -> None:
    frame = opening([9, 8, 7])
    expected = BadInput(CODER, random.Random(1)).spoil(frame, name)
    async with running() as it:
        peer = it.peer()
        await peer.send(inference_pb2.SessionUp(session=1, open=frame))
        assert type((await peer.finish(1)).error) is expected
        await peer.open(2, [9, 8, 7], LONG)
        assert tuple((await peer.finish(2)).ids) == reference([9, 8, 7], LONG).ids
        await peer.call.done_writing()
        await eventually(it.is_clean)


async def test_a_damaged_draft_ends_its_session() -> None:
    bad = BadInput(CODER, random.Random(1))
    async with running() as it:
        peer = it.peer()
        await peer.open(1, [9, 8, 7], LONG)
        await peer.send(inference_pb2.SessionUp(session=1, draft=bad.draft()))
        reply = await peer.finish(1)
        assert type(reply.error) is BadTokenBlockError
        assert tuple(reply.ids) == reference([9, 8, 7], LONG).ids[: len(reply.ids)]
        await peer.call.done_writing()
        await eventually(it.is_clean)
