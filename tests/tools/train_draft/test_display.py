"""Recorded replies replayed: the reader's screen, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from outrider.engines.draft_calibration import DraftCalibration
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.reply import ReplyText
from outrider.speculation.calibration import SourceCalibrations
from outrider.speculation.ngrams import NgramPrior
from services.edge.session.display import DisplayPolicy
from services.edge.session.draft_sources import CopyDrafter
from services.edge.session.events import Commit
from services.edge.session.reply import ReplyTools
from tests.edge.session.simulation.circumstances import Words, word
from tools.train_draft.display import Outcome, outcome_of, policies, report, tables
from tools.train_draft.replay import DisplayReplay, Guessed, GuessRecorder, Speeds
from tools.train_draft.replies import NUM_TOP, Reply

OPTIONS = FakeOptions(
    vocabulary_size=64, block_tokens=16, num_blocks=64, max_context_tokens=512, repetition=0.0
)
STOP = 0
DIGEST = bytes(range(32))
SPEEDS = Speeds(ttft_ms=30.0, region_prompt_ms=1.0, token_ms=15.0)
SURE = DraftCalibration(greedy=((0.95, 0.95),), sampled=((0.95, 0.95),))
PROMPT = [11, 12, 13]


def said_by(engine_seed: int, num_tokens: int) -> list[int]:
    """What a fake model says greedily, without its stop id."""
    options = replace(OPTIONS, seed=engine_seed)
    recorder = GuessRecorder(
        FakeEngine(options),
        SURE,
        NgramPrior([{}, {}, {}]),
        SourceCalibrations(),
        frozenset(),
        SPEEDS,
    )
    guessed = recorder.guesses(reply_of([1] * 60), rtt_s=10.0)
    longest = max((heard.ids for _, heard in guessed.heard), key=len)
    return list(longest[:num_tokens])


def reply_of(ids: list[int]) -> Reply:
    top = np.zeros((len(ids), NUM_TOP), np.int32)
    return Reply(
        number=0,
        turn=0,
        kind="k",
        temperature=0.0,
        seed=1,
        prompt=np.array(PROMPT, np.int32),
        ids=np.array(ids, np.int32),
        top_ids=top,
        top_logprobs=top.astype(np.float16),
    )


def guess(ids: list[int], rtt_s: float, calibration: DraftCalibration = SURE) -> Guessed:
    recorder = GuessRecorder(
        FakeEngine(OPTIONS),
        calibration,
        NgramPrior([{}, {}, {}]),
        SourceCalibrations(),
        frozenset({STOP}),
        SPEEDS,
    )
    return recorder.guesses(reply_of(ids), rtt_s)


@pytest.fixture
def replay() -> Iterator[DisplayReplay]:
    tools = ReplyTools(
        new_reply=lambda params: ReplyText(params, {STOP}, Words()),
        new_drafter=lambda needs: CopyDrafter(512),
        token_bytes=lambda token: word(token).encode(),
        stop_ids=frozenset({STOP}),
    )
    yield DisplayReplay(tools, SourceCalibrations(), DIGEST, SPEEDS)


def test_a_draft_that_is_the_target_shows_words_that_stay(replay: DisplayReplay) -> None:
    ids = said_by(OPTIONS.seed, 20)
    guessed = guess(ids, rtt_s=0.1)
    assert guessed.heard and guessed.heard[0][0] < 0.1
    shown = replay.show(guessed, DisplayPolicy())
    text = "".join(e.text for _, e in shown.events if isinstance(e, Commit))
    assert text == "".join(map(word, ids))
    outcome = outcome_of(shown)
    assert outcome.shown_before_commit and outcome.first_word_right
    assert outcome.erased_chars == 0 < outcome.shown_chars
    assert outcome.first_text_stayed and outcome.first_stability is not None
    assert outcome.staying_word_ms < outcome.plain_word_ms
    assert outcome.plain_word_ms >= 100 + 30 + len(PROMPT)


def test_a_draft_that_boasts_shows_what_is_taken_back(replay: DisplayReplay) -> None:
    ids = [(token % 60) + 3 for token in said_by(OPTIONS.seed + 1, 20)]
    outcome = outcome_of(replay.show(guess(ids, rtt_s=0.1), DisplayPolicy()))
    assert outcome.first_word_right is False and not outcome.first_text_stayed
    assert outcome.erased_chars > 0.5 * outcome.shown_chars > 0
    assert outcome.staying_word_ms == outcome.plain_word_ms


def test_nothing_is_shown_that_is_not_likely(replay: DisplayReplay) -> None:
    unsure = DraftCalibration(greedy=((0.3, 0.3),), sampled=((0.3, 0.3),))
    ids = said_by(OPTIONS.seed, 3)  # too few to learn from that it is better than it says
    outcome = outcome_of(replay.show(guess(ids, 0.1, unsure), DisplayPolicy()))
    assert not outcome.shown_before_commit and outcome.shown_chars == 0
    assert outcome.first_word_right is None and outcome.first_stability is None
    assert outcome.staying_word_ms == outcome.plain_word_ms


def test_a_replay_is_a_function_of_its_reply(replay: DisplayReplay) -> None:
    ids = said_by(OPTIONS.seed, 20)
    first, again = (guess(ids, 0.05) for _ in range(2))
    assert first.heard == again.heard
    assert outcome_of(replay.show(first, DisplayPolicy())) == outcome_of(
        replay.show(again, DisplayPolicy())
    )


def test_the_report_has_every_setting_and_round_trip() -> None:
    right = Outcome(True, True, 0.9, True, 10, 1, 50.0, 150.0)
    wrong = Outcome(True, False, 0.6, False, 10, 5, 150.0, 150.0)
    none = Outcome(False, None, None, False, 0, 0, 150.0, 150.0)
    measured = {
        ("greedy", 100.0, "balanced"): [right, wrong, none, none],
        ("sampled", 50.0, "shy"): [none],
    }
    found = report(measured)
    greedy = found["greedy"]["100"]["balanced"]
    assert greedy["first_word_right"] == 0.5 and greedy["taken_back"] == 0.3
    assert greedy["shown_before_commit"] == 0.5 and greedy["staying_word_ms"] == 125.0
    assert found["sampled"]["50"]["shy"]["taken_back"] is None
    text = tables(found)
    assert "| 100 | balanced | 4 | 0.50 | 0.50 | 0.30 | 5 | 125 | 150 | 0.83 |" in text
    assert "| 50 | shy | 1 | 0.00 | - | - |" in text
    assert {"shy", "balanced", "eager", "threshold 0.5"} <= set(policies())
