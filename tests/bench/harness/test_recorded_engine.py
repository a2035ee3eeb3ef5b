"""The engine that says again what was recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.harness.recorded_engine import RecordedEngine, read_replies, write_replies
from outrider.engines.base import SequenceSlice
from outrider.engines.fake import FakeOptions

PROMPT, REPLY = (1, 2, 3), (40, 42, 44, 46)


def opened(prompt: tuple[int, ...] = PROMPT) -> RecordedEngine:
    options = FakeOptions(vocabulary_size=64, num_blocks=1)
    made = RecordedEngine({PROMPT: REPLY}, list(range(10, 60)), options, 100)
    made.fixed_ms = 0.0
    made.open(1, np.array(prompt, np.int32))
    return made


def rows(made: RecordedEngine, tokens: list[int], past: int, num_rows: int) -> list[int]:
    """The likeliest id of each row."""
    blocks = np.arange(8, dtype=np.int32)
    part = SequenceSlice(1, np.array(tokens, np.int32), past, blocks, num_rows)
    (answer,) = made.step([part])
    assert answer.ids is not None and answer.ids.shape == answer.logits.shape == (num_rows, 4)
    assert (answer.logits.argmax(axis=1) == 0).all()
    return [int(best) for best in answer.ids[:, 0]]


def test_it_says_the_reply_in_calls_of_any_length() -> None:
    made = opened()
    assert rows(made, [1, 2], 0, 0) == []
    assert rows(made, [3], 2, 1) == [40]
    assert rows(made, [40, 42, 44], 3, 3) == [42, 44, 46], "two right drafts"
    assert rows(opened(), [1, 2, 3], 0, 1) == [40]


def test_behind_a_wrong_draft_nothing_is_as_recorded() -> None:
    made = opened()
    rows(made, [1, 2, 3], 0, 1)
    first, *others = rows(made, [40, 50, 44], 3, 3)
    assert first == 42 and not set(others) & set(REPLY)
    assert rows(made, [42], 4, 1) == [44], "the draft is rewritten"
    assert rows(made, [44, 46, 9], 5, 3)[0] == 46, "drafts may lie behind the reply's end"


def test_other_chats_are_answered_too() -> None:
    made = opened((1, 2, 4))
    (first,) = rows(made, [1, 2, 4], 0, 1)
    assert first in range(10, 60)
    made.close_sequence(1)
    made.open(1, np.array(PROMPT, np.int32))
    assert rows(made, [1, 2, 3], 0, 1) == [40]


def test_replies_survive_their_file(tmp_path: Path) -> None:
    replies = {PROMPT: REPLY, (7,): (8, 9)}
    write_replies(tmp_path / "replies.json", replies)
    assert read_replies(tmp_path / "replies.json") == replies
