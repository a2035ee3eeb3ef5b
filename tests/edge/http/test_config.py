"""Settings of the HTTP listener."""

from __future__ import annotations

import pytest

from outrider.errors import ConfigError
from services.edge.http.config import HttpConfig


def test_it_is_off_unless_a_port_is_given() -> None:
    assert HttpConfig().port is None


@pytest.mark.parametrize(
    ("host", "tls", "is_encrypted"),
    [
        ("127.0.0.1", "auto", False),
        ("::1", "auto", False),
        ("localhost", "auto", False),
        ("0.0.0.0", "auto", True),
        ("192.0.2.1", "auto", True),
        ("edge.example", "auto", True),
        ("192.0.2.1", "off", False),
        ("127.0.0.1", "on", True),
    ],
)
def test_only_loopback_is_clear_text_by_default(host: str, tls: str, is_encrypted: bool) -> None:
    assert HttpConfig(host=host, tls=tls).is_encrypted is is_encrypted


def test_odd_words_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"http\.tls"):
        HttpConfig(tls="yes")
