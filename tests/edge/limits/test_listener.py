"""What clients may use: address prefixes, nested memory budgets, and who may begin a handshake."""

from __future__ import annotations

import pytest

from outrider.errors import OverloadedError
from services.edge.limits.listener import (
    AddressPrefixes,
    HandshakeAdmission,
    HandshakeLimits,
    ListenerLimits,
    ListenerQuotas,
    MemoryBudget,
    Verdict,
)
from services.edge.limits.quotas import Count, QuotaLimits, Quotas, Rate, RateLimit


def admission(**limits: int) -> tuple[HandshakeAdmission, Quotas[str]]:
    quotas = Quotas[str](
        QuotaLimits({Count.CONNECTIONS: 4}, {Rate.HANDSHAKES: RateLimit(1.0, 6.0)})
    )
    return HandshakeAdmission(HandshakeLimits(**limits), quotas), quotas


def decide(
    at: HandshakeAdmission,
    prefix: str = "a",
    *,
    validated: bool = False,
    resident: int = 0,
    now: float = 0.0,
) -> Verdict:
    return at.decide(prefix, is_validated=validated, resident_bytes=resident, now=now)


def test_past_some_half_open_ones_addresses_are_to_be_proven() -> None:
    at, _ = admission(retry_from_half_open=2, max_half_open=3)
    assert [decide(at, key) for key in "abc"] == [Verdict.ADMIT, Verdict.ADMIT, Verdict.RETRY]
    assert decide(at, "c", validated=True) is Verdict.ADMIT
    assert decide(at, "d") is Verdict.RETRY
    assert decide(at, "d", validated=True) is Verdict.REFUSE_HALF_OPEN
    at.handshake_ended()
    at.handshake_ended()
    assert decide(at, "d") is Verdict.ADMIT


def test_zero_asks_everybody_for_proof() -> None:
    at, _ = admission(retry_from_half_open=0)
    assert decide(at) is Verdict.RETRY
    assert decide(at, validated=True) is Verdict.ADMIT


def test_one_address_has_its_share_and_others_theirs() -> None:
    at, quotas = admission()
    assert [decide(at, validated=True) for _ in range(5)] == [Verdict.ADMIT] * 4 + [
        Verdict.REFUSE_QUOTA
    ]
    assert decide(at, "b") is Verdict.ADMIT
    at.connection_ended("a")
    assert quotas.held("a", Count.CONNECTIONS) == 3


def test_nobody_is_refused_for_what_was_sent_in_his_name() -> None:
    at, _ = admission()
    assert [decide(at) for _ in range(5)][-1] is Verdict.RETRY


def test_handshakes_have_a_rate() -> None:
    at, _ = admission()
    for _ in range(6):
        assert decide(at, validated=True) is Verdict.ADMIT
        at.handshake_ended()
        at.connection_ended("a")
    assert decide(at, validated=True) is Verdict.REFUSE_QUOTA
    assert decide(at, validated=True, now=1.0) is Verdict.ADMIT


def test_above_the_watermark_nobody_comes_in() -> None:
    at, quotas = admission(max_resident_bytes=1000)
    assert decide(at, resident=1001) is Verdict.REFUSE_MEMORY
    assert decide(at, resident=1001, validated=True) is Verdict.REFUSE_MEMORY
    assert quotas.held("a", Count.CONNECTIONS) == at.num_half_open == 0
    assert decide(at, resident=1000) is Verdict.ADMIT
    unlimited, _ = admission(max_resident_bytes=0)
    assert decide(unlimited, resident=10**12) is Verdict.ADMIT


def test_what_has_no_room_is_not_held_and_what_goes_makes_room() -> None:
    room = MemoryBudget(10)
    assert room.take(6) and room.take(4)
    assert not room.take(1)
    assert room.num_bytes == 10
    room.give_back(6)
    assert room.take(6) and not room.take(1)


def test_what_one_takes_the_others_do_not_have() -> None:
    everything = MemoryBudget(10)
    one, other = MemoryBudget(8, everything), MemoryBudget(8, everything)
    assert one.take(8) and not one.take(1)
    assert not other.take(3) and other.num_bytes == 0 and everything.num_bytes == 8
    assert other.take(2)
    one.clear()
    assert one.num_bytes == 0 and everything.num_bytes == 2
    assert other.take(6)


@pytest.mark.parametrize(
    ("host", "prefix"),
    [
        ("192.0.2.7", "192.0.2.7/32"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ("2001:db8:1:2ff:3::4", "2001:db8:1:200::/56"),
        ("fe80::1%eth0", "fe80::/56"),
    ],
)
def test_a_home_is_one(host: str, prefix: str) -> None:
    assert AddressPrefixes().of(host) == prefix


def test_how_much_of_an_address_counts_can_be_set() -> None:
    prefixes = AddressPrefixes(ipv4_bits=24, ipv6_bits=64)
    assert prefixes.of("192.0.2.7") == prefixes.of("192.0.2.250") == "192.0.2.0/24"
    assert prefixes.of("2001:db8::1") != prefixes.of("2001:db8:0:1::1")


def test_a_closed_budget_counts_nowhere() -> None:
    everything = MemoryBudget(10)
    one = MemoryBudget(8, everything)
    assert one.take(5)
    one.close()
    assert everything.num_bytes == 0 and not one.take(1)
    one.give_back(5)
    assert everything.num_bytes == 0


def test_a_chat_counts_for_its_address_and_its_client_until_it_ends() -> None:
    home = "192.0.2.1/32"
    shares = ListenerQuotas(ListenerLimits(max_chats_per_address=2, max_chats_per_client=1))
    end = shares.hold_chat(home, b"somebody", 0.0)
    with pytest.raises(OverloadedError):
        shares.hold_chat(home, b"somebody", 0.0)
    assert shares.quotas.held(home, Count.CHATS) == 1, "what its client may not have is not held"
    shares.hold_chat(home, b"another", 0.0)
    end()
    assert shares.quotas.held(home, Count.CHATS) == 1
    assert shares.client_quotas.held(b"somebody", Count.CHATS) == 0


def test_quotas_of_several_processes_count_although_nobody_has_used_them() -> None:
    quotas, client_quotas = Quotas[str](QuotaLimits()), Quotas[bytes](QuotaLimits())
    shared = ListenerQuotas(ListenerLimits(), quotas=quotas, client_quotas=client_quotas)
    shared.hold_chat("192.0.2.1/32", b"somebody", 0.0)
    assert (len(quotas), len(client_quotas)) == (1, 1)
