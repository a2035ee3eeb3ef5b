"""The host that a request asks for."""

import pytest

from outrider.host_names import host_of, is_loopback


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        *(("localhost", "localhost"), ("LocalHost:80", "localhost"), ("a.example.:1", "a.example")),
        *(("127.0.0.1:8080", "127.0.0.1"), ("[::1]", "::1"), ("[FE80::1]:9", "fe80::1")),
        *(("localhost:", "localhost"), ("", ""), (":80", ""), ("[::1", "")),
        *(("me@localhost", ""), ("a b", ""), ("localhost/x", ""), ("localhost:80:90", "")),
        *(("::1", ""), ("localhost\n", ""), ("localhost:٣", "")),
    ],
)
def test_the_host_is_what_stands_before_the_port(authority: str, host: str) -> None:
    assert host_of(authority) == host


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        *(("localhost", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True)),
        *(("0.0.0.0", False), ("192.0.2.1", False), ("localhost.example", False), ("", False)),
        *(("2130706433", False), ("::ffff:192.0.2.1", False), ("::1%lo", True)),
    ],
)
def test_loopback_is_localhost_and_its_addresses(host: str, is_here: bool) -> None:
    assert is_loopback(host) is is_here
