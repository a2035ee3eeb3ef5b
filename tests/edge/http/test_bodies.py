"""Bodies of requests: whatever is no JSON of the right shape is refused, and not told back."""

from __future__ import annotations

import msgspec
import pytest

from outrider.errors import InvalidRequestError
from services.edge.http.bodies import read


class Body(msgspec.Struct):
    text: str = ""
    number: int = 0
    raw: msgspec.Raw = msgspec.Raw(b"null")
    by_id: dict[int, int] = {}


decode = msgspec.json.Decoder(Body).decode


def test_a_body_is_read() -> None:
    assert read(decode, '{"text": "é", "more": 1}'.encode()) == Body("é")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"text": "\\ud800"}', "not valid JSON"),
        (b'{"text": "sesame\xff"}', "not UTF-8"),
        (b'{"raw": ["sesame\xff"]}', "not UTF-8"),
        (b'{"ignored": "sesame\xff"}', "not UTF-8"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"number": "sesame"}', "number: Expected `int`, got `str`"),
        (b'{"by_id": {"sesame": 1}}', "by_id: Expected `int`, got `str`"),
        (b'{"ignored": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        read(decode, data)
    assert "sesame" not in caught.value.message
    named = [name for name in ("number", "by_id") if name.encode() in data]
    assert caught.value.metadata.get("param") == (named[0] if named else None)
