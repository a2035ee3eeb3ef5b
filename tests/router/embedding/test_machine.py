"""What a request does in every order of events, in virtual time: each input is answered once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import MalformedFrameError, OverloadedError, UnavailableError
from outrider.peers.health import PeerState
from services.router.autoscale.advisor import AutoscaleAdvisor, FleetKey, FleetUsage
from services.router.autoscale.policy import AutoscalePolicy
from services.router.embedding.machine import (
    RETRY_S,
    Done,
    EmbeddingFleet,
    Failed,
    NewInput,
    RequestMachine,
    Send,
    Step,
)
from services.router.embedding.placement import EmbeddingPlacement
from services.router.embedding.policy import EmbeddingPolicy
from services.router.fleet.replica import Replica, ReplicaLoad, ServedModel
from tests.router.placement.fleet import Table, replica

RETURN_S = 1.0


class _Registry(Table):
    def longest_context(self, model: str) -> int:
        return 256

    def models(self) -> set[str]:
        return {"e"}


def embedder(name: str, identity: bytes = b"1") -> Replica:
    model = ServedModel("e", b"", identity=identity, dimensions=8)
    return replica(name, model=model, load=ReplicaLoad(row_ms=1.0))


def fleet(*replicas: Replica, **policy: int) -> EmbeddingFleet:
    return EmbeddingFleet(
        _Registry(replicas),  # type: ignore[arg-type]
        EmbeddingPlacement(Random(1)),
        EmbeddingPolicy(**policy),
        AutoscaleAdvisor(AutoscalePolicy()),
        RETURN_S,
    )


def set_down(it: Replica, *, down: bool = True) -> None:
    it.health = replica("x", state=PeerState.DOWN if down else PeerState.READY).health


def inputs(*numbers: int) -> list[NewInput]:
    return [NewInput(number, b"frame", 30) for number in numbers]


@dataclass
class Peer:
    """An edge and its replicas, as a machine's steps make them."""

    at: dict[str, set[int]] = field(default_factory=dict)
    """What each replica has."""
    answers: Counter[int] = field(default_factory=Counter)
    errors: dict[int, str] = field(default_factory=dict)
    num_done: int = 0

    def do(self, steps: Iterable[Step]) -> None:
        for step in steps:
            assert not self.num_done, "nothing comes behind the last frame"
            if isinstance(step, Send):
                numbers = {each.number for each in step.inputs}
                self.at.setdefault(step.replica.name, set()).update(numbers)
            elif isinstance(step, Failed):
                self.answers[step.number] += 1
                self.errors[step.number] = step.error.reason
            else:
                assert isinstance(step, Done)
                self.num_done += 1


def waited(machine: RequestMachine, peer: Peer, now: float) -> float:
    """When nothing waits any more."""
    while machine.retry_at is not None:
        now = max(now, machine.retry_at)
        peer.do(machine.tick(now))
    return now


def test_parts_go_to_replicas_and_the_last_answer_ends_it() -> None:
    found = fleet(embedder("a"), embedder("b"), part_inputs=2)
    machine, peer = RequestMachine(found, "e", ()), Peer()
    peer.do(machine.add(inputs(0, 1, 2, 3), 0.0))
    assert {name: len(held) for name, held in peer.at.items()} == {"a": 2, "b": 2}
    peer.do(machine.no_more_inputs())
    for name, held in peer.at.items():
        assert not peer.num_done
        peer.do(machine.answered(name, sorted(held), 20, 0.5))
    assert peer.num_done == 1 and machine.num_tokens == 40
    assert found.held.num_inputs == found.held.num_bytes == 0
    stats = found.stats.take()
    assert (stats.inputs["e", "vector"], stats.tokens[("e",)]) == (4, 40)


def test_a_request_without_inputs_is_done() -> None:
    machine, peer = RequestMachine(fleet(), "e", ()), Peer()
    peer.do(machine.no_more_inputs())
    peer.do(machine.tick(1.0))
    assert peer.num_done == 1


