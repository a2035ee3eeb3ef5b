"""Addresses of one prefix count as one."""

from __future__ import annotations

import pytest

from services.edge.addresses import Prefixes


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
    assert Prefixes().of(host) == prefix


def test_how_much_of_an_address_counts_can_be_set() -> None:
    prefixes = Prefixes(ipv4_bits=24, ipv6_bits=64)
    assert prefixes.of("192.0.2.7") == prefixes.of("192.0.2.250") == "192.0.2.0/24"
    assert prefixes.of("2001:db8::1") != prefixes.of("2001:db8:0:1::1")
