"""Memory for bodies that are arriving."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import OverloadedError
from services.edge.limits.bodies import ArrivingBody, BodyMemory
from services.edge.limits.listener import MemoryBudget

ALL, EACH, CONNECTION = 40, 16, 8


@dataclass
class Edge:
    """Budgets as an edge has them, for addresses that are numbers."""

    memory: BodyMemory = field(default_factory=BodyMemory)
    everything: MemoryBudget = field(default_factory=lambda: MemoryBudget(ALL))
    addresses: dict[int, MemoryBudget] = field(default_factory=dict)
    refused: list[ArrivingBody] = field(default_factory=list)
    """In their order, those that gave way to others."""

    def address(self, number: int) -> MemoryBudget:
        return self.addresses.setdefault(number, MemoryBudget(EACH, self.everything))

    def begin(self, address: int = 0, connection: MemoryBudget | None = None) -> ArrivingBody:
        own = connection or MemoryBudget(CONNECTION, self.address(address))
        body = self.memory.begin(own, lambda: self.refused.append(body))
        return body

    def has(self, address: int, num_bytes: int) -> ArrivingBody:
        """A body of which so much has come."""
        body = self.begin(address)
        body.grow(num_bytes)
        return body


def test_a_head_alone_holds_nothing() -> None:
    edge = Edge()
    for _ in range(1000):
        edge.begin()
    assert edge.everything.num_bytes == 0
    edge.has(0, 8)
    assert not edge.refused


def test_who_was_silent_for_longest_gives_way() -> None:
    edge = Edge()
    first, second, third = (edge.has(0, 5) for _ in range(3))
    first.grow(1)
    edge.has(0, 3)
    assert edge.refused == [second] and second.num_bytes == 0
    third.grow(2)
    edge.has(0, 5)
    assert edge.refused == [second, first]
    with pytest.raises(OverloadedError, match="send fewer"):
        first.grow(1)
    assert edge.address(0).num_bytes == 15


def test_bodies_in_parts_become_whole_as_many_as_there_is_room_for() -> None:
    edge = Edge()
    bodies, whole = [edge.begin() for _ in range(24)], []
    for _ in range(4):
        for body in bodies:
            if body not in edge.refused:
                body.grow(1)
    for body in bodies:
        if body not in edge.refused:
            body.arrived()
            whole.append(body)
    assert [it.num_bytes for it in whole] == [4] * (EACH // 4)
    assert edge.everything.num_bytes == EACH


def test_a_whole_body_gives_way_to_nobody_until_it_is_released() -> None:
    edge = Edge()
    whole = [edge.has(0, 8) for _ in range(2)]
    for body in whole:
        body.arrived()
    late = edge.begin()
    with pytest.raises(OverloadedError):
        late.grow(1)
    assert not edge.refused
    whole[0].release()
    whole[0].release()
    edge.has(0, 8)


def test_addresses_keep_theirs_until_the_edge_is_full_and_then_who_has_most_gives_way() -> None:
    edge = Edge()
    small = edge.has(1, 2)
    large = [edge.has(2, 8) for _ in range(2)]
    [edge.has(3, 8) for _ in range(2)]
    small.grow(4)
    assert not edge.refused
    edge.has(4, 3)
    assert len(edge.refused) == 1 and edge.refused[0].address in (edge.address(2), edge.address(3))
    assert small.num_bytes == 6 and edge.everything.num_bytes == ALL - 8 + 1
    assert large[1].num_bytes == 8


def test_a_connection_that_is_full_takes_nothing_from_others() -> None:
    edge = Edge()
    other, connection = edge.has(0, 4), MemoryBudget(CONNECTION, edge.address(0))
    first, second = (edge.begin(0, connection) for _ in range(2))
    first.grow(8)
    with pytest.raises(OverloadedError):
        second.grow(1)
    connection.close()
    with pytest.raises(OverloadedError):
        first.grow(1)
    assert not edge.refused and other.num_bytes == 4 and edge.address(0).num_bytes == 4


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("begin", "grow", "arrived", "release")),
            st.integers(0, 3),
            st.integers(0, 9),
        )
    )
)
def test_whatever_comes_what_is_held_is_counted_once_and_within_bounds(
    steps: list[tuple[str, int, int]],
) -> None:
    edge = Edge()
    bodies: list[ArrivingBody] = []
    for what, address, number in steps:
        if what == "begin":
            bodies.append(edge.begin(address))
        elif bodies:
            body = bodies[number % len(bodies)]
            try:
                body.grow(number) if what == "grow" else getattr(body, what)()
            except OverloadedError:
                assert body.num_bytes == 0
        assert sum(it.num_bytes for it in bodies) == edge.everything.num_bytes <= ALL
        assert all(it.num_bytes <= EACH for it in edge.addresses.values())
        assert all(not it.num_bytes for it in edge.refused)
    for body in bodies:
        body.release()
    assert edge.everything.num_bytes == 0 and not edge.memory._by_address
