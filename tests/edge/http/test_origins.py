"""Which pages may use an edge, and what their browsers are told."""

from __future__ import annotations

import pytest

from outrider.errors import ConfigError
from services.edge.http.config import HttpConfig
from services.edge.http.origins import AllowedOrigins

CHAT = "https://chat.example"
APP = "app://obsidian.md"
FIELDS = [(b"content-type", b"application/json"), (b"x-request-id", b"1"), (b"retry-after", b"2")]
SHOWN = (b"access-control-expose-headers", b"x-request-id, retry-after")


def preflight(origin: str, **headers: str) -> dict[str, str]:
    named = {f"access-control-request-{name}": value for name, value in headers.items()}
    return {"origin": origin, **named}


def test_nobody_is_allowed_where_nothing_is_said() -> None:
    assert HttpConfig().allowed_origins == ()
    none = AllowedOrigins()
    for origin in (CHAT, "null", "*", ""):
        assert not none.is_preflight("OPTIONS", preflight(origin, method="POST"))
        assert none.shared(origin, FIELDS) == []


def test_a_named_origin_is_told_by_its_name_and_may_bring_credentials() -> None:
    some = AllowedOrigins([CHAT, APP])
    for origin in (CHAT, APP):
        assert some.shared(origin, FIELDS) == [
            (b"vary", b"origin"),
            (b"access-control-allow-origin", origin.encode()),
            (b"access-control-allow-credentials", b"true"),
            SHOWN,
        ]


@pytest.mark.parametrize(
    "origin",
    [
        *("", "null", "*", "https://chat.example:8443", "http://chat.example"),
        *("https://chat.example.evil", "https://evil.chat.example", "https://chat.exampl"),
        *("https://chat.example/", "https://chat.example https://evil.example"),
    ],
)
def test_others_are_told_nothing_but_that_the_answer_depends_on_the_origin(origin: str) -> None:
    some = AllowedOrigins([CHAT, APP])
    assert some.shared(origin, FIELDS) == [(b"vary", b"origin")]
    assert not some.is_preflight("OPTIONS", preflight(origin, method="POST"))


def test_all_origins_are_allowed_without_credentials() -> None:
    every = AllowedOrigins(["*"])
    allowed = (b"access-control-allow-origin", b"*")
    assert every.shared("https://any.example", FIELDS) == [allowed, SHOWN]
    assert every.shared("null", FIELDS) == [allowed, SHOWN]
    assert every.shared("", FIELDS) == [allowed]
    assert every.is_preflight("OPTIONS", preflight("null", method="GET"))


def test_a_preflight_is_a_browsers_question() -> None:
    some = AllowedOrigins([CHAT])
    assert some.is_preflight("OPTIONS", preflight(CHAT, method="POST"))
    assert not some.is_preflight("POST", preflight(CHAT, method="POST"))
    assert not some.is_preflight("OPTIONS", preflight(CHAT))
    assert not some.is_preflight("OPTIONS", {"access-control-request-method": "POST"})


@pytest.mark.parametrize(
    ("wanted", "is_told"),
    [
        ("authorization,content-type,x-stainless-os", True),
        ("x-api-key, anthropic-dangerous-direct-browser-access", True),
        ("", False),
        ("a\r\nset-cookie: b", False),
        ("a,,b", False),
        ("a b", False),
    ],
)
def test_it_may_send_the_headers_that_it_asked_for(wanted: str, is_told: bool) -> None:
    asked = preflight(CHAT, method="POST", headers=wanted)
    told = dict(AllowedOrigins([CHAT]).preflight_answer(asked, ["POST", "GET"]))
    assert told.pop(b"access-control-allow-headers", None) == (wanted.encode() if is_told else None)
    assert told == {
        b"access-control-allow-methods": b"GET, POST",
        b"access-control-max-age": b"7200",
    }


@pytest.mark.parametrize(
    "origins",
    [
        *(["null"], [""], ["chat.example"], ["https://"], ["https://*.example"]),
        *(["https://chat.example/"], ["https://chat.example/app"], ["HTTPS://chat.example"]),
        *(["https://chat.example:443"], ["http://chat.example:80"], ["https://bücher.example"]),
        *(["https://a.example\r\nx: y"], ["*", CHAT], ["https://u:p@chat.example"]),
    ],
)
def test_what_is_no_origin_is_refused(origins: list[str]) -> None:
    with pytest.raises(ConfigError, match="allowed_origins"):
        HttpConfig(allowed_origins=tuple(origins))


def test_what_browsers_send_is_an_origin() -> None:
    for origin in (
        *(CHAT, APP, "*", "http://localhost:3000", "https://[2001:db8::1]:8443", "http://[::1]"),
        *("chrome-extension://abcdefghijklmnop", "vscode-webview://1a2b", "tauri://localhost"),
        *("https://xn--bcher-kva.example", "capacitor://localhost", "https://a.example:80"),
    ):
        assert HttpConfig(allowed_origins=(origin,)).allowed_origins == (origin,)
