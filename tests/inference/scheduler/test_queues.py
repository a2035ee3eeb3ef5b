"""Who goes first, who waits, who is turned away: priorities, memory, deadlines, overload."""

from __future__ import annotations

import pytest

from outrider.codec.block_hashes import block_hashes
from outrider.engines.fake import FakeOptions
from outrider.errors import (
    DeadlineError,
    DuplicateSessionError,
    EmptyPromptError,
    InvalidRequestError,
    InvalidSamplingError,
    OutriderError,
    OverloadedError,
    PromptTooLongError,
)
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from outrider.session.types import FinishReason, Priority
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import OpenRequest
from tests.inference.scheduler.driver import PROMPT, Driver, reference

LONG = SamplingParams(max_tokens=40, ignore_eos=True)
OPTIONS = FakeOptions(min_rows=2, block_tokens=4, fixed_ms=8.0, row_ms=1.0)
LOW, MEDIUM, HIGH = Priority


def request(session: int = 1, prompt: tuple[int, ...] = PROMPT, **changes: object) -> OpenRequest:
    return OpenRequest(session, prompt, **({"sampling": LONG} | changes))  # type: ignore[arg-type]


def order_of_first_tokens(driver: Driver) -> list[int]:
    driver.finish()
    starts = {
        number: peer.finished.timings.ttft_ms + peer.finished.timings.queue_ms * 1e-9
        for number, peer in driver.peers.items()
        if peer.finished is not None
    }
    return sorted(starts, key=lambda number: starts[number])


def test_high_goes_first_and_equals_in_order_of_arrival() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=1))
    for number, priority in enumerate([LOW, MEDIUM, HIGH, LOW, MEDIUM, HIGH]):
        driver.open(request(number, priority=priority))
    assert order_of_first_tokens(driver) == [2, 5, 1, 4, 0, 3]


def test_waiting_long_enough_outweighs_priority() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=1, ageing_s=5.0))
    driver.open(request(1, priority=HIGH))
    driver.tick()
    old = driver.open(request(2, priority=LOW))
    driver.now += 10.5
    new = driver.open(request(3, priority=HIGH))
    driver.finish()
    assert old.finished is not None and new.finished is not None
    assert old.finished.timings.total_ms - 10_500.0 < new.finished.timings.ttft_ms


def test_equals_do_not_push_each_other_out() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=1))
    first = driver.open(request(1))
    driver.tick()
    second = driver.open(request(2, (9, 9, 9)))
    while first.finished is None:
        driver.tick()
        assert first.finished is not None or not second.commits
    driver.finish()


@pytest.mark.parametrize("scratch_tokens", [0, 3])
def test_a_pool_that_is_too_small_for_all_serves_all(scratch_tokens: int) -> None:
    options = FakeOptions(min_rows=2, block_tokens=4, num_blocks=20, scratch_tokens=scratch_tokens)
    driver = Driver(options)
    requests = [
        request(number, (3 + number, *PROMPT[:9]), priority=Priority(1 + number % 3))
        for number in range(8)
    ]
    for each in requests:
        driver.open(each)
    driver.finish()
    assert sum(len(batch.opened) for batch in driver.batches) > len(requests)
    for each in requests:
        assert tuple(driver.peers[each.session_id].reply) == reference(each, options)


def test_the_last_gives_up_its_memory_first() -> None:
    driver = Driver(FakeOptions(min_rows=2, block_tokens=4, num_blocks=20))
    for number in range(3):
        driver.open(request(number, (3 + number, *PROMPT[:9])))
    while not driver.peers[2].reply:
        driver.tick()
    while not any(driver.scheduler.is_waiting(number) for number in range(3)):
        driver.tick()
    assert driver.scheduler.is_waiting(2)
    driver.finish()


def test_a_full_queue_says_when_to_come_back() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=2, max_queue=1))
    for number in range(3):
        driver.open(request(number))
    with pytest.raises(OverloadedError, match="come back later") as refused:
        driver.open(request(9))
    assert 1 <= refused.value.retry_delay_ms <= 30_000
    driver.finish()
    driver.open(request(9))
    driver.finish()


