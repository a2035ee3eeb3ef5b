"""A long random load with everything that can happen, checked after every step, virtual time.

Some minutes of a small replica: chats and documents of all priorities, resumed ones,
drafts right and wrong, cancels, deadlines, preemption by memory, refusals.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from outrider.engines.fake import FakeOptions
from outrider.errors import DeadlineError, OverloadedError
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from outrider.session.types import FinishReason, Priority
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import OpenRequest
from tests.inference.scheduler.driver import Driver, reference

OPTIONS = FakeOptions(
    block_tokens=8, num_blocks=60, max_context_tokens=256, min_rows=2, fixed_ms=9.0, row_ms=1.0
)
LIMITS = SchedulerLimits(
    max_sessions=6,
    max_queue=12,
    max_batch_tokens=96,
    prefill_chunk_tokens=64,
    ageing_s=3.0,
    fixed_ms=9.0,
    row_ms=1.0,
    slo_ttft_medium_ms=3000.0,
)
SAMPLINGS = (
    SamplingParams(max_tokens=30),
    SamplingParams(max_tokens=60, ignore_eos=True),
    SamplingParams(max_tokens=40, temperature=0.9, seed=3, top_p=0.9, ignore_eos=True),
    SamplingParams(max_tokens=20, temperature=0.7, seed=4, repetition_penalty=1.2),
)
SHARED = tuple(3 + number * 7 % 60 for number in range(120))
LASTING_S = (None, None, None, None, 0.01, 0.3, 2.0)
NUM_SESSIONS = 300


class Soak:
    """Random input for a driver; replies of sessions of one kind are known from the first."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.driver = Driver(OPTIONS, LIMITS, is_thorough=True)
        self.texts: dict[tuple[int, int], tuple[int, ...]] = {}
        self.kinds: dict[int, tuple[int, int]] = {}
        self.seen: Counter[str] = Counter()

    def open(self, number: int) -> None:
        rng, now = self.rng, self.driver.now
        kind = (rng.choice([5, 23, 24, 70, 119]) + rng.randrange(2), rng.randrange(len(SAMPLINGS)))
        request = OpenRequest(0, SHARED[: kind[0]], SAMPLINGS[kind[1]])
        text = self.texts.setdefault(kind, reference(request, OPTIONS))
        lasting_s = rng.choice(LASTING_S)
        resume = text[: rng.choice([0, 0, 0, len(text) // 2])]
        request = OpenRequest(
            session_id=number,
            prompt=request.prompt,
            sampling=request.sampling,
            priority=rng.choice(list(Priority)),
            deadline=None if lasting_s is None else now + lasting_s,
            resume=resume,
            drafts=Draft(0, len(resume), text[len(resume) :][:3]),
            region_drafts=rng.random() < 0.7,
            cache_salt=rng.choice([b"", b"", b"other"]),
        )
        self.kinds[number] = kind
        try:
            self.driver.open(request)
        except (OverloadedError, DeadlineError) as error:
            self.seen[type(error).__name__] += 1
            del self.kinds[number]

    def disturb(self) -> None:
        peers = self.driver.peers
        live = [number for number in self.kinds if peers[number].finished is None]
        if not live:
            return
        number = self.rng.choice(live)
        if self.rng.random() < 0.05:
            self.driver.cancel(number)
            return
        reply, text = len(peers[number].reply), self.texts[self.kinds[number]]
        base = max(0, reply + self.rng.randrange(-2, 3))
        ids = text[base : base + self.rng.randrange(6)]
        wrong = (self.rng.randrange(64),) if self.rng.random() < 0.3 else ()
        self.driver.draft(number, Draft(self.rng.randrange(4), base, (*ids, *wrong)))

    def watch(self) -> None:
        load = self.driver.scheduler.load()
        self.seen[f"level {load.overload_level}"] += 1
        self.seen["paused"] += load.paused_sessions > 0

    def run(self) -> None:
        """Invariants are the driver's, after every step."""
        number = 0
        while number < NUM_SESSIONS:
            busy = self.rng.random() < (0.97 if number // 50 % 2 else 0.15)
            if busy:
                number += 1
                self.open(number)
            if self.rng.random() < 0.5:
                self.disturb()
            if not self.driver.tick():
                self.driver.now += 0.1
            self.watch()
        self.driver.finish(max_ticks=20_000)


EXPECTED = (
    *("STOP", "LENGTH", "CANCELLED", "DEADLINE", "DeadlineError", "OverloadedError"),
    *("paused", "preempted", "level 0", "level 1", "level 2"),
)
"""What has to happen at least once."""


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_whatever_happens_nothing_leaks_nobody_starves_and_every_text_is_exact(seed: int) -> None:
    soak = Soak(seed)
    soak.run()
    check_ends(soak)
    soak.seen["preempted"] = num_preempted(soak.driver)
    assert all(soak.seen[what] > 0 for what in EXPECTED), soak.seen


def check_ends(soak: Soak) -> None:
    """Every session ended in time with the text that it must have; counts how."""
    for number, kind in soak.kinds.items():
        peer, text = soak.driver.peers[number], soak.texts[kind]
        assert peer.finished is not None
        soak.seen[peer.finished.reason.name] += 1
        if peer.finished.reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert tuple(peer.reply) == text
        else:
            assert tuple(peer.reply) == text[: len(peer.reply)]
        assert peer.finished.timings.total_ms < 60_000.0


def num_preempted(driver: Driver) -> int:
    stays = {
        (part.session.session_id, round.sequence)
        for batch in driver.batches
        for part, round in zip(batch.scheduled, batch.slices, strict=True)
    }
    return len(stays) - len({number for number, _ in stays})
