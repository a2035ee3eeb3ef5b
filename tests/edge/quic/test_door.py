"""Who may begin to shake hands."""

from __future__ import annotations

from services.edge.quic.door import Door, DoorLimits, Verdict
from services.edge.quotas import Count, QuotaLimits, Quotas, Rate, RateLimit


def door(**limits: int) -> tuple[Door, Quotas[str]]:
    quotas = Quotas[str](
        QuotaLimits({Count.CONNECTIONS: 4}, {Rate.HANDSHAKES: RateLimit(1.0, 6.0)})
    )
    return Door(DoorLimits(**limits), quotas), quotas


def knock(
    at: Door, key: str = "a", *, proven: bool = False, resident: int = 0, now: float = 0.0
) -> Verdict:
    return at.knock(key, is_proven=proven, resident_bytes=resident, now=now)


def test_past_some_half_open_ones_addresses_are_to_be_proven() -> None:
    at, _ = door(retry_from_half_open=2, max_half_open=3)
    assert [knock(at, key) for key in "abc"] == [Verdict.ADMIT, Verdict.ADMIT, Verdict.RETRY]
    assert knock(at, "c", proven=True) is Verdict.ADMIT
    assert knock(at, "d") is Verdict.RETRY
    assert knock(at, "d", proven=True) is Verdict.REFUSE_HALF_OPEN
    at.shook_hands()
    at.shook_hands()
    assert knock(at, "d") is Verdict.ADMIT


def test_zero_asks_everybody_for_proof() -> None:
    at, _ = door(retry_from_half_open=0)
    assert knock(at) is Verdict.RETRY
    assert knock(at, proven=True) is Verdict.ADMIT


def test_one_address_has_its_share_and_others_theirs() -> None:
    at, quotas = door()
    assert [knock(at, proven=True) for _ in range(5)] == [Verdict.ADMIT] * 4 + [
        Verdict.REFUSE_QUOTA
    ]
    assert knock(at, "b") is Verdict.ADMIT
    at.left("a")
    assert quotas.held("a", Count.CONNECTIONS) == 3


def test_nobody_is_refused_for_what_was_sent_in_his_name() -> None:
    at, _ = door()
    assert [knock(at) for _ in range(5)][-1] is Verdict.RETRY


def test_handshakes_have_a_rate() -> None:
    at, _ = door()
    for _ in range(6):
        assert knock(at, proven=True) is Verdict.ADMIT
        at.shook_hands()
        at.left("a")
    assert knock(at, proven=True) is Verdict.REFUSE_QUOTA
    assert knock(at, proven=True, now=1.0) is Verdict.ADMIT


def test_above_the_watermark_nobody_comes_in() -> None:
    at, quotas = door(max_resident_bytes=1000)
    assert knock(at, resident=1001) is Verdict.REFUSE_MEMORY
    assert knock(at, resident=1001, proven=True) is Verdict.REFUSE_MEMORY
    assert quotas.held("a", Count.CONNECTIONS) == at.num_half_open == 0
    assert knock(at, resident=1000) is Verdict.ADMIT
    unlimited, _ = door(max_resident_bytes=0)
    assert knock(unlimited, resident=10**12) is Verdict.ADMIT
