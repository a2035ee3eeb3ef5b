"""The drafter of bench.verify computes what its model says, and the table is made of the chats."""

from __future__ import annotations

from contextlib import closing

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.harness import Run
from bench.verify import NOTHING, Chat, Counting, EngineModel, Nothing, report
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.session.types import FinishReason, Usage
from outrider.verify_client import VerifiedReply

OPTIONS = FakeOptions(num_blocks=8)
IDS = st.lists(st.integers(0, OPTIONS.vocabulary_size - 1), min_size=1, max_size=40)


def scores(ids: list[int]) -> list[float]:
    with closing(EngineModel(FakeEngine(OPTIONS))) as fresh:
        return list(np.asarray(fresh(ids).logits[0][-1], np.float64))


@given(IDS, st.lists(st.tuples(st.integers(0, 40), IDS), max_size=4))
def test_what_is_kept_of_earlier_texts_changes_no_score(
    ids: list[int], steps: list[tuple[int, list[int]]]
) -> None:
    with closing(EngineModel(FakeEngine(OPTIONS))) as model:
        for kept, more in [(40, []), *steps]:
            ids = [*ids[:kept], *more][:64] or [1]
            assert list(np.asarray(model(ids).logits[0][-1], np.float64)) == scores(ids)


def test_drafts_are_counted() -> None:
    assert Nothing().draft([1, 2], 8) == []

    class Threes:
        def draft(self, ids: object, max_tokens: int) -> list[int]:
            return [3] * max_tokens

    counting = Counting(Threes())
    assert counting.draft([1], 4) == [3, 3, 3, 3] and counting.draft([1], 2) == [3, 3]
    assert counting.num_drafts == 6


def chat(num_tokens: int, num_commits: int, kept: int, num_drafts: int, seconds: float) -> Chat:
    reply = VerifiedReply(
        ids=tuple(range(num_tokens)),
        text="",
        finish_reason=FinishReason.LENGTH,
        usage=Usage(accepted_edge_tokens=kept),
        num_commits=num_commits,
        num_accepted=kept,
        num_calls=1,
        num_moves=0,
        inexact=False,
    )
    return Chat(reply, num_drafts, 4, seconds, seconds - 0.5, is_right=num_tokens == 44)


def test_the_table_says_what_drafts_brought() -> None:
    run = Run("verify", quick=True, command="")
    chats = {
        (100, NOTHING): [chat(44, 22, 0, 0, 2.5)],
        (100, "lookup"): [chat(44, 11, 11, 44, 1.5), chat(40, 10, 10, 40, 1.5)],
    }
    chats[100, NOTHING] *= 2
    assert report(run, chats) == 1, "one reply is not the reference's"
    (none, lookup) = run.tables[0].rows
    assert none[2:5] == (2, 2.0, 2.0) and none[-1] == "2 of 2"
    assert lookup[2:5] == (2, 4.0, 3.8)
    assert lookup[6] == 25.0 and lookup[7] == 25.0 and lookup[-1] == "1 of 2"