def test_retry_delay_grows_with_what_waits() -> None:
    delays = []
    for length in (10, 300):
        driver = Driver(OPTIONS, SchedulerLimits(max_sessions=1, max_queue=1))
        for number in range(2):
            driver.open(request(number, (7,) * length))
        with pytest.raises(OverloadedError) as refused:
            driver.open(request(9))
        delays.append(refused.value.retry_delay_ms)
    assert delays[0] < delays[1]


@pytest.mark.parametrize("num_ticks", [0, 1, 5])
def test_a_deadline_ends_a_session_wherever_it_stands(num_ticks: int) -> None:
    driver = Driver(OPTIONS, SchedulerLimits(prefill_chunk_tokens=8))
    peer = driver.open(request(1, deadline=driver.now + 5.0))
    other = driver.open(request(2, deadline=driver.now + 500.0))
    for _ in range(num_ticks):
        driver.tick()
    driver.now = 105.0
    driver.take(driver.scheduler.expire(driver.now))
    assert peer.finished is not None and peer.finished.reason is FinishReason.DEADLINE
    driver.finish()
    assert tuple(peer.reply) == reference(request(), OPTIONS)[: len(peer.reply)]
    assert other.finished is not None and other.finished.reason is FinishReason.LENGTH


def test_a_deadline_ends_a_session_whose_call_is_under_way() -> None:
    driver = Driver(OPTIONS)
    peer = driver.open(request(1, deadline=driver.now + 5.0))
    while not peer.reply:
        driver.tick()
    batch = driver.schedule()
    assert batch is not None
    driver.now += 5.0
    driver.take(driver.scheduler.expire(driver.now))
    assert peer.finished is not None and peer.finished.reason is FinishReason.DEADLINE
    driver.run(batch)
    driver.finish()


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (request(prompt=()), EmptyPromptError),
        (request(prompt=(3, 64)), InvalidRequestError),
        (request(prompt=(-1,)), InvalidRequestError),
        (request(resume=(64,)), InvalidRequestError),
        (request(drafts=Draft(0, 0, (64,))), InvalidRequestError),
        (request(prediction=(64,)), InvalidRequestError),
        (request(sampling=SamplingParams(max_tokens=2), resume=(7, 8, 9)), InvalidRequestError),
        (request(sampling=SamplingParams(logit_bias={99: 1.0})), InvalidSamplingError),
        (request(prompt=(3,) * 2048), PromptTooLongError),
        (request(deadline=99.0), DeadlineError),
        (request(session=7), DuplicateSessionError),
    ],
)
def test_bad_requests_are_refused_and_leave_nothing(
    bad: OpenRequest, error: type[OutriderError]
) -> None:
    driver = Driver(OPTIONS)
    good = driver.open(request(7))
    with pytest.raises(error):
        driver.scheduler.open(bad, driver.now)
    driver.scheduler.check_invariants()
    driver.finish()
    assert tuple(good.reply) == reference(request(), OPTIONS)


def test_bad_drafts_are_refused() -> None:
    driver = Driver(OPTIONS)
    driver.open(request())
    with pytest.raises(InvalidRequestError, match="a draft has an id outside"):
        driver.scheduler.draft(1, Draft(0, 0, (64,)), driver.now)
    driver.finish()


def test_a_prompt_that_never_fits_the_pool_is_refused_and_the_longest_is_served() -> None:
    options = FakeOptions(min_rows=2, block_tokens=4, num_blocks=10, scratch_tokens=1)
    driver = Driver(options)
    with pytest.raises(PromptTooLongError, match="length is 39 tokens"):
        driver.scheduler.open(request(prompt=(3,) * 39), driver.now)
    peer = driver.open(request(prompt=(3,) * 38))
    driver.finish()
    assert len(peer.reply) == 1
    assert peer.finished is not None and peer.finished.reason is FinishReason.LENGTH


@pytest.mark.parametrize(("num_blocks", "num_running"), [(32, 1), (48, 3)])
def test_blocks_that_a_prompt_has_yet_to_take_are_not_free_for_others(
    num_blocks: int, num_running: int
) -> None:
    options = FakeOptions(min_rows=2, block_tokens=4, num_blocks=num_blocks)
    driver = Driver(options, SchedulerLimits(prefill_chunk_tokens=8))
    requests = [request(number, (3 + number,) * 80) for number in range(2)]
    requests.append(request(2, (5,) * 5))
    for each in requests:
        driver.open(each)
    driver.tick()
    assert driver.scheduler.load().running_sessions == num_running
    driver.finish()
    for each in requests:
        assert tuple(driver.peers[each.session_id].reply) == reference(each, options)


