"""Admission under more load than there is room for, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.session.types import Priority
from services.router.admission.admission import Admission
from services.router.admission.policy import AdmissionPolicy
from services.router.admission.tenants import TenantPolicy
from tests.router.admission.fakes import asking
from tests.router.admission.mesh import STEP_S, Arrival, Mesh

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH
POLICY = AdmissionPolicy(max_waiting=200)


def poisson(
    rate: float, until: float, priority: Priority, tenant: str, first: int, seed: int = 1
) -> Iterator[Arrival]:
    """Sessions of one tenant that come at random, so many a second."""
    chance, at, number = Random(seed), 0.0, first
    while (at := at + chance.expovariate(rate)) < until:
        yield at, asking(number, priority, tenant)
        number += 1


def together(*streams: Iterator[Arrival]) -> list[Arrival]:
    return sorted((entry for stream in streams for entry in stream), key=lambda entry: entry[0])


@pytest.fixture(scope="module")
def overloaded() -> Mesh:
    """A minute in which 70 sessions a second come to 20 places of a second each."""
    mesh = Mesh(Admission(POLICY), {"us": 20})
    streams = together(
        poisson(4, 60, HIGH, "chat", 0),
        poisson(10, 60, MEDIUM, "app", 10_000),
        poisson(56, 60, LOW, "batch", 20_000),
    )
    mesh.run(streams, until=150.0)
    return mesh


def test_overload_sheds_low_first(overloaded: Mesh) -> None:
    refused = [f.request.priority for f in overloaded.fates.values() if f.refused_at is not None]
    assert set(refused) == {LOW}
    assert len(refused) > 1000


def test_high_keeps_its_time_to_the_first_token(overloaded: Mesh) -> None:
    waits = sorted(fate.wait_s for fate in overloaded.of(HIGH))
    assert waits[len(waits) // 2] == 0.0
    assert waits[-1] <= 0.3
    waits = sorted(fate.wait_s for fate in overloaded.of(MEDIUM))
    assert waits[len(waits) * 9 // 10] <= 1.0


def test_low_gets_what_is_left_all_the_time(overloaded: Mesh) -> None:
    placed = sorted(f.began_at for f in overloaded.of(LOW) if f.began_at is not None)
    gaps = [after - before for before, after in pairwise(placed)]
    assert max(gaps) < 5.0
    assert len([at for at in placed if at < 60]) == pytest.approx(6 * 60, rel=0.3)


def test_every_wait_ends_and_every_refusal_says_when(overloaded: Mesh) -> None:
    for fate in overloaded.fates.values():
        ended = fate.placed_at if fate.placed_at is not None else fate.refused_at
        assert ended is not None
        assert ended - fate.came_at <= POLICY.max_wait_s(fate.request.priority) + STEP_S
        if fate.error is not None:
            assert 0 < fate.error.retry_delay_ms <= 60_000
    assert len(overloaded.admission) == 0
    assert sum(overloaded.admission.num_waiting().values()) == 0


def test_low_does_not_starve_under_higher_load_than_there_is_room_for() -> None:
    """MEDIUM alone is twice what fits; LOW still gets its turns once it has waited."""
    mesh = Mesh(Admission(POLICY), {"us": 20})
    streams = together(poisson(40, 60, MEDIUM, "app", 10_000), poisson(4, 60, LOW, "batch", 20_000))
    mesh.run(streams, until=60.0)
    placed = [f.placed_at for f in mesh.of(LOW) if f.placed_at is not None]
    late = [at for at in placed if at >= POLICY.ageing_s + 1.0]
    assert len(late) >= 49 * 20 / 8 * 0.8


def test_a_burst_of_one_tenant_does_not_delay_another() -> None:
    mesh = Mesh(Admission(POLICY), {"us": 20})
    burst = [(0.0, asking(n, MEDIUM, "burst")) for n in range(180)]
    modest = poisson(5, 8, MEDIUM, "modest", 10_000)
    mesh.run(together(iter(burst), modest), until=20.0)
    modest_ones = [f for f in mesh.fates.values() if f.request.tenant == "modest"]
    waits = sorted(f.wait_s for f in modest_ones if f.came_at > 1.0)
    assert waits[len(waits) // 2] <= 0.7
    assert waits[-1] <= POLICY.slo_ttft_medium_ms / 1000.0 + 2 * STEP_S
    ends = [f.wait_s for f in mesh.fates.values() if f.request.tenant == "burst"]
    assert max(ends) > 5.0


def test_it_spills_when_home_is_full_and_returns() -> None:
    mesh = Mesh(Admission(POLICY), {"us": 20, "eu": 20}, rtt_ms={"eu": 90.0})
    calm = poisson(10, 10, HIGH, "t", 0)
    rush = ((at + 10, a) for at, a in poisson(35, 10, HIGH, "t", 10_000))
    after = ((at + 30, a) for at, a in poisson(10, 10, HIGH, "t", 20_000))
    mesh.run(together(calm, rush, after), until=60.0)
    fates = mesh.fates.values()
    away = [f.came_at for f in fates if f.region == "eu"]
    assert len(away) > 50
    assert 10.0 < min(away) and max(away) < 21.0
    assert not any(f.spill_cause for f in fates), "home would have done, at a price"
    assert all(f.region == "us" for f in fates if f.came_at >= 30)
    assert all(f.wait_s < 0.5 for f in fates)


def test_what_home_cannot_take_counts_as_spilled() -> None:
    mesh = Mesh(Admission(POLICY), {"us": 20, "eu": 40}, rtt_ms={"eu": 700.0})
    mesh.run(poisson(45, 10, HIGH, "t", 0), until=10.0)
    spilled = {f.spill_cause for f in mesh.fates.values() if f.region == "eu"}
    assert spilled == {"full"}


def test_who_comes_back_when_told_is_let_in() -> None:
    """The delay is honest: of those refused and back on time, nearly all find room."""
    mesh = Mesh(Admission(AdmissionPolicy(max_waiting=20)), {"us": 20})
    rush = [(0.1 * n, asking(n, MEDIUM, f"t{n % 7}")) for n in range(60)]
    flood = [(6.0, asking(1000 + n, MEDIUM, f"t{n % 7}")) for n in range(100)]
    mesh.run([*rush, *flood], until=6.0)
    turned_away = [f for f in mesh.fates.values() if f.error and f.came_at == 6.0]
    assert len(turned_away) > 40
    back = [
        (6.0 + fate.error.retry_delay_ms / 1000.0, asking(5000 + n, MEDIUM, fate.request.tenant))
        for n, fate in enumerate(turned_away)
        if fate.error is not None
    ]
    mesh.run(sorted(back, key=lambda entry: entry[0]), until=120.0)
    again = [f for session, f in mesh.fates.items() if session >= 5000]
    assert sum(f.placed_at is not None for f in again) >= 0.9 * len(again)


Steps = st.lists(
    st.tuples(
        st.floats(0.0, 0.5),
        st.sampled_from([LOW, MEDIUM, HIGH]),
        st.sampled_from(["a", "b", "c"]),
        st.one_of(st.none(), st.floats(0.1, 3.0)),
    ),
    max_size=120,
)


@settings(max_examples=60)
@given(Steps, st.integers(1, 4), st.integers(1, 12))
def test_whatever_comes_the_books_agree(
    steps: list[tuple[float, Priority, str, float | None]], places: int, max_waiting: int
) -> None:
    tenants = [TenantPolicy("a", "economy", 4), TenantPolicy("*", tokens_per_minute=2000)]
    mesh = Mesh(
        Admission(AdmissionPolicy(max_waiting=max_waiting), tenants), {"us": places, "eu": 1}
    )
    now = 0.0
    for number, (pause_s, priority, tenant, deadline_s) in enumerate(steps):
        now += pause_s
        mesh.run([(now, asking(number, priority, tenant, deadline_at=deadline_s))], until=now)
        waiting = sum(mesh.admission.num_waiting().values())
        undecided = [f for f in mesh.fates.values() if f.placed_at is None and f.refused_at is None]
        assert waiting == len(undecided) <= max_waiting
    mesh.run([], until=now + 200.0)
    assert len(mesh.admission) == 0
    for fate in mesh.fates.values():
        assert (fate.placed_at is None) != (fate.refused_at is None)
