"""The drafter: right KV whatever happens when, right drafts of a right model, bounded memory."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import ConfigError
from outrider.sampling.params import SamplingParams
from services.edge.drafter.drafter import Drafter
from services.edge.drafter.protocol import CommitTokens, DraftSource
from services.edge.drafter.settings import DrafterLimits
from tests.edge.drafter.driving import OPTIONS, Bench, believing, reply_of

GREEDY = SamplingParams(max_tokens=64)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=64)
PENALIZED = SamplingParams(temperature=0.7, seed=3, repetition_penalty=1.3, max_tokens=64)
CREDULOUS = believing(1.0, 1.0)
STATIC = (1, 2, 3, 4, 5, 6, 7, 1, 2)
PROMPT = (5, 9, 3, 17, 30, 2, 11)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALIZED])
def test_the_target_itself_drafts_its_own_reply(params: SamplingParams) -> None:
    bench = Bench(calibration=CREDULOUS)
    bench.open(1, PROMPT, params)
    bench.settle()
    update = bench.updates[1]
    assert update.base == 0 and len(update.ids) == 32
    assert list(update.ids) == reply_of(OPTIONS, PROMPT, params)[:32]
    assert all(a >= b for a, b in zip(update.survival, update.survival[1:], strict=False))


def test_a_right_chain_is_never_computed_again() -> None:
    bench = Bench(limits=DrafterLimits(cheap_rows=0, min_branch=1.0), calibration=CREDULOUS)
    reply = reply_of(OPTIONS, PROMPT, GREEDY)
    bench.open(1, PROMPT, GREEDY)
    bench.settle()
    for at in range(0, 24, 3):
        bench.commit(1, reply[at : at + 3])
        bench.settle()
    assert bench.drafter.counters.num_rows <= len(PROMPT) + 32 + 24
    counters = bench.drafter.counters
    assert sum(counters.accepted) == 24 and sum(counters.drafted) == 32 + 24


def test_a_divergence_keeps_what_came_before_it() -> None:
    bench = Bench(calibration=CREDULOUS)
    reply = reply_of(OPTIONS, PROMPT, GREEDY)
    bench.open(1, PROMPT, GREEDY)
    bench.settle()
    before = bench.drafter.counters.num_rows
    bench.commit(1, [*reply[:5], (reply[5] + 1) % 32])
    call = bench.turn()
    assert call is not None
    assert call.scheduled[0].slice.past == len(PROMPT) + 5
    assert bench.drafter.counters.num_rows - before == 1


def test_prompts_are_computed_in_chunks_beside_the_steps_of_others() -> None:
    limits = DrafterLimits(chunk_tokens=8, idle_chunk_tokens=16, catch_up_tokens=4)
    bench = Bench(limits=limits)
    bench.open(1, PROMPT, GREEDY)
    bench.turn()
    bench.open(2, [token % 32 for token in range(50)], GREEDY)
    call = bench.turn()
    while call is not None and any(part.session == 2 for part in call.scheduled):
        assert sum(len(part.slice.tokens) for part in call.scheduled) <= 4 + 16
        if any(part.session == 1 for part in call.scheduled):
            assert all(len(part.slice.tokens) <= 8 for part in call.scheduled if part.session == 2)
        call = bench.turn()
    assert bench.updates[2].ids


def test_many_sessions_share_a_call() -> None:
    bench = Bench(replace(OPTIONS, num_blocks=512), calibration=CREDULOUS)
    for number in range(16):
        bench.open(number, [number, *PROMPT], replace(SAMPLED, seed=number))
    calls = [bench.turn() for _ in range(10)]
    assert max(len(call.scheduled) for call in calls if call) == 16
    bench.settle()
    for number in range(16):
        params = replace(SAMPLED, seed=number)
        assert list(bench.updates[number].ids) == reply_of(OPTIONS, [number, *PROMPT], params)[:32]


def test_where_the_text_repeats_itself_the_model_is_not_asked() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8] * 6
    bench = Bench()
    bench.open(1, prompt, GREEDY, reply=[1, 2, 3, 4])  # its first tokens are behind it
    assert bench.turn() is None
    update = bench.updates[1]
    assert list(update.ids) == [5, 6, 7, 8, 1, 2, 3, 4] * 4
    assert set(update.sources) == {DraftSource.SUFFIX}
    # The text goes another way: the model is asked, and reads what it missed in one go.
    bench.commit(1, [5, 6, 20])
    call = bench.turn()
    assert call is not None and call.scheduled[0].slice.past == 0


def test_a_reply_does_not_begin_with_a_copy_that_the_model_was_not_asked_about() -> None:
    bench = Bench(calibration=CREDULOUS)
    bench.open(1, [1, 2, 3, 4, 5, 6, 7, 8] * 6, GREEDY)
    assert bench.drafter.take_updates(1.0) == []
    assert bench.turn() is not None, "the prompt is read at once"
    bench.settle()
    assert bench.updates[1].sources[0] in (DraftSource.MODEL, DraftSource.BOTH)


def test_each_of_the_first_drafts_is_told_as_it_comes() -> None:
    bench = Bench(replace(OPTIONS, repetition=0.0), calibration=CREDULOUS)
    bench.open(1, PROMPT, GREEDY)
    told = []
    for _ in range(6):
        bench.turn()
        told.append(len(bench.updates[1].ids))
    assert told == [1, 2, 3, 4, 5, 5]


def test_a_reply_begins_with_less_likely_drafts() -> None:
    """There the reader has nothing yet; later ones have to be worth the model's time."""
    unsure = believing(0.4, 0.4)
    bench = Bench(replace(OPTIONS, repetition=0.0), limits=DrafterLimits(), calibration=unsure)
    bench.open(1, PROMPT, GREEDY)
    bench.settle()
    assert len(bench.updates[1].ids) == DrafterLimits().first_tokens
    bench.commit(1, bench.updates[1].ids)
    bench.settle()
    assert len(bench.updates[1].ids) == 1, "0.4 is enough, 0.16 is not"