def test_kv_is_taken_from_those_behind_only_if_that_is_enough() -> None:
    driver = Driver(FakeOptions(min_rows=2, block_tokens=4, num_blocks=20, scratch_tokens=0))
    for number, length in enumerate((24, 16, 8)):
        driver.open(request(number, (3 + number,) * length))
    while any(not peer.reply for peer in driver.peers.values()):
        driver.tick()
    queues, pool = driver.scheduler._queues, driver.scheduler._pool
    first, second, last = queues.running
    theirs = [len(pool.blocks(session.sequence)) for session in (second, last)]
    most = (sum(theirs) + pool.num_free) * 4
    assert not queues.grow(second, most + 1)
    assert queues.running == [first, second, last]
    assert queues.grow(second, most)
    assert queues.running == [first, second]
    driver.finish()


def test_those_that_are_too_small_for_a_high_session_go_on_without_it() -> None:
    options = FakeOptions(min_rows=2, block_tokens=4, num_blocks=32, max_context_tokens=100)
    driver = Driver(options)
    requests = [request(1, (3,) * 60, priority=HIGH)]
    requests += [request(number, (number,) * 6, priority=LOW) for number in (4, 5)]
    for each in requests:
        driver.open(each)
    while any(not peer.reply for peer in driver.peers.values()):
        driver.tick()
    requests.append(request(9, (9,) * 70, priority=HIGH))
    high = driver.open(requests[-1])
    before = [len(peer.reply) for peer in driver.peers.values()]
    for _ in range(4):
        driver.tick()
    assert not high.reply
    assert [len(peer.reply) for peer in driver.peers.values()] == [
        *(count + 4 for count in before[:-1]),
        0,
    ]
    driver.finish()
    for each in requests:
        assert tuple(driver.peers[each.session_id].reply) == reference(each, options)


PINNED = tuple(n % 20 + 3 for n in range(40))
"""Ten blocks."""
STATIC = b"static"


def on_a_pinned_prefix() -> Driver:
    """Three LOW sessions of three groups that go on from one prefix, with little of their own."""
    driver = Driver(FakeOptions(min_rows=2, block_tokens=4, num_blocks=32, scratch_tokens=0))
    one_token = SamplingParams(max_tokens=1)
    driver.open(request(9, (*PINNED, 5, 6), cache_salt=STATIC, sampling=one_token))
    driver.finish()
    driver.scheduler.hold_prefix([*block_hashes(PINNED, 4, STATIC)][::-1])
    for number in (1, 2, 3):
        prompt = (*PINNED, 30 + number, 7)
        salts = {"cache_salt": b"%d" % number, "static_salts": (STATIC,)}
        driver.open(request(number, prompt, priority=LOW, **salts))
    while any(not driver.peers[number].reply for number in (1, 2, 3)):
        driver.tick()
    pool, running = driver.scheduler._pool, driver.scheduler._queues.running
    pinned = {tuple(pool.blocks(session.sequence)[:10].tolist()) for session in running}
    assert len(running) == 3 and len(pinned) == 1
    return driver


def test_nobody_gives_up_its_kv_for_a_new_session_that_what_is_pinned_leaves_no_room() -> None:
    driver = on_a_pinned_prefix()
    queues = driver.scheduler._queues
    low = list(queues.running)
    driver.open(request(4, (9,) * (23 * 4), priority=HIGH))  # of the pool, 22 blocks are not pinned
    for _ in range(4):
        driver.tick()
    assert queues.running == low
    closed = {sequence for batch in driver.batches for sequence in batch.closed}
    assert closed.isdisjoint(session.sequence for session in low)


def test_nobody_gives_up_its_kv_to_one_that_grows_beyond_what_is_not_pinned() -> None:
    driver = on_a_pinned_prefix()
    queues, pool = driver.scheduler._queues, driver.scheduler._pool
    first, *behind = queues.running
    theirs = sum(len(pool.blocks(session.sequence)) - 10 for session in behind)
    most = (len(pool.blocks(first.sequence)) + pool.num_free + theirs) * 4
    assert not queues.grow(first, most + 1)
    assert queues.running == [first, *behind]
    assert queues.grow(first, most)
    assert queues.running == [first]
