"""Where a reply ends, and which text it has."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyEnd, ReplyText, StopMatcher, reply_end

EOS = 0


class Bytes:
    """A detokenizer whose ids are bytes plus one; id 0 is the end token."""

    def __init__(self) -> None:
        self._pending = b""

    def push(self, id: int) -> str:
        self._pending += bytes([id - 1])
        try:
            text = self._pending.decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                raise
            return ""
        self._pending = b""
        return text

    def push_all(self, ids: Sequence[int]) -> str:
        return "".join(map(self.push, ids))

    def finish(self) -> str:
        text, self._pending = self._pending.decode(errors="replace"), b""
        return text


class Pieces:
    """A detokenizer that gives one piece of text per id, from 1."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = list(pieces)

    def push(self, id: int) -> str:
        return self._pieces[id - 1]

    def push_all(self, ids: Sequence[int]) -> str:
        return "".join(map(self.push, ids))

    def finish(self) -> str:
        return ""


def ids_of(text: str) -> list[int]:
    return [byte + 1 for byte in text.encode()]


def run(reply: ReplyText, ids: Iterable[int]) -> list[str]:
    texts = []
    for token in ids:
        texts.append(reply.push(token))
        if reply.finished:
            break
    return texts


@pytest.mark.parametrize(
    ("params", "ids", "texts", "finished"),
    [
        pytest.param({}, [*ids_of("hi"), EOS, 66], ["h", "i", ""], "stop", id="an end token"),
        pytest.param({"max_tokens": 2}, ids_of("abc"), ["a", "b"], "length", id="max_tokens"),
        pytest.param(
            {"max_tokens": 2}, ids_of("日"), ["", "\ufffd"], "length", id="inside a character"
        ),
        pytest.param(
            {"max_tokens": 2}, [*ids_of("a"), EOS], ["a", ""], "stop", id="an end at max_tokens"
        ),
        pytest.param(
            {"max_tokens": 3, "stop": ("bc",)},
            *(ids_of("abc"), ["a", "", ""], "stop"),
            id="a stop string at max_tokens",
        ),
        pytest.param(
            {"stop": ("END",)}, [*ids_of("EN"), EOS], ["", "", "EN"], "stop", id="held, then over"
        ),
        pytest.param(
            {"stop": ("END",), "max_tokens": 2},
            *(ids_of("END"), ["", "EN"], "length"),
            id="held, then max_tokens",
        ),
        # "aab" is held for the longer one when the shorter one inside it completes.
        pytest.param(
            {"stop": ("aabcd", "bc")},
            *(ids_of("aabcx"), ["", "", "", "aa"], "stop"),
            id="in the middle of held text",
        ),
        pytest.param(
            {"stop": ("。终",)},
            *(ids_of("好。终了"), ["", "", "好", *[""] * 6], "stop"),
            id="across tokens and characters",
        ),
    ],
)
def test_where_a_reply_ends_and_what_each_token_releases(
    params: dict[str, Any], ids: list[int], texts: list[str], finished: str
) -> None:
    reply = ReplyText(SamplingParams(**params), {EOS}, Bytes())
    assert run(reply, ids) == texts
    assert (reply.finished, reply.num_tokens) == (finished, len(texts))
    assert reply.flush() == ""


def test_ignore_eos_goes_on_but_not_past_own_stop_ids() -> None:
    params = SamplingParams(ignore_eos=True, stop_ids=(2,))
    reply = ReplyText(params, {1}, Pieces(["<eos>", "<two>", "c"]))
    assert run(reply, [3, 1, 3, 2]) == ["c", "<eos>", "c", ""]
    assert (reply.finished, reply.num_tokens) == ("stop", 4)