def test_a_second_draft_is_drafted_on_and_promoted() -> None:
    unsure = believing(0.8, 0.8)
    limits = DrafterLimits(max_lead=6, min_survival=0.01, min_branch=0.05)
    bench = Bench(replace(OPTIONS, repetition=0.0), limits=limits, calibration=unsure)
    bench.open(1, PROMPT, GREEDY)
    bench.settle()
    session = bench.drafter._sessions[1]
    branch = session.alternative
    assert branch is not None and len(branch.chain) == 5
    chain, at = [entry.token for entry in session.main.chain], branch.begin - session.main.begin
    seconds = [entry.token for entry in branch.chain]
    bench.commit(1, [*chain[:at], seconds[0]])
    assert bench.drafter.counters.num_promoted == 1
    assert [entry.token for entry in session.main.chain] == seconds[1:]
    num_rows = bench.drafter.counters.num_rows
    call = bench.turn()
    assert call is not None
    assert bench.drafter.counters.num_rows - num_rows == len(call.scheduled)
    update = bench.updates[1]
    assert list(update.ids[:4]) == seconds[1:] and update.base == at + 1


def test_an_alternative_is_computed_beside_its_chain() -> None:
    """So drafts behind a correction are there when it comes, and the chain did not wait."""
    limits = DrafterLimits(max_lead=12, min_survival=0.001, cheap_rows=4)
    bench = Bench(replace(OPTIONS, repetition=0.0), limits=limits, calibration=believing(0.8, 0.8))
    bench.open(1, PROMPT, GREEDY)
    bench.turn()
    calls = [call for _ in range(6) if (call := bench.turn()) is not None]
    beside = [call for call in calls if len(call.scheduled) == 2]
    assert len(beside) >= 4, "every call but the first ones has a row of each"
    assert all(len(part.slice.tokens) == 1 for call in beside for part in call.scheduled)
    session = bench.drafter._sessions[1]
    assert len(session.main.chain) == 7, "a draft per call all the same"
    branch = session.alternative
    assert branch is not None and len(branch.chain) >= 3
    chain, at = [entry.token for entry in session.main.chain], branch.begin - session.main.begin
    seconds = [entry.token for entry in branch.chain]
    bench.commit(1, [*chain[:at], seconds[0]])
    assert bench.drafter.counters.num_promoted == 1
    update = bench.drafter.take_updates(bench.now)[0]
    assert list(update.ids) == seconds[1:], "told at once, before any further call"


