"""Targets as they are written in settings."""

from __future__ import annotations

import pytest

from outrider.errors import ConfigError
from outrider.peers.targets import Lookup, Target, join, parse


@pytest.mark.parametrize(
    ("text", "lookup", "host", "port"),
    [
        ("router:7100", Lookup.NONE, "router", 7100),
        ("[::1]:7100", Lookup.NONE, "[::1]", 7100),
        ("dns:7100", Lookup.NONE, "dns", 7100),
        ("dns:inference:7300", Lookup.ADDRESSES, "inference", 7300),
        ("srv:_grpc._tcp.inference.svc", Lookup.SERVICES, "_grpc._tcp.inference.svc", 0),
    ],
)
def test_a_target_says_how_it_is_looked_up(text: str, lookup: Lookup, host: str, port: int) -> None:
    assert parse(text, "each of routers") == Target(text, lookup, host, port)


@pytest.mark.parametrize("text", ["", "router", "dns:", "dns:x", "srv:", "router:0", "dns:x:99999"])
def test_what_is_no_target_is_refused_by_the_name_of_its_key(text: str) -> None:
    with pytest.raises(ConfigError, match="each of routers"):
        parse(text, "each of routers")


def test_ipv6_addresses_get_brackets() -> None:
    assert (join("10.0.0.1", 7), join("fd00::1", 7)) == ("10.0.0.1:7", "[fd00::1]:7")