def test_a_token_that_goes_on_past_the_stop() -> None:
    reply = ReplyText(SamplingParams(stop=("\n\n",)), {EOS}, Pieces(["one\n", "\ntwo"]))
    assert run(reply, [1, 2]) == ["one", ""]
    assert reply.finished == "stop"


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.sets(st.integers(0, 5), max_size=2),
    st.integers(1, 12),
    st.booleans(),
)
def test_without_stop_strings_the_end_is_found_without_the_text(
    ids: list[int], own: set[int], max_tokens: int, ignore_eos: bool
) -> None:
    params = SamplingParams(max_tokens=max_tokens, stop_ids=tuple(own), ignore_eos=ignore_eos)
    end, text = reply_end(params, {EOS}, Bytes), ReplyText(params, {EOS}, Pieces("abcde"))
    assert isinstance(end, ReplyEnd)
    for token in ids:
        end.push(token)
        text.push(token)
        assert (end.finished, end.num_tokens) == (text.finished, text.num_tokens)
        if end.finished is not None:
            break


def test_stop_strings_need_the_text() -> None:
    end = reply_end(SamplingParams(stop=("b",)), {EOS}, Bytes)
    for token in (ord("a") + 1, ord("b") + 1):
        end.push(token)
    assert end.finished == "stop"


@given(st.text("ab", min_size=1, max_size=9), st.sampled_from([(), ("ab",), ("bb", "a")]))
def test_many_tokens_at_once_release_what_each_of_them_does(
    text: str, stop: tuple[str, ...]
) -> None:
    one, all_ = (ReplyText(SamplingParams(stop=stop, max_tokens=8), {EOS}, Bytes()) for _ in "12")
    released = run(one, ids_of(text))
    if one.finished is not None:  # the end's own text is asked for one by one
        all_.push_all(ids_of(text))
        assert all_.finished is not None
    else:
        assert all_.push_all(ids_of(text)) == "".join(released)
        assert (all_.finished, all_.num_tokens) == (one.finished, one.num_tokens)


@pytest.mark.parametrize(
    ("text", "stop_string"), [("xab", "ab"), ("xb", "b"), ("xcab", "cab"), ("xa", "")]
)
def test_the_stop_string_that_ended_a_reply_is_known(text: str, stop_string: str) -> None:
    reply = ReplyText(SamplingParams(stop=("b", "ab", "cab")), {EOS}, Bytes())
    run(reply, [*ids_of(text), EOS])
    assert reply.stop_string == stop_string


def test_text_that_may_begin_a_stop_is_held_and_released() -> None:
    reply = ReplyText(SamplingParams(stop=("END",)), {EOS}, Bytes())
    assert run(reply, ids_of("xENxEN")) == ["x", "", "", "ENx", "", ""]
    assert reply.flush() == "EN"


def test_flush_after_the_end_gives_nothing_twice() -> None:
    reply = ReplyText(SamplingParams(max_tokens=1, stop=("ab",)), {EOS}, Bytes())
    assert run(reply, ids_of("a")) == ["a"]
    assert reply.flush() == ""


def test_pushing_after_the_end_is_a_bug() -> None:
    reply = ReplyText(SamplingParams(max_tokens=1), {EOS}, Bytes())
    reply.push(65)
    with pytest.raises(AssertionError):
        reply.push(66)


@pytest.mark.parametrize("stops", [["ab", "b"], ["b", "ab"], ["b", "xab", "ab"]])
def test_of_stop_strings_that_end_together_the_longest_counts(stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    assert matcher.push("xxab") == "xxab"[: 4 - max(map(len, stops))]
    assert matcher.found


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3)


def naive_cut(text: str, stops: list[str]) -> str | None:
    """Text before the stop completed first, the longest of those; None without one."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)]
    return None


@given(stops=STOPS, pieces=st.lists(st.text("abc", max_size=6), max_size=12))
def test_stop_matching_is_the_naive_search(stops: list[str], pieces: list[str]) -> None:
    matcher, released, text = StopMatcher(stops), "", ""
    for piece in pieces:
        released += matcher.push(piece)
        text += piece
        cut = naive_cut(text, stops)
        assert matcher.found == (cut is not None)
        if cut is not None:
            assert released == cut
            return
        held = text[len(released) :]
        assert text.startswith(released)
        tails = [text[start:] for start in range(len(text) + 1)]
        longest = max(
            (tail for tail in tails if any(stop.startswith(tail) for stop in stops)), key=len
        )
        assert held == longest
    assert released + matcher.flush() == text