def test_inputs_wait_for_a_replica_that_may_come_back_and_no_longer() -> None:
    only = embedder("a")
    machine, peer = RequestMachine(fleet(only), "e", ()), Peer()
    peer.do(machine.add(inputs(0), 0.0))
    set_down(only)
    only.lost_at = 0.1
    peer.do(machine.lost("a", 0.1, had_them=True))
    assert machine.retry_at == pytest.approx(0.1 + RETRY_S) and not peer.answers
    peer.do(machine.tick(0.2))
    set_down(only, down=False)
    peer.at.clear()
    peer.do(machine.tick(0.3))
    assert peer.at == {"a": {0}} and machine.retry_at is None
    set_down(only)
    only.lost_at = 0.4
    peer.do(machine.no_more_inputs())
    peer.do(machine.lost("a", 0.4, had_them=True))
    now = waited(machine, peer, 0.4)
    assert peer.errors == {0: "NO_REPLICA"} and peer.num_done == 1
    assert RETURN_S < now - 0.4 < RETURN_S + 4 * RETRY_S


def test_inputs_wait_for_a_replica_that_is_tried_for_the_first_time() -> None:
    first = replica("a", model=None, expected_model="e", state=PeerState.CONNECTING)
    machine, peer = RequestMachine(fleet(first), "e", ()), Peer()
    peer.do(machine.add(inputs(0), 0.0))
    assert machine.retry_at is not None and not peer.answers
    set_down(first, down=False)
    first.model = embedder("a").model
    peer.do(machine.tick(0.1))
    assert peer.at == {"a": {0}}
    set_down(first)
    first.model = None
    machine, peer = RequestMachine(fleet(first), "e", ()), Peer()
    peer.do(machine.add(inputs(0), 0.0))
    assert peer.errors == {0: "NO_REPLICA"}, "it was tried in vain"


def test_a_replica_that_is_not_reached_is_passed_over() -> None:
    """Though the registry takes it for the one that is done first."""
    found = fleet(embedder("a"), embedder("b"))
    found.placement.sent("b", 1000)
    machine, peer = RequestMachine(found, "e", ()), Peer()
    peer.do(machine.add(inputs(0), 0.0))
    assert peer.at.pop("a") == {0}
    peer.do(machine.lost("a", 0.0, had_them=False))
    assert peer.at == {"b": {0}}


def test_the_only_replica_that_is_not_reached_is_tried_at_intervals_and_no_longer() -> None:
    found = fleet(embedder("a"))
    machine, peer, now = RequestMachine(found, "e", ()), Peer(), 0.0
    peer.do(machine.add(inputs(0), now))
    peer.do(machine.no_more_inputs())
    tried_at = list[float]()
    while not peer.num_done:
        if peer.at.pop("a", None):
            tried_at.append(now)
            assert len(tried_at) < 50
            peer.do(machine.lost("a", now, had_them=False))
        else:
            assert machine.retry_at is not None
            now = machine.retry_at
            peer.do(machine.tick(now))
    assert peer.errors == {0: "NO_REPLICA"}
    assert all(after - before >= RETRY_S for before, after in pairwise(tried_at))
    assert len(tried_at) > 3 and RETURN_S < now < RETURN_S + 4 * RETRY_S


def test_inputs_wait_as_long_as_they_are_there() -> None:
    """Not as long as those that are sent together with them."""
    machine, peer = RequestMachine(fleet(embedder("a")), "e", ()), Peer()
    peer.do(machine.add(inputs(0), 0.0))
    peer.do(machine.lost("a", 0.0, had_them=False))
    now = 0.5 * RETURN_S
    peer.do(machine.tick(now))  # it is tried again the next time
    peer.do(machine.tick(now))
    peer.do(machine.add(inputs(1), now))
    peer.do(machine.lost("a", now, had_them=False))
    now = 1.4 * RETURN_S
    peer.do(machine.tick(now))
    assert peer.errors == {0: "NO_REPLICA"}
    peer.at.clear()
    peer.do(machine.tick(now))
    assert peer.at == {"a": {1}}


def test_a_replica_that_was_lost_and_one_that_is_not_reached_are_tried_in_turn() -> None:
    found = fleet(embedder("a"), embedder("b"))
    found.placement.sent("b", 1000)
    machine, peer, now = RequestMachine(found, "e", ()), Peer(), 0.0
    peer.do(machine.add(inputs(0), now))
    assert peer.at.pop("a") == {0}
    peer.do(machine.lost("a", now, had_them=True))
    tried = list[str]()
    while len(tried) < 6:
        if peer.at:
            name, _ = peer.at.popitem()
            tried.append(name)
            peer.do(machine.lost(name, now, had_them=False))
        else:
            assert machine.retry_at is not None
            now = machine.retry_at
            peer.do(machine.tick(now))
    assert tried == ["b", "a", "a", "b", "a", "b"]
    assert not peer.answers


