"""Whatever happens around it, a session's text is the reference's, and so are its log
probabilities.

A state machine opens, drafts, cancels, lets time pass and ticks, over small engines and tight
limits; at the end every reply equals, or for ended sessions begins, the reference's.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import DeadlineError, OverloadedError
from outrider.reply_parsing.formats import ReasoningTags
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from outrider.session.types import FinishReason, Priority, TokenLogprobs
from services.inference.reference import ReferenceReply, generate
from services.inference.scheduler.batch import Batch
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import OpenRequest
from tests.inference.letters import constraint_of, new_reply
from tests.inference.scheduler.driver import Driver

SAMPLINGS = (
    SamplingParams(max_tokens=24),
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=200, ignore_eos=True, num_logprobs=0),
    SamplingParams(max_tokens=20, temperature=0.8, seed=7, num_logprobs=3),
    SamplingParams(max_tokens=20, temperature=1.2, seed=8, top_k=9, top_p=0.9, ignore_eos=True),
    SamplingParams(max_tokens=30, repetition_penalty=1.3, frequency_penalty=0.4, ignore_eos=True),
    SamplingParams(max_tokens=40, stop=("x", "Qa"), stop_ids=(9,), temperature=0.3),
    SamplingParams(max_tokens=40, grammar=Grammar(GrammarKind.REGEX, "(begin[A-F]{2,5}end )+Z?")),
    SamplingParams(
        max_tokens=60,
        temperature=0.9,
        seed=9,
        top_p=0.9,
        grammar=Grammar(GrammarKind.LARK, 'start: "k" item+ "."\nitem: "x" start | /[d-h]{1,4} /'),
    ),
    # Prompts that end in "d" begin in reasoning; others begin it by chance.
    SamplingParams(max_tokens=24, max_thinking_tokens=0, reasoning_tags=ReasoningTags("d", "xyz")),
    SamplingParams(
        max_tokens=30,
        temperature=0.8,
        seed=10,
        top_k=9,
        max_thinking_tokens=5,
        reasoning_tags=ReasoningTags("d", "xyz"),
        ignore_eos=True,
    ),
    SamplingParams(
        max_tokens=40,
        temperature=1.1,
        seed=11,
        max_thinking_tokens=7,
        reasoning_tags=ReasoningTags("d", "xy"),
        grammar=Grammar(GrammarKind.REGEX, "(begin[A-F]{2,5}end )+Z?"),
    ),
)
OPTIONS = st.builds(
    FakeOptions,
    block_tokens=st.sampled_from([4, 8]),
    num_blocks=st.integers(14, 30),
    max_context_tokens=st.sampled_from([48, 64]),
    min_rows=st.sampled_from([1, 2, 2, 2, 3]),
    scratch_tokens=st.sampled_from([0, 1, 5]),
    repetition=st.sampled_from([0.5, 0.95]),
    fixed_ms=st.just(8.0),
    row_ms=st.sampled_from([0.2, 1.2]),
)
LIMITS = st.builds(
    SchedulerLimits,
    max_sessions=st.integers(1, 4),
    max_queue=st.integers(0, 6),
    max_batch_tokens=st.sampled_from([21, 27, 200]),
    prefill_chunk_tokens=st.sampled_from([1, 3, 7, 200]),
    max_tick_ms=st.sampled_from([5.0, 40.0]),
    max_draft_tokens=st.sampled_from([0, 1, 6]),
    max_predicted_tokens=st.sampled_from([0, 2, 31]),
    max_lead=st.sampled_from([0, 3, 12]),
    ageing_s=st.sampled_from([0.0, 0.1, 10.0]),
    low_tick_ms=st.sampled_from([1.0, 12.0, 60.0]),
    low_stretch=st.sampled_from([1.0, 1.1, 4.0]),
    max_pause_ms=st.sampled_from([0.0, 30.0, 500.0]),
    slo_ttft_low_ms=st.sampled_from([0.0, 0.0, 200.0]),
    slo_ttft_medium_ms=st.sampled_from([0.0, 300.0]),
)
PROMPTS = st.builds(
    lambda shared, length, tail: ((5, 6, 7, 8) * 8 if shared else (9, 4) * 16)[:length] + tail,
    st.booleans(),
    st.integers(0, 30),
    st.lists(st.integers(3, 6), min_size=1, max_size=3).map(tuple),
)


TERMS = st.fixed_dictionaries(
    {
        "priority": st.sampled_from(Priority),
        "edge_drafts": st.booleans(),
        "region_drafts": st.booleans(),
        "cache_salt": st.sampled_from([b"", b"", b"other"]),
    }
)


@lru_cache(maxsize=4096)
def truth(prompt: tuple[int, ...], sampling: int, options: FakeOptions) -> ReferenceReply:
    params = SAMPLINGS[sampling]
    constraint = constraint_of(params, prompt)
    return generate(FakeEngine(options), prompt, params, new_reply, constraint=constraint)


def edited(reply: tuple[int, ...], edits: list[tuple[int, str]]) -> tuple[int, ...]:
    """A prediction: the reply with some tokens replaced, inserted and left out."""
    ids = list(reply)
    for at, edit in edits:
        place = at % max(1, len(ids))
        ids[place : place + (edit != "insert")] = [] if edit == "leave out" else [at % 64]
    return tuple(ids)


PREDICTIONS = st.one_of(
    st.none(),
    st.lists(
        st.tuples(st.integers(0, 999), st.sampled_from(["replace", "insert", "leave out"])),
        max_size=4,
    ),
)


class Exactness(RuleBasedStateMachine):
    @initialize(options=OPTIONS, limits=LIMITS)
    def start(self, options: FakeOptions, limits: SchedulerLimits) -> None:
        self.driver = Driver(options, limits, is_thorough=True)
        self.options = options
        self.requests: dict[int, OpenRequest] = {}
        self.truths: dict[int, tuple[int, ...]] = {}
        self.logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        self.epochs: dict[int, int] = {}
        self.batch: Batch | None = None

    def live(self, pick: int) -> int | None:
        peers = self.driver.peers
        alive = [number for number in peers if peers[number].finished is None]
        return alive[pick % len(alive)] if alive else None

    @rule(
        prompt=PROMPTS,
        sampling=st.integers(0, len(SAMPLINGS) - 1),
        lasting_s=st.sampled_from([None, None, None, 0.05, 0.5]),
        resumed=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
        edits=PREDICTIONS,
        terms=TERMS,
    )
    def open(
        self,
        prompt: tuple[int, ...],
        sampling: int,
        lasting_s: float | None,
        resumed: float,
        edits: list[tuple[int, str]] | None,
        terms: dict[str, Any],
    ) -> None:
        known = truth(prompt, sampling, self.options)
        reply = known.ids
        resume = reply[: int(len(reply) * resumed)]
        request = OpenRequest(
            session_id=len(self.requests) + 1,
            prompt=prompt,
            sampling=SAMPLINGS[sampling],
            deadline=None if lasting_s is None else self.driver.now + lasting_s,
            resume=resume,
            drafts=Draft(0, len(resume), reply[len(resume) : len(resume) + 3]),
            prediction=() if edits is None else edited(reply, edits),
            **terms,
        )
        self.requests[request.session_id] = request
        self.truths[request.session_id] = reply
        self.logprobs[request.session_id] = known.logprobs[len(resume) :]
        self.epochs[request.session_id] = 0
        self.ask(request)

    def ask(self, request: OpenRequest) -> None:
        try:
            self.driver.open(request)
        except OverloadedError as error:
            assert error.retry_delay_ms > 0
            queued = self.driver.scheduler.load().queued_sessions
            slo_ms = self.driver.limits.slo_ttft_ms(request.priority)
            assert queued >= self.driver.limits.max_queue or slo_ms
        except DeadlineError:
            assert request.deadline is not None

    @rule(
        pick=st.integers(0, 9),
        epoch_step=st.sampled_from([-1, 0, 0, 1, 1]),
        offset=st.integers(-4, 4),
        num_right=st.integers(0, 6),
        garbage=st.lists(st.integers(0, 63), max_size=5),
    )
    def draft(
        self, pick: int, epoch_step: int, offset: int, num_right: int, garbage: list[int]
    ) -> None:
        number = self.live(pick)
        if number is None:
            return
        self.epochs[number] = max(0, self.epochs[number] + epoch_step)
        base = max(0, len(self.driver.peers[number].reply) + offset)
        ids = self.truths[number][base : base + num_right] + tuple(garbage)
        self.driver.draft(number, Draft(self.epochs[number], base, ids))

    @rule(pick=st.integers(0, 9), sure=st.integers(0, 3))
    def cancel(self, pick: int, sure: int) -> None:
        number = self.live(pick)
        if number is not None and sure == 0:
            self.driver.cancel(number)
            assert self.driver.peers[number].finished is not None

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1]))
    def pass_time(self, seconds: float) -> None:
        self.driver.now += seconds
        self.driver.take(self.driver.scheduler.expire(self.driver.now))

    @precondition(lambda self: self.batch is None)
    @rule()
    def schedule(self) -> None:
        expected = self.driver.scheduler.has_work
        self.batch = self.driver.schedule()
        assert (self.batch is not None) == expected

    @precondition(lambda self: self.batch is not None)
    @rule()
    def run(self) -> None:
        assert self.batch is not None
        self.driver.run(self.batch)
        self.batch = None

    @precondition(lambda self: self.batch is None)
    @rule(count=st.integers(1, 12))
    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.driver.tick()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        if self.batch is not None:
            self.driver.run(self.batch)
        self.driver.finish()
        for number, peer in self.driver.peers.items():
            reply = tuple(peer.reply)
            assert peer.finished is not None and peer.opened is not None
            if peer.finished.reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert reply == self.truths[number]
            else:
                assert reply == self.truths[number][: len(reply)]
            told = tuple(at for commit in peer.commits for at in commit.logprobs)
            assert told == self.logprobs[number][: len(told)]
            if self.requests[number].sampling.num_logprobs >= 0:
                assert len(told) == len(reply) - len(self.requests[number].resume)
            usage = peer.finished.usage
            num_predicted = usage.accepted_prediction_tokens + usage.rejected_prediction_tokens
            assert num_predicted <= usage.draft_tokens
            if not self.requests[number].prediction:
                assert num_predicted == 0
            assert usage.prompt_tokens == len(self.requests[number].prompt)
            assert 0 <= usage.cached_tokens <= usage.prompt_tokens
            assert usage.accepted_tokens <= usage.draft_tokens
            timings = dataclasses.astuple(peer.finished.timings)
            assert all(value >= 0.0 for value in timings)


Exactness.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestExactness = Exactness.TestCase