def test_alternatives_have_the_rows_that_chains_leave() -> None:
    limits = DrafterLimits(max_lead=20, min_survival=0.001, cheap_rows=4)
    options = replace(OPTIONS, repetition=0.0, num_blocks=512)
    bench = Bench(options, limits=limits, calibration=believing(0.8, 0.8))
    for number in range(6):
        bench.open(number, [number, *PROMPT], GREEDY)
    calls = [call for _ in range(5) if (call := bench.turn()) is not None]
    assert all(len(call.scheduled) == 6 for call in calls), "six chains, and nobody beside them"
    for number in range(3):
        bench.close(number)
    for _ in range(4):
        call = bench.turn()
        assert call is not None
        assert len(call.scheduled) == 4 and len({part.session for part in call.scheduled}) == 3


def test_without_blocks_a_session_goes_on_with_what_the_text_repeats() -> None:
    bench = Bench(replace(OPTIONS, num_blocks=4))
    bench.open(1, [1, 2, 3, 4] * 8, GREEDY)
    bench.open(2, list(range(30)), GREEDY)
    bench.commit(1, [9])
    bench.settle()
    assert bench.drafter.num_modelled < 2
    bench.commit(1, [1, 2, 3, 4, 1, 2, 3, 4])
    bench.settle()
    assert bench.updates[1].ids[:4] == (1, 2, 3, 4)
    bench.close(1)
    bench.close(2)
    assert bench.drafter.num_free_blocks == 4


def test_idle_sessions_make_room_and_come_back() -> None:
    bench = Bench(replace(OPTIONS, num_blocks=14), limits=DrafterLimits(max_lead=4))
    bench.open(1, PROMPT + PROMPT[::-1] + PROMPT, GREEDY)
    bench.settle()
    bench.now += 10.0
    bench.open(2, PROMPT[::-1] + PROMPT + PROMPT, GREEDY)
    bench.settle()
    assert bench.drafter.counters.num_evicted == 1
    assert bench.updates[2].ids
    bench.now += 10.0
    bench.commit(1, [4])
    bench.settle()
    assert bench.drafter.num_modelled == 2
    assert bench.drafter.counters.num_evicted == 2


def test_too_many_sessions_are_refused() -> None:
    bench = Bench(limits=DrafterLimits(max_sessions=1))
    bench.open(1, PROMPT, GREEDY)
    bench.open(2, PROMPT, GREEDY)
    bench.settle()
    assert set(bench.updates) == {1}
    assert bench.drafter.counters.num_refused == 1
    bench.drafter.commit(CommitTokens(2, (1,)), bench.now)
    bench.drafter.close(2)


def test_a_reply_that_ended_gets_no_more_drafts() -> None:
    bench = Bench(calibration=CREDULOUS)
    bench.open(1, PROMPT, replace(GREEDY, max_tokens=5))
    bench.settle()
    assert len(bench.updates[1].ids) == 5


def test_a_paused_model_drafts_first_tokens_and_what_the_text_repeats() -> None:
    bench = Bench(limits=DrafterLimits(first_tokens=4), calibration=CREDULOUS)
    bench.is_paused = True
    reply = reply_of(OPTIONS, PROMPT, GREEDY)
    bench.open(1, PROMPT, GREEDY)
    bench.settle()
    ids = bench.updates[1].ids
    assert list(ids[:4]) == reply[:4] and len(ids) < 32
    bench.commit(1, reply[:6])
    assert bench.turn() is None
    bench.open(2, (1, 2, 3, 4) * 4, GREEDY, reply=(1, 2, 3, 4, 1))
    assert bench.turn() is None
    assert bench.updates[2].ids[:3] == (2, 3, 4)
    bench.is_paused = False
    bench.settle()
    ids = bench.updates[1].ids
    assert bench.updates[1].base == 6 and list(ids) == reply[6 : 6 + len(ids)]
    assert len(ids) == 32


def test_a_pause_ends_alternatives() -> None:
    bench = Bench(limits=DrafterLimits(min_branch=0.01, min_cheap_branch=0.01))
    bench.open(1, PROMPT, GREEDY)
    bench.settle()
    num_free = bench.drafter.num_free_blocks
    assert bench.drafter.counters.num_branches > 0
    bench.is_paused = True
    assert bench.turn() is None
    assert bench.drafter.num_free_blocks > num_free


