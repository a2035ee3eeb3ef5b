"""Settings of the HTTP listener."""

from __future__ import annotations

from dataclasses import fields

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


@pytest.mark.parametrize(
    "name", [it.name for it in fields(HttpConfig) if it.type in ("int", "float")]
)
def test_values_that_cannot_work_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        HttpConfig(**{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{"port": -1}, {"port": 65536}, {"tls": "yes"}])
def test_odd_ports_and_words_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        HttpConfig(**bad)  # type: ignore[arg-type]
