"""Whether a text is JSON, character by character: the answer is the standard library's."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from outrider.reply_parsing.json_scanner import MAX_DEPTH, JsonScanner, Progress

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)
TEXTS = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent),
    VALUES,
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)


def scanned(text: str) -> tuple[Progress, int]:
    """How a scanner ended with the text, and behind how many characters."""
    scanner = JsonScanner()
    for number, char in enumerate(text):
        progress = scanner.push(char)
        if progress is not Progress.MORE:
            return progress, number + (progress is Progress.WHOLE)
    return Progress.MORE, len(text)


@given(TEXTS)
def test_a_value_is_whole_where_it_ends(text: str) -> None:
    is_word = text[0] not in '{["'
    expected = Progress.PAST if is_word else Progress.WHOLE
    assert scanned(text + ",rest") == (expected, len(text))


@given(TEXTS, st.data())
def test_a_changed_text_is_json_exactly_if_the_library_says_so(
    text: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from(["", ",", '"', "\\", "}", "]", "{", "[", "e", "0", "-", "\n"]))
    changed = text[:at] + put + text[at + data.draw(st.integers(0, 1)) :]
    progress, end = scanned(changed + ",")
    try:
        _, expected = json.JSONDecoder().raw_decode(
            changed + ",", len(changed) - len(changed.lstrip(" \t\n\r"))
        )
    except ValueError:
        assert progress in (Progress.BROKEN, Progress.MORE)
        return
    # The library takes the longest number that it can read; here it has to end in a delimiter.
    if progress is Progress.BROKEN:
        assert changed[expected : expected + 1] not in ("", *",]} \t\n\r")
    else:
        assert (progress, end) == (Progress.WHOLE, expected) or (
            progress is Progress.PAST and changed[:end].strip() == changed[:expected].strip()
        )


def test_depth_and_numbers_are_bounded() -> None:
    assert scanned("[" * MAX_DEPTH + "]" * MAX_DEPTH)[0] is Progress.WHOLE
    assert scanned("[" * (MAX_DEPTH + 1))[0] is Progress.BROKEN
    assert scanned("1" * 10_000)[0] is Progress.BROKEN
