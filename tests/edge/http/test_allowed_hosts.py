"""Names by which clients may ask for an edge."""

import pytest

from outrider.errors import ConfigError, InvalidRequestError, MisdirectedError
from services.edge.http.allowed_hosts import AllowedHosts
from services.edge.http.config import HttpConfig

HERE = "127.0.0.1"
LAN = "192.0.2.7"
NAMED = "chat.example"


def is_answered(
    authority: str,
    names: tuple[str, ...] = (),
    *,
    server: str = HERE,
    is_encrypted: bool = False,
    needs_key: bool = False,
) -> bool:
    try:
        AllowedHosts(names).check(
            [authority], server=server, is_encrypted=is_encrypted, needs_key=needs_key
        )
    except MisdirectedError:
        return False
    return True


@pytest.mark.parametrize("server", [HERE, "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_without_keys_a_loopback_address_is_asked_for_by_its_own_names(
    server: str, is_encrypted: bool
) -> None:
    for authority in ("localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080"):
        assert is_answered(authority, server=server, is_encrypted=is_encrypted)
    for authority in ("evil.example:8080", "localhost.evil.example", LAN, "", "me@localhost"):
        assert not is_answered(authority, server=server, is_encrypted=is_encrypted)
    assert is_answered("chat.example:8080", (NAMED,), server=server, is_encrypted=is_encrypted)


def test_without_keys_and_encryption_another_address_is_asked_for_by_number_or_a_known_name() -> (
    None
):
    for authority in (LAN, f"{LAN}:8080", "203.0.113.9", "localhost", "[2001:db8::1]:80"):
        assert is_answered(authority, server=LAN)
    assert not is_answered("evil.example", server=LAN)
    assert is_answered("CHAT.example.", (NAMED,), server=LAN)


def test_a_certificate_or_a_key_says_enough_unless_there_are_names() -> None:
    assert is_answered("any.example", server=LAN, is_encrypted=True)
    assert is_answered("any.example", needs_key=True)
    assert not is_answered("any.example", (NAMED,), server=LAN, is_encrypted=True)
    assert not is_answered("any.example", (NAMED,), needs_key=True)
    assert is_answered("any.example", ("*",))


def test_a_request_has_one_host_at_most() -> None:
    with pytest.raises(InvalidRequestError):
        AllowedHosts().check(["localhost"] * 2, server=HERE, is_encrypted=False, needs_key=True)
    AllowedHosts().check([], server=HERE, is_encrypted=False, needs_key=False)  # HTTP/1.0


@pytest.mark.parametrize(
    "names",
    [("https://a.example",), ("a.example:80",), ("A.example",), ("",), ("*", "a"), ("192.0.2.1",)],
)
def test_a_name_that_no_request_could_have_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="allowed_hosts"):
        HttpConfig(allowed_hosts=names)
