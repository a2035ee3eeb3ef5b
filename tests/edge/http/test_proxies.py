"""Whose word counts about where a request comes from."""

from __future__ import annotations

import pytest

from outrider.errors import ConfigError
from services.edge.http.config import HttpConfig
from services.edge.http.proxies import TrustedProxies, is_forwarded

PROXIES = TrustedProxies(("10.1.0.0/16", "192.0.2.7", "2001:db8::/32"))


@pytest.mark.parametrize(
    ("peer", "said", "client"),
    [
        ("198.51.100.1", ["203.0.113.5"], "198.51.100.1"),
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["203.0.113.5"], "203.0.113.5"),
        ("192.0.2.7", ["1.1.1.1, 203.0.113.5"], "203.0.113.5"),
        ("192.0.2.7", ["1.1.1.1", "203.0.113.5,10.1.9.9"], "203.0.113.5"),
        ("192.0.2.8", ["203.0.113.5"], "192.0.2.8"),
        ("::ffff:10.1.2.3", ["203.0.113.5"], "203.0.113.5"),
        ("2001:db8::1", ["2001:470::9"], "2001:470::9"),
        ("10.1.2.3", ["10.1.0.1, 10.1.0.2"], "10.1.0.1"),
        ("10.1.2.3", ["203.0.113.5, unknown"], "10.1.2.3"),
        ("10.1.2.3", ["203.0.113.5, unix:, 10.1.0.2"], "10.1.0.2"),
        ("10.1.2.3", [""], "10.1.2.3"),
        ("10.1.2.3", [", " * 5000], "10.1.2.3"),
        ("10.1.2.3", ["203.0.113.5:443"], "10.1.2.3"),
    ],
)
def test_only_what_trusted_proxies_added_counts(peer: str, said: list[str], client: str) -> None:
    assert PROXIES.client(peer, said) == client


def test_nobody_is_trusted_by_default() -> None:
    assert HttpConfig().trusted_proxies == ()
    assert TrustedProxies().client("127.0.0.1", ["203.0.113.5"]) == "127.0.0.1"


@pytest.mark.parametrize("bad", ["proxy.example", "10.1.2.3/16", "10.1.0.0/33", ""])
def test_what_is_no_network_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="trusted_proxies"):
        HttpConfig(trusted_proxies=(bad,))


@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded", "via"])
def test_requests_that_came_by_a_proxy_are_known(name: str) -> None:
    assert is_forwarded({name: "anything"})
    assert not is_forwarded({"host": "edge"})
