"""What placement remembers between two reports: load it sent, prefixes it expects."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from outrider.errors import NoReplicaError
from outrider.session.types import Priority
from tests.router.placement.fleet import BLOCK, LOAD, MODEL, Town, replica

SYSTEM = [token % 5000 for token in range(600)]


def tail(number: int, count: int = 20) -> list[int]:
    return [10_000 + number] * count


# --- load ---


def test_one_that_never_computed_is_not_passed_over_for_its_guess() -> None:
    """Else those that were asked first would have all prompts for good."""
    known, guess = replace(LOAD, row_ms=0.5), replace(LOAD, row_ms=5.0, is_cost_guessed=True)
    town = Town(
        *(replica(name, load=known) for name in "abc"),
        replica("d", load=guess),
    )
    assert Counter(town.send() for _ in range(20)) == dict.fromkeys("abcd", 5)


def test_a_burst_spreads_before_any_report() -> None:
    town = Town(replica("a"), replica("b", rtt_ms=2.0))
    assert Counter(town.send() for _ in range(20)) == {"a": 10, "b": 10}


def test_a_session_that_ends_leaves_its_room() -> None:
    town = Town(replica("a"), replica("b", rtt_ms=2.0))
    for _ in range(6):
        assert town.send() == "a"
        town.placement.release(town.last)
    town.placement.release(town.last)  # twice is once


def test_a_report_replaces_what_was_sent_a_round_trip_before() -> None:
    town = Town(replica("a", rtt_ms=10.0))
    town.send()
    assert town.num_sessions("a") == 1
    town.now += 0.005
    town.report("a", LOAD)
    assert town.num_sessions("a") == 1, "the report was made before the open came"
    town.now += 0.02
    town.report("a", replace(LOAD, running_sessions=1, queued_prompt_tokens=100))
    assert town.num_sessions("a") == 1
    assert town.decide().wait.queue_ms == 100.0 + 12.0, "counted once"


def test_what_was_sent_drains_with_time() -> None:
    town = Town(replica("a"))
    town.send()
    assert town.decide().wait.queue_ms == pytest.approx(110.0)
    town.now += 0.1
    assert town.decide().wait.queue_ms == pytest.approx(10.0)
    town.now += 1.0
    assert town.decide().wait.queue_ms == 0.0


def test_a_reported_queue_drains_no_further_than_a_report_would_tell() -> None:
    load = replace(LOAD, queued_prompt_tokens=200)
    town = Town(replica("a", load=load, reported_at=100.0), report_ms=50.0)
    assert town.decide().wait.queue_ms == pytest.approx(210.0)
    town.now += 0.03
    assert town.decide().wait.queue_ms == pytest.approx(180.0)
    town.now += 5.0
    assert town.decide().wait.queue_ms == pytest.approx(160.0), "nothing changed, or it had told"


# --- prefixes ---


def test_many_prompts_of_one_beginning_follow_the_first() -> None:
    """50 within a report interval, before any replica could tell of its blocks."""
    town = Town(*(replica(f"r{n}") for n in range(8)), near_ms=5.0, work_weight=0.5, max_queued=64)
    got = Counter(town.send(town.asking(SYSTEM + tail(n, 4))) for n in range(10))
    assert len(got) == 1, got


def test_they_go_elsewhere_once_the_first_is_too_busy() -> None:
    town = Town(*(replica(f"r{n}") for n in range(8)), near_ms=5.0, work_weight=0.5, max_queued=64)
    shared = SYSTEM * 4
    got = Counter(town.send(town.asking(shared + tail(n, 40))) for n in range(50))
    assert 2 <= len(got) <= 6, got


def test_a_prompt_follows_the_one_that_was_computed_while_it_was_typed() -> None:
    """The edge has a LOW session prefill what is typed; the chat itself begins with the same ids
    and comes before the replica's events do."""
    town = Town(replica("a"), replica("b"), replica("c"), work_weight=0.5, near_ms=5.0)
    typed = SYSTEM[:300]
    first = town.send(replace(town.asking(typed), priority=Priority.LOW))
    town.placement.release(town.last)
    town.now += 0.5
    decision = town.decide(town.asking(SYSTEM[:340]))
    assert decision.replica == first
    assert decision.cached_tokens == 300 // BLOCK * BLOCK
    town.now += 60.0
    town.prefixes.sweep(town.now, 0)
    town.prefixes.sweep(town.now + 10.0, 0)
    assert town.decide(town.asking(SYSTEM[:340])).cached_tokens == 0, "it never told of it"
    town.hold(first, typed)
    assert town.decide(town.asking(SYSTEM[:340])).replica == first


def test_tenants_do_not_follow_each_other() -> None:
    town = Town(replica("a"), replica("b"))
    town.hold("b", SYSTEM, b"one")
    assert town.decide(town.asking(SYSTEM, b"one")).replica == "b"
    assert town.decide(town.asking(SYSTEM, b"two")).replica == "a"


def test_block_sizes_may_differ() -> None:
    wide = replace(MODEL, block_tokens=64)
    town = Town(replica("a"), replica("b", model=wide), replica("c", model=wide))
    prompt = town.asking(SYSTEM)
    assert prompt.prompt is not None
    town.prefixes.expect(town.placement.owner("c"), prompt.prompt, 64, town.now)
    decision = town.decide(prompt)
    assert (decision.replica, decision.cached_tokens) == ("c", 600 // 64 * 64)
    town.hold("a", SYSTEM)
    assert town.decide(prompt).replica == "a"


def test_a_replica_that_names_no_block_size_is_taken_to_hold_nothing() -> None:
    town = Town(replica("a", model=replace(MODEL, block_tokens=0)))
    assert town.send(town.asking(SYSTEM)) == "a"
    assert town.decide(town.asking(SYSTEM)).cached_tokens == 0


# --- the fleet changes ---


def test_what_a_replica_held_goes_with_it() -> None:
    town = Town(replica("a"), replica("b"))
    town.hold("a", SYSTEM)
    row = town.placement.owner("a")
    town.send()
    del town.table.rows["a"]
    town.table.rows["new"] = replica("new")
    town.table.changed.update({"a", "new"})
    assert town.placement.owner("new") == row, "its number is given to the next one"
    assert town.decide(town.asking(SYSTEM)).cached_tokens == 0
    assert town.num_sessions("new") == 0
    assert town.placement.owner("a") == -1
    town.placement.release(town.last)
    assert town.num_sessions("new") == 0


def test_a_session_sent_to_one_that_just_left_is_not_counted() -> None:
    town = Town(replica("a"))
    decision = town.decide()
    del town.table.rows["a"]
    town.table.changed.add("a")
    with pytest.raises(NoReplicaError):
        town.decide()
    town.placement.put(1, town.asking(SYSTEM), decision, town.now)
    town.placement.release(1)


def test_many_replicas_come_and_go() -> None:
    town = Town()
    for number in range(40):
        town.table.rows[f"r{number}"] = replica(f"r{number}", rtt_ms=100.0 - number)
        town.table.changed.add(f"r{number}")
        assert town.decide().replica == f"r{number}"
    for number in range(39, 0, -1):
        del town.table.rows[f"r{number}"]
        town.table.changed.add(f"r{number}")
        assert town.decide().replica == f"r{number - 1}"