def test_no_more_drafts_than_are_wanted() -> None:
    bench = Bench(calibration=CREDULOUS)
    reply = reply_of(OPTIONS, PROMPT, GREEDY)
    bench.open(1, PROMPT, GREEDY)
    bench.commit(1, reply[:2], lead=0)
    assert bench.settle() == 0 and not bench.updates
    bench.commit(1, reply[2:3], lead=3)
    bench.settle()
    assert list(bench.updates[1].ids) == reply[3:6]


def test_an_engine_that_needs_two_rows_is_refused() -> None:
    engine = FakeEngine(replace(OPTIONS, min_rows=2))
    with pytest.raises(ConfigError, match="one token"):
        Drafter(engine.info, DrafterLimits(), believing(0.0, 1.0))


class Chaos:
    """Opens, commits and closes by chance; what is final is what `says` would say."""

    def __init__(self, bench: Bench, says: FakeOptions, seed: int) -> None:
        self.replies: dict[int, list[int]] = {}
        self.chance = random.Random(seed)
        self._bench, self._says = bench, says
        self._last_number = 0
        self._over: list[list[int]] = []

    def event(self) -> None:
        if len(self.replies) < 3 and self.chance.random() < 0.4:
            self._open()
        elif self.replies:
            number = self.chance.choice(list(self.replies))
            reply, count = self.replies[number], self.chance.randrange(1, 6)
            if self.chance.random() < 0.1 or len(reply) <= count:
                self._over.append(self._bench.texts[number])
                self._bench.close(number)
                del self.replies[number]
            else:
                self._bench.commit(number, reply[:count])
                del reply[:count]

    def perhaps(self) -> None:
        """While a call is under way."""
        if self.chance.random() < 0.5:
            self.event()

    def _open(self) -> None:
        chance, number = self.chance, self._last_number + 1
        self._last_number = number
        params = chance.choice([GREEDY, SAMPLED])
        params = replace(params, seed=chance.randrange(9), max_tokens=24)
        prompt = [chance.randrange(8) for _ in range(chance.randrange(1, 20))]
        if self._over and chance.random() < 0.5:  # a chat comes back
            prompt = [*self._over.pop(), *prompt[:3]]
        reply, begun = reply_of(self._says, prompt, params), chance.randrange(3)
        if chance.random() < 0.5:  # as the static prefix has it, for a while
            prompt[:0] = STATIC[: chance.randrange(len(STATIC) + 1)]
            reply = reply_of(self._says, prompt, params)
        group = chance.choice([b"", b"a", b"a"])
        self._bench.open(number, prompt, params, reply[:begun], group, (0,))
        self.replies[number] = reply[begun:]


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32), target=st.integers(0, 1), num_blocks=st.sampled_from([10, 24, 96])
)
def test_kv_is_right_whatever_happens_when(seed: int, target: int, num_blocks: int) -> None:
    """Commits, opens and closes at any moment, in flight or not: every row that any call gives
    equals that of an engine that never saw anything but this text; no block is lost."""
    limits = DrafterLimits(
        max_sessions=4,
        max_lead=2 + 6 * (seed % 2),
        min_survival=0.05,
        catch_up_tokens=2 + 14 * (seed // 2 % 2),
        chunk_tokens=5,
        idle_chunk_tokens=9,
        max_kept=2,
        evict_idle_s=0.01,
    )
    options = replace(OPTIONS, num_blocks=num_blocks)
    bench = Bench(options, limits=limits, calibration=believing(0.4, 0.9))
    bench.pin(STATIC)
    num_free = bench.drafter.num_free_blocks
    chaos = Chaos(bench, replace(options, seed=target), seed)
    for _ in range(40):
        chaos.event()
        for _ in range(chaos.chance.randrange(4)):
            bench.turn(chaos.perhaps)
    for number in chaos.replies:
        bench.close(number)
    assert bench.turn() is None
    while bench.drafter.num_kept:
        bench.drafter._pool.free([bench.drafter._kept.pop()])
    assert bench.drafter.num_free_blocks == num_free


def test_a_reply_that_the_draft_model_cannot_read_is_drafted_for_no_longer() -> None:
    """A target of the same tokens with more padding behind them said one of it."""
    bench = Bench(calibration=CREDULOUS)
    bench.open(1, PROMPT, GREEDY)
    bench.settle()
    bench.drafter.commit(CommitTokens(1, (3, OPTIONS.vocabulary_size)), 0.0)
    assert bench.drafter.num_sessions == 0
    assert bench.turn() is None
