"""Settings of a Redis, as every service takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.redis_settings import RedisAddress, sealing_key, secret


@pytest.mark.parametrize(
    ("address", "wrong"),
    [
        (RedisAddress("http://h"), "use redis://"),
        (RedisAddress("redis://[::1"), "no URL"),
        (RedisAddress("redis://u:p@h:1"), "would be logged"),
        (RedisAddress("redis://h:1/0?db=2"), "options"),
        (RedisAddress("redis://h:1/0", ca=Path("/ca")), "no TLS"),
        (RedisAddress("redis://h:1/0", password="p"), "unencrypted"),
    ],
)
def test_addresses_that_cannot_be_right(address: RedisAddress, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong) as refused:
        address.check()
    assert address.url not in str(refused.value), "it may hold a password"


def test_a_password_goes_over_tls_or_the_loopback() -> None:
    for url in ("redis://localhost:1", "redis://127.0.0.1:1", "rediss://far:1"):
        address = RedisAddress(url, "u", "p")
        address.check()
        options = address.options(1.0, 2.0)
        assert (options["username"], options["password"]) == ("u", "p")
        assert address.is_tls == ("ssl_check_hostname" in options)


def test_secrets_come_from_settings_or_files(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 32 + "\n")
    assert secret("given", None, "a.key") == "given"
    assert sealing_key("", file, "a.key") == "k" * 32
    with pytest.raises(ConfigError, match=r"a\.key has 5 characters"):
        sealing_key("given", None, "a.key")
    with pytest.raises(ConfigError, match=r"a\.key_file .* cannot be read"):
        secret("", tmp_path / "none", "a.key")
