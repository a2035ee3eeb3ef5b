"""Messages between edge and drafter survive their bytes; other bytes are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import OutriderError
from outrider.sampling.params import SamplingParams
from services.edge.drafter.protocol import (
    CloseReply,
    CommitTokens,
    DrafterReady,
    DrafterStats,
    DrafterUnusable,
    DraftSource,
    DraftUpdate,
    OpenReply,
    decode_from_drafter,
    decode_to_drafter,
    encode,
)

PARAMS = SamplingParams(
    temperature=0.8,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    repetition_penalty=1.1,
    presence_penalty=-0.5,
    frequency_penalty=0.25,
    logit_bias={7: -100.0, 49_151: 3.5},
    seed=2**64 - 1,
    max_tokens=300,
    ignore_eos=True,
    acceptance_threshold=0.5,
)
UPDATE = DraftUpdate(9, 12, (1, 49_151), (0.75, 0.5), (DraftSource.MODEL, DraftSource.BOTH), 1500)
STATS = DrafterStats(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, (14, 15, 16), (17, 18, 19))


@pytest.mark.parametrize(
    "message",
    [
        OpenReply(1, (1, 2, 3), (), SamplingParams()),
        OpenReply(2**32 - 1, (0,), (5, 6), PARAMS, (2,), 7, b"a group", True, (0, 3)),
        CommitTokens(3, (49_151, 0)),
        CommitTokens(3, (), 0),
        CloseReply(4),
    ],
)
def test_what_the_edge_says(message: OpenReply | CommitTokens | CloseReply) -> None:
    assert decode_to_drafter(encode(message)) == message


@pytest.mark.parametrize(
    "message", [DrafterReady("a model"), DrafterUnusable("no model: ä"), STATS]
)
def test_what_the_drafter_says(message: DrafterReady | DrafterUnusable | DrafterStats) -> None:
    assert decode_from_drafter(encode(message)) == message


def test_a_draft_keeps_its_survival_to_a_65_thousandth() -> None:
    read = decode_from_drafter(encode(UPDATE))
    assert isinstance(read, DraftUpdate)
    assert replace(read, survival=UPDATE.survival) == UPDATE
    assert read.survival == pytest.approx(UPDATE.survival, abs=1 / 65_535)


@given(data=st.binary(min_size=1, max_size=80))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    for decode in (decode_to_drafter, decode_from_drafter):
        try:
            assert decode(data) is not None
        except OutriderError as error:
            assert error.message


@given(cut=st.integers(1, 200))
def test_a_message_cut_short_is_refused(cut: int) -> None:
    whole = encode(OpenReply(2, (1, 2), (5, 6), PARAMS, (2,)))
    if cut < len(whole):
        with pytest.raises(OutriderError):
            decode_to_drafter(whole[:cut])
