"""What keys look like, what is kept of them, and which are found."""

from __future__ import annotations

import hmac
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.access import api_keys
from outrider.access.api_keys import (
    ALL_MODELS,
    MAX_KEYS,
    SECRET_BYTES,
    UNKNOWN,
    ApiKey,
    KeyTable,
    Scope,
    assemble,
    digest_of,
    id_of,
    is_allowed,
    narrowed,
    of_row,
    to_row,
)
from outrider.errors import ConfigError, UnauthenticatedError
from outrider.session.types import Priority
from tests.api_keys import key_of, text_of

NAMES = st.lists(st.sampled_from(["a", "b", "c", "*"]), max_size=4).map(tuple)
KEYS = st.builds(
    key_of,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["", "acme"]),
    scopes=st.sets(st.sampled_from(Scope), min_size=1).map(frozenset),
    created=st.floats(0, 1e10),
    expires=st.none() | st.floats(0, 1e10),
    revoked=st.none() | st.floats(0, 1e10),
    max_priority=st.none() | st.sampled_from(Priority),
    models=NAMES,
)


@given(KEYS)
def test_what_is_written_is_read(key: ApiKey) -> None:
    assert of_row(to_row(key)) == key


def test_nothing_that_is_kept_or_logged_has_the_secret() -> None:
    key, text = key_of("a"), text_of("a")
    secret = text.rpartition("_")[2]
    assert secret not in str(to_row(key)) and secret not in repr(key) + str(key)
    assert key.digest not in repr(key)


@given(NAMES, NAMES, st.sampled_from("abc"))
def test_a_narrowed_list_allows_what_both_allow(
    names: tuple[str, ...], allowed: tuple[str, ...], one: str
) -> None:
    both = is_allowed(one, names) and is_allowed(one, allowed)
    assert is_allowed(one, narrowed(names, allowed)) == both


def test_an_empty_list_is_of_none() -> None:
    assert not is_allowed("a", ()) and is_allowed("a", ALL_MODELS)


@given(st.text(max_size=200) | st.binary(max_size=50).map(lambda it: it.decode("utf-8", "replace")))
def test_whatever_is_sent_is_unknown(text: str) -> None:
    with pytest.raises(UnauthenticatedError, match="not known"):
        KeyTable([key_of("a")]).find(text, 0.0)


def test_text_that_is_no_unicode_is_unknown_too() -> None:
    with pytest.raises(UnauthenticatedError):
        KeyTable([key_of("a")]).find("or_\ud800", 0.0)


@pytest.mark.parametrize(
    ("fields", "now", "says"),
    [
        ({}, 0.0, ""),
        ({"expires": 5.0}, 4.9, ""),
        ({"expires": 5.0}, 5.0, "has expired"),
        ({"revoked": 5.0}, 4.0, "was revoked"),
        ({"revoked": 5.0, "expires": 5.0}, 6.0, "was revoked"),
    ],
)
def test_a_key_in_each_state(fields: dict[str, Any], now: float, says: str) -> None:
    table = KeyTable([key_of("a", **fields), key_of("b")])
    if says:
        with pytest.raises(UnauthenticatedError, match=says):
            table.find(text_of("a"), now)
    else:
        assert table.find(text_of("a"), now).name == "a"
    assert table.find(text_of("b"), now).name == "b"


def test_all_refusals_without_the_secret_say_the_same() -> None:
    table = KeyTable([key_of("a", revoked=1.0), key_of("b", expires=1.0), key_of("c")])
    for name in ("a", "b", "c", "nobody's"):
        with pytest.raises(UnauthenticatedError) as refused:
            table.find(text_of(name)[:-2] + "zz", 2.0)
        assert refused.value.message == UNKNOWN


def test_an_unknown_id_costs_the_same_work_as_a_wrong_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every refusal hashes the text and compares two digests, whose lengths are the same."""
    table = KeyTable([key_of("a")])
    work: list[tuple[object, ...]] = []

    def hashed(text: str) -> str:
        work.append(("digest", len(text)))
        return digest_of(text)

    def compared(one: str, other: str) -> bool:
        work.append(("compare", len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(api_keys, "digest_of", hashed)
    monkeypatch.setattr(api_keys, "hmac", SimpleNamespace(compare_digest=compared))
    done = []
    for text in (
        text_of("a")[:-64] + "0" * 64,
        text_of("x"),
        "or_" + "x" * (len(text_of("a")) - 3),
    ):
        with pytest.raises(UnauthenticatedError):
            table.find(text, 0.0)
        done.append(tuple(work))
        work.clear()
    assert set(done) == {(("digest", len(text_of("a"))), ("compare", 64, 64))}


def test_the_table_is_bounded() -> None:
    one = key_of("a")
    keys = [ApiKey(f"{number:012x}", "a", one.digest, "a") for number in range(MAX_KEYS)]
    assert len(KeyTable(keys)) == MAX_KEYS
    with pytest.raises(ConfigError, match="at most 10000"):
        KeyTable([*keys, one])


@given(st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES))
def test_a_key_names_its_id(secret: bytes) -> None:
    text = assemble("0123456789ab", secret)
    assert id_of(text) == "0123456789ab" and len(digest_of(text)) == 64
    for other in (text + "0", text[:-1], f" {text}", text.upper(), text + "\n"):
        assert id_of(other) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"id": "x"},
        {"id": "G" * 12},
        {"name": ""},
        {"name": "two words"},
        {"name": "x" * 200},
        {"tenant": "\n"},
        {"digest": "0" * 63},
        {"digest": 1},
        {"scopes": []},
        {"scopes": ["chat", "root"]},
        {"scopes": "chat"},
        {"expires": "tomorrow"},
        {"expires": float("nan")},
        {"expires": True},
        {"expires": -1},
        {"expires": 1e300},
        {"max_priority": "top"},
        {"models": "a"},
        {"models": [1]},
        {"models": ["m"] * 257},
        {"colour": "red"},
    ],
)
def test_rows_that_are_no_keys(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        of_row(to_row(key_of("a")) | change)
    rows: list[object] = [None, [], "key", 1]
    for row in rows:
        with pytest.raises(ConfigError):
            of_row(row)