def test_what_takes_replicas_down_is_not_tried_for_ever() -> None:
    found = fleet(*map(embedder, "abcd"), max_lost_replicas=2)
    machine, peer = RequestMachine(found, "e", ()), Peer()
    peer.do(machine.add(inputs(7), 0.0))
    peer.do(machine.no_more_inputs())
    for name in ("a", "b"):
        assert peer.at.pop(name) == {7}
        peer.do(machine.lost(name, 0.0, had_them=True))
    assert peer.errors == {7: "POISONOUS_REQUEST"} and peer.num_done == 1 and not peer.at
    assert found.stats.take().moves[("e",)] == 1


def test_a_replica_that_computes_otherwise_gets_nothing_of_it() -> None:
    machine = RequestMachine(fleet(embedder("a"), embedder("b", b"2")), "e", ())
    peer = Peer()
    peer.do(machine.add(inputs(0), 0.0))
    peer.do(machine.lost("a", 0.0, had_them=False))
    peer.do(machine.no_more_inputs())
    assert peer.at == {"a": {0}} and machine.identity == b"1"


def test_what_all_requests_hold_is_bounded_and_given_back() -> None:
    found = fleet(embedder("a"), max_inputs=3)
    machine, peer = RequestMachine(found, "e", ()), Peer()
    peer.do(machine.add(inputs(0, 1), 0.0))
    with pytest.raises(OverloadedError):
        machine.add(inputs(2, 3), 0.0)
    machine.close()
    assert found.held.num_inputs == found.held.num_bytes == 0
    assert found.placement.sent_tokens("a") == 0


def test_late_answers_ask_for_more_replicas() -> None:
    """As late first tokens of chats do."""
    here = embedder("a")
    found, key = fleet(here, part_inputs=1), FleetKey(here.region, "e")
    usage = {key: FleetUsage(1, 5.0)}
    assert found.autoscale.advise(usage, 0.0)[key].desired_replicas == 1
    machine, peer = RequestMachine(found, "e", ()), Peer()
    peer.do(machine.add(inputs(*range(40)), 0.0))
    for number in range(40):
        peer.do(machine.answered("a", [number], 5, 30.0))
    advice = found.autoscale.advise(usage, 30.0)[key]
    assert (advice.late_share, advice.num_requests) == (1.0, 40)
    assert advice.desired_replicas > 1


EVENTS = st.tuples(st.sampled_from("alrfdut"), st.integers(0, 11), st.sampled_from("abc"))


@given(st.lists(EVENTS, max_size=60), st.integers(1, 5))
def test_every_input_is_answered_once(events: list[tuple[str, int, str]], part: int) -> None:
    """Whatever order answers, losses, refusals and returns have; and nothing is held behind it."""
    replicas = {name: embedder(name) for name in "abc"}
    found = fleet(*replicas.values(), part_inputs=part)
    machine, peer, now = RequestMachine(found, "e", ()), Peer(), 0.0
    peer.do(machine.add(inputs(*range(12)), now))
    peer.do(machine.no_more_inputs())
    for what, number, name in events:
        now += 0.05
        has = peer.at.get(name, set())
        if what in "af" and number in has:
            has.discard(number)
            peer.answers[number] += 1
            if what == "a":
                peer.do(machine.answered(name, [number], 1, now))
            else:
                peer.do(machine.failed_at(name, number))
        elif what in "af":
            with pytest.raises(MalformedFrameError):
                machine.answered(name, [number], 1, now)
        elif what == "t":
            peer.do(machine.tick(now))
        elif what == "u":
            set_down(replicas[name], down=False)
        else:
            peer.at.pop(name, None)
            if what == "d":
                set_down(replicas[name])
                replicas[name].lost_at = now
            if what == "r":
                peer.do(machine.refused(name, UnavailableError("no")))
            else:
                peer.do(machine.lost(name, now, had_them=number % 2 == 0))
    for each in replicas.values():
        set_down(each, down=False)
    now = waited(machine, peer, now)
    for name, has in peer.at.items():
        for number in sorted(has):
            peer.answers[number] += 1
            peer.do(machine.answered(name, [number], 1, now))
    assert peer.answers == Counter(range(12)) and peer.num_done == 1
    assert found.held.num_inputs == 0
    assert all(found.placement.sent_tokens(name) == 0 for name in "abc")
