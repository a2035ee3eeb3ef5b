"""Where a session goes, and that the books of all instances always add up."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.errors import EngineError, OverloadedError
from outrider.sampling.params import SamplingParams
from outrider.session_types import FinishReason, Priority, Timings, Usage
from services.inference.instances.placement import InstancePlacement
from services.inference.kv.events import Stored
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import (
    ClassLoad,
    Committed,
    Failed,
    Finished,
    Load,
    Opened,
    OpenRequest,
    total_load,
)

BLOCK = 16
IDLE = Load(0, 0, 0, 100, 100, fixed_ms=8.0, row_ms=1.2, max_sessions=4)
LIMITS = SchedulerLimits(max_sessions=4)


def placement(count: int = 2, load: Load = IDLE) -> InstancePlacement:
    return InstancePlacement(LIMITS, BLOCK, [load] * count)


def request(
    session: int,
    prompt: tuple[int, ...] = (5,) * 40,
    priority: Priority = Priority.MEDIUM,
    max_tokens: int = 100,
) -> OpenRequest:
    sampling = SamplingParams(max_tokens=max_tokens)
    return OpenRequest(session, prompt, sampling, priority)


def opened(session: int, cached: int = 0) -> Opened:
    return Opened(session, 40, cached)


def committed(session: int) -> Committed:
    return Committed(session, 0, 0, 0, (7,), 10.0, 1.2)


def finished(session: int, num_reply: int = 100, service_ms: float = 1000.0) -> Finished:
    usage, timings = Usage(40, 0, num_reply, 0, 0), Timings(0.0, 10.0, 10.0, service_ms)
    return Finished(session, FinishReason.LENGTH, num_reply, usage, timings)


def stored(ids: tuple[int, ...], salt: bytes = b"") -> list[Stored]:
    return [Stored(root_hash(salt), tuple(block_hashes(ids, BLOCK, salt)))]


def test_sessions_spread_over_idle_instances_before_any_tick() -> None:
    it = placement(3)
    assert sorted(it.place(request(n)) for n in range(6)) == [0, 0, 1, 1, 2, 2]
    assert [len(it.sessions_on(instance)) for instance in range(3)] == [2, 2, 2]


def test_single_sessions_take_turns() -> None:
    it = placement(2)
    places = []
    for number in range(4):
        places.append(it.place(request(number)))
        it.take(finished(number))
    assert places == [0, 1, 0, 1]


def test_a_cached_prefix_attracts() -> None:
    prompt = tuple(range(3, 603))
    other_salt = replace(request(1, prompt), cache_salt=b"another")
    for asked, place in ((request(1, prompt), 1), (request(1, prompt[1:]), 0), (other_salt, 0)):
        it = placement()
        it.report(1, IDLE, stored(prompt))
        assert it.place(asked) == place
    it = placement()
    it.report(1, IDLE, stored(prompt))
    resumed = replace(request(1, prompt[:20]), resume=prompt[20:])
    assert it.place(resumed) == 1


def test_a_prefix_does_not_hold_against_company_that_costs_more() -> None:
    it, prompt = placement(), tuple(range(3, 35))
    it.report(0, IDLE, stored(prompt))
    places = [it.place(request(number, prompt)) for number in range(4)]
    assert places[0] == 0
    assert sorted(places) == [0, 0, 1, 1]
    # A reply of one token shares no call: then the prefix is all that counts.
    for number in range(4):
        it.take(opened(number))
        it.take(committed(number))
    brief = request(9, tuple(range(3, 35)), max_tokens=1)
    assert it.place(brief) == 0


def test_a_prompt_ahead_counts_until_it_is_computed() -> None:
    it = placement()
    assert it.place(request(1, (5,) * 2000, max_tokens=1)) == 0
    assert it.place(request(2)) == 1
    assert it.place(request(3)) == 1
    it.report(0, replace(IDLE, queued_prompt_tokens=2000, queued_sessions=1), ())
    it.take(Opened(1, 2000, 0))
    assert it.place(request(4)) == 1
    it.report(0, replace(IDLE, queued_prompt_tokens=10, running_sessions=1), ())
    assert it.place(request(5)) == 0


def test_what_an_instance_found_cached_counts_no_more() -> None:
    it = placement()
    for number in (1, 2):
        it.place(request(number, (5,) * 2000))
    it.take(Opened(2, 2000, 1990))
    for number in (0, 1):
        it.report(number, replace(IDLE, queued_prompt_tokens=3000), ())
    assert it.instance_of(2) == 1
    assert it.place(request(3)) == 1


def test_lower_classes_are_no_queue_for_a_higher_one() -> None:
    def place(priority: Priority) -> int:
        it = placement()
        for number in range(4):  # on 0: long LOW prompts; on 1: one MEDIUM prompt
            it.place(request(number, (5,) * 1000, Priority.LOW, max_tokens=1))
        for number in [n for n in range(4) if it.instance_of(n) == 1]:
            it.take(finished(number, 0))
        it.place(request(8, (5,) * 500, Priority.MEDIUM, max_tokens=1))
        assert it.instance_of(8) == 1
        for number in (0, 1):
            it.report(number, replace(IDLE, queued_prompt_tokens=9999), ())
        return it.place(request(9, priority=priority, max_tokens=1))

    assert place(Priority.LOW) == 1
    assert place(Priority.MEDIUM) == 0
    assert place(Priority.HIGH) in (0, 1)


def test_a_full_instance_costs_the_wait_for_a_place() -> None:
    it, prompt = placement(), tuple(range(3, 203))
    it.place(request(90))
    it.take(finished(90, service_ms=60_000.0))
    it.report(0, IDLE, stored(prompt))
    places = [it.place(request(n, prompt, max_tokens=1)) for n in range(5)]
    assert places == [0, 0, 0, 0, 1]


def test_a_session_without_room_goes_to_the_others_once_each() -> None:
    it = placement(3)
    first = it.place(request(1))
    refused = Failed(1, OverloadedError("full"))
    second = it.place_again(refused)
    assert second is not None
    third = it.place_again(refused)
    assert third is not None
    assert {first, second[0], third[0]} == {0, 1, 2}
    assert second[1] == third[1] == request(1)
    assert it.place_again(refused) is None
    it.take(refused)
    assert it.instance_of(1) is None


def test_only_an_untaken_wanted_session_is_tried_again() -> None:
    it = placement()
    for number in (1, 2, 3):
        it.place(request(number))
    assert it.place_again(Failed(1, EngineError("broken"))) is None
    assert it.cancel(2) == it.instance_of(2)
    assert it.place_again(Failed(2, OverloadedError("full"))) is None
    it.take(opened(3))
    assert it.place_again(Failed(3, OverloadedError("full"))) is None
    assert it.place_again(Failed(99, OverloadedError("full"))) is None
    assert it.cancel(99) is None


def test_the_replica_reports_sums_and_the_cost_of_one_call() -> None:
    low, medium = ClassLoad(2, 30), ClassLoad(1, 20)
    busy = Load(
        3,
        2,
        70,
        100,
        10,
        10.0,
        2.0,
        4,
        paused_sessions=1,
        overload_level=3,
        low=low,
        medium=medium,
    )
    assert (
        total_load([replace(busy, service_ms=10.0), replace(busy, service_ms=20.0)]).service_ms
        == 15.0
    )
    assert total_load([busy, busy]).low == ClassLoad(4, 60)
    assert total_load([IDLE, busy]) == Load(
        running_sessions=3,
        queued_sessions=2,
        queued_prompt_tokens=70,
        kv_blocks_total=200,
        kv_blocks_free=110,
        fixed_ms=9.0,
        row_ms=1.6,
        max_sessions=8,
        paused_sessions=1,
        overload_level=0,
        num_instances=2,
        low=low,
        medium=medium,
    )
    assert total_load([busy]) == busy


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["place", "open", "commit", "finish", "refuse", "cancel", "forget"]),
        st.integers(0, 20),
        st.sampled_from(Priority),
    ),
    max_size=60,
)


def take_step(
    it: InstancePlacement, live: set[int], number: int, step: str, target: int, priority: Priority
) -> None:
    if step == "place":
        it.place(request(number, (5,) * (1 + target * 10), priority))
        live.add(number)
    elif step == "open":
        it.take(Opened(target, 1 + target * 10, target))
    elif step == "commit":
        it.take(committed(target))
    elif step == "finish":
        it.take(finished(target, target))
        live.discard(target)
    elif step == "refuse":
        failed = Failed(target, OverloadedError("full"))
        if it.place_again(failed) is None:
            it.take(failed)
            live.discard(target)
    elif step == "cancel":
        assert (it.cancel(target) is not None) == (target in live)
    else:
        it.forget(target)
        live.discard(target)


@given(STEPS, st.integers(1, 4))
def test_the_books_add_up_whatever_happens(
    steps: list[tuple[str, int, Priority]], count: int
) -> None:
    it = placement(count)
    live: set[int] = set()
    for number, (step, target, priority) in enumerate(steps):
        take_step(it, live, number, step, target, priority)
        held = [it.sessions_on(instance) for instance in range(count)]
        assert sorted(chain.from_iterable(held)) == sorted(live)
        assert all(it.instance_of(n) == i for i, ids in enumerate(held) for n in ids)
        _check_counts(it)
    for session in live:
        it.take(finished(session))
    _check_counts(it)
    assert all(status.num_sessions == 0 for status in it._instances)
    # Nothing is remembered of what is gone: new sessions spread as at first.
    assert sorted(it.place(request(1000 + n)) for n in range(count)) == list(range(count))


def _check_counts(it: InstancePlacement) -> None:
    for number, status in enumerate(it._instances):
        assert status.num_sessions == len(it.sessions_on(number))
        lowest = status.ahead(Priority.LOW, 1 << 20)
        replying = (1 << 20) - lowest.num_free_slots
        assert lowest.num_sessions + replying == status.num_sessions
        waits = [status.ahead(priority, 4) for priority in Priority]
        for lower, higher in pairwise(waits):
            assert lower.num_sessions >= higher.num_sessions >= 0
            assert lower.prompt_tokens >= higher.prompt_tokens >= 0
            assert lower.num_free_slots <= higher.num_free_slots
