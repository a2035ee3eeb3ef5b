"""The scheduler over this engine: texts are the reference's, known text and drafts included."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from outrider.errors import InvalidSamplingError
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from outrider.session.types import TokenLogprobs
from services.inference.reference import generate
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import Event, Failed, OpenRequest, SessionCommit
from tests.engines.tensorrt_llm.fake_llm import LLM, make_engine
from tests.inference.letters import new_reply

_LIMITS = SchedulerLimits(prefill_chunk_tokens=24, max_draft_tokens=6)
_GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
_SAMPLED = SamplingParams(temperature=0.8, top_k=8, top_p=0.9, seed=5, max_tokens=40)


def truth(request: OpenRequest) -> tuple[int, ...]:
    engine, _ = make_engine(num_candidates=20)
    return generate(engine, request.prompt, request.sampling, new_reply).ids


class Replica:
    """A scheduler and an engine, ticked by hand."""

    def __init__(self, *, num_candidates: int = 20, **settings: Any) -> None:
        self.engine, self.llm = make_engine(num_candidates=num_candidates, **settings)
        self.scheduler = Scheduler(self.engine.info, _LIMITS, new_reply)
        self.replies: dict[int, list[int]] = {}
        self.chains: dict[int, tuple[int, ...]] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}
        self.accepted = 0
        self.now = 1.0

    def open(self, request: OpenRequest, chain: tuple[int, ...] = ()) -> None:
        """`chain` is what the edge sends at once: guesses from the first token on."""
        self.replies[request.session_id] = []
        self.chains[request.session_id] = chain
        self.take(self.scheduler.open(request, self.now))
        if chain:
            self.scheduler.draft(request.session_id, Draft(0, 0, chain), self.now)

    def tick(self) -> bool:
        batch = self.scheduler.schedule(self.now)
        if batch is None:
            return False
        rows = batch.run(self.engine)
        self.now += 0.01
        self.take(self.scheduler.postprocess(batch, rows, self.now))
        return True

    def finish(self) -> None:
        for _ in range(2000):
            if not self.tick():
                return
        pytest.fail("the sessions do not end")

    def take(self, events: list[Event]) -> None:
        self.scheduler.check_invariants()
        for event in events:
            assert not isinstance(event, Failed), event
            if isinstance(event, SessionCommit):
                session, commit = event.session_id, event.commit
                echoed = self.chains[session][commit.base : commit.base + commit.accepted]
                self.replies[session] += [*echoed, *commit.ids]
                self.accepted += commit.accepted
                self.logprobs.setdefault(session, []).extend(commit.logprobs)


@pytest.mark.parametrize("sampling", [_GREEDY, _SAMPLED], ids=["greedy", "sampled"])
def test_texts_are_the_references_with_right_and_wrong_drafts(sampling: SamplingParams) -> None:
    draw = random.Random(1)
    replica = Replica(logits_bytes=600 * 64 * 4)
    requests = [
        OpenRequest(
            number, tuple(draw.choices(range(3, 20), k=draw.randint(1, 90))), sampling=sampling
        )
        for number in range(8)
    ]
    expected = {request.session_id: truth(request) for request in requests}
    for request in requests:
        chain = list(expected[request.session_id])[:30]
        if request.session_id % 2:
            chain[draw.randrange(len(chain)) :] = draw.choices(range(3, 20), k=9)
        replica.open(request, tuple(chain))
        replica.tick()
    replica.finish()
    for number, ids in expected.items():
        assert tuple(replica.replies[number]) == ids
    assert replica.accepted > 30
    assert replica.llm.most_logits_bytes <= 600 * 64 * 4


@pytest.mark.parametrize("sampling", [_GREEDY, _SAMPLED], ids=["greedy", "sampled"])
def test_a_text_the_runtime_has_seen_costs_hardly_more_requests(sampling: SamplingParams) -> None:
    replica = Replica()
    prompt = tuple(random.Random(2).choices(range(3, 20), k=70))
    expected = truth(OpenRequest(1, prompt, sampling))
    counts = []
    for number in (1, 2, 3):
        before = len(replica.llm.requests)
        replica.open(OpenRequest(number, prompt, sampling), expected[:30])
        replica.finish()
        assert tuple(replica.replies[number]) == expected
        counts.append(len(replica.llm.requests) - before)
    assert replica.engine.num_short_answers > 0
    assert max(counts[1:]) <= len(expected) + replica.engine.num_short_answers + 4


def test_salts_reach_the_runtime() -> None:
    replica = Replica()
    replica.open(OpenRequest(1, (3, 4, 5), _GREEDY, cache_salt=b"\x01tenant"))
    replica.finish()
    assert {request.salt for request in replica.llm.requests} == {b"\x01tenant".hex()}


def test_what_the_candidates_cannot_decide_is_refused_unless_that_is_turned_off() -> None:
    """`tests/engines/test_candidates.py` has every case."""
    open_ended = SamplingParams(temperature=0.8, seed=3, max_tokens=20)
    with pytest.raises(InvalidSamplingError, match=r"set top_k to 1\.\.20"):
        Replica().open(OpenRequest(1, (3, 4), open_ended))
    replica = Replica(truncate_sampling=True)
    replica.open(OpenRequest(1, (3, 4), open_ended))
    replica.finish()
    bounded = SamplingParams(temperature=0.8, seed=3, max_tokens=20, top_k=20)
    assert tuple(replica.replies[1]) == truth(OpenRequest(1, (3, 4), bounded))
    with pytest.raises(InvalidSamplingError, match="penalties"):
        replica.open(OpenRequest(2, (3, 4), SamplingParams(presence_penalty=1.0)))


def test_a_greedy_session_asks_for_one_candidate() -> None:
    replica = Replica()
    replica.open(OpenRequest(1, (3, 4, 5), _GREEDY))
    replica.open(OpenRequest(2, (3, 4, 6), _SAMPLED))
    replica.finish()
    llm: LLM = replica.llm
    wanted = {one.ids[:3]: one.params.prompt_logprobs for one in llm.requests}
    assert wanted == {(3, 4, 5): 1, (3, 4, 6): 8}


@pytest.mark.parametrize("sampling", [_GREEDY, _SAMPLED], ids=["greedy", "sampled"])
def test_log_probabilities_are_the_runtimes_drafts_or_not(sampling: SamplingParams) -> None:
    asked = replace(sampling, num_logprobs=9)
    request = OpenRequest(1, tuple(range(3, 40)), asked)
    engine, _ = make_engine(num_candidates=20)
    whole = generate(engine, request.prompt, asked, new_reply)
    replica = Replica()
    replica.open(request, (*whole.ids[:12], 1))
    replica.finish()
    assert replica.accepted > 6
    assert tuple(replica.logprobs[1]) == whole.logprobs
    for at in whole.logprobs:
        assert len(at.top) == 9
        assert 0 < sum(math.exp(token.logprob) for token in at.top) <= 1 + 1e-6
    if sampling is _GREEDY:
        assert all(at.chosen == at.top[0] for at in whole.logprobs)
    wanted = {one.params.prompt_logprobs for one in replica.llm.requests}
    assert wanted <= {9, None}
    with pytest.raises(InvalidSamplingError, match="set num_logprobs to at most 8"):
        Replica(num_candidates=8).open(replace(request, session_id=2))
