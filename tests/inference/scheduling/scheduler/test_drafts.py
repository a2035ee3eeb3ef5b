"""What becomes of drafts, the edge's and the replica's own."""

from __future__ import annotations

from itertools import pairwise

from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from services.inference.scheduler.draft_sources import MAX_TAIL
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import Drafts
from tests.inference.scheduling.driver import PROMPT, Driver, reference
from tests.inference.scheduling.scheduler.requests import OPTIONS, prompts, request


def test_drafts_sent_with_the_prompt_are_verified_in_its_last_chunk() -> None:
    truth = reference(request(), OPTIONS)
    driver = Driver(OPTIONS)
    peer = driver.open(request(drafts=Drafts(0, 0, truth[:2])))
    driver.tick()
    assert (peer.commits[0].accepted, peer.commits[0].ids) == (2, truth[2:3])


def test_drafts_for_a_waiting_session_are_kept() -> None:
    truth = reference(request(), OPTIONS)
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=1))
    driver.open(request(2, prompts(1)[0]))
    driver.tick()
    peer = driver.open(request())
    driver.draft(1, Drafts(1, 0, truth[:3]))
    driver.finish()
    assert (peer.commits[0].epoch, peer.commits[0].accepted) == (1, 3)


def test_the_replica_drafts_for_itself_while_no_edge_draft_is_ahead() -> None:
    options = FakeOptions(min_rows=2, repetition=1.0, fixed_ms=8.0, row_ms=0.1)
    calls = {}
    for region in (False, True):
        driver = Driver(options)
        driver.open(request(region_drafts=region))
        driver.finish()
        calls[region] = len(driver.plans)
    assert calls[True] < 0.6 * calls[False]


def test_a_correct_edge_is_never_echoed_and_a_wrong_one_costs_no_token() -> None:
    truth = reference(request(), OPTIONS)
    driver = Driver(OPTIONS)
    peer = driver.open(request())
    driver.draft(1, Drafts(0, 0, (*truth[:2], (truth[2] + 1) % 64)))
    driver.tick()
    assert (peer.commits[0].accepted, peer.commits[0].ids) == (2, truth[2:3])
    driver.draft(1, Drafts(0, 3, truth[3:6]))
    driver.tick()
    assert peer.commits[1].accepted == 0
    driver.draft(1, Drafts(1, len(peer.reply), truth[len(peer.reply) :][:3]))
    driver.tick()
    assert (peer.commits[2].epoch, peer.commits[2].accepted) == (1, 3)


def test_drafts_stay_within_the_largest_call_beside_replies_and_prompts() -> None:
    """Rows are nearly free and every draft is right: only the limit holds them back. The driver
    checks every call against it."""
    options = FakeOptions(min_rows=2, block_tokens=4, fixed_ms=8.0, row_ms=0.001)
    limits = SchedulerLimits(max_sessions=5, max_batch_tokens=18, row_ms=0.001)
    driver = Driver(options, limits)
    repliers = [request(number, prompt) for number, prompt in enumerate(prompts(4), 1)]
    truths = {one.session: reference(one, options) for one in repliers}
    for one in repliers:
        driver.open(one)
    sizes = []
    for turn in range(200):
        for number, truth in truths.items():
            told = len(driver.peers[number].reply)
            if truth[told:]:
                driver.draft(number, Drafts(turn, told, truth[told : told + 8]))
        if turn == 8:
            driver.open(request(5, tuple(range(3, 60)) * 3))
        if not driver.tick():
            break
        sizes.append(driver.plans[-1].num_tokens)
    driver.finish()
    assert sizes.count(18) > 8, "without the limit they would be larger"
    assert all(tuple(driver.peers[n].reply) == truth for n, truth in truths.items())


def test_drafts_beyond_the_lead_are_cut() -> None:
    truth = reference(request(), OPTIONS)
    driver = Driver(OPTIONS, SchedulerLimits(max_lead=2, max_draft_tokens=16))
    peer = driver.open(request(drafts=Drafts(0, 0, truth[:10])))
    driver.tick()
    assert peer.commits[0].accepted == 2


def test_a_long_prompt_is_taught_to_its_drafter_bit_by_bit_and_after_the_replies() -> None:
    prompt = tuple(3 + n % 50 for n in range(1500))
    options = FakeOptions(block_tokens=4, num_blocks=2048, repetition=1.0)
    driver = Driver(options, SchedulerLimits(prefill_chunk_tokens=100))
    sampling = SamplingParams(max_tokens=1200, ignore_eos=True)
    driver.open(request(1, region_drafts=True, sampling=sampling))
    driver.tick()
    peer = driver.open(request(2, prompt, region_drafts=True))
    untaught = [1500]
    while not peer.commits:
        plan = driver.decide()
        assert plan is not None
        short, long = (part.session for part in plan.parts)
        assert short.sources.num_untaught(short.ids) <= MAX_TAIL
        untaught.append(long.sources.num_untaught(long.ids))
        driver.run(plan)
    assert max(before - after for before, after in pairwise(untaught)) <= 512
    assert untaught[1] > MAX_TAIL >= untaught[-1]
    driver.finish()


def test_unlikely_drafts_are_not_verified_when_rows_are_dear() -> None:
    options = FakeOptions(min_rows=1, fixed_ms=0.5, row_ms=20.0)
    driver = Driver(options, SchedulerLimits(fixed_ms=0.5, row_ms=20.0))
    driver.open(request(drafts=Drafts(0, 0, (9,) * 20)))
    driver.finish()
    rows = [plan.num_tokens for plan in driver.plans if plan.rounds]
    assert rows == [len(PROMPT)] + [1] * 39
