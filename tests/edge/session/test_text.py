"""Final and provisional text over one decoder: characters and stop strings across tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import MalformedFrameError
from outrider.sampling.params import SamplingParams
from services.edge.session.text import ReplyFront
from tests.edge.session.toolkit import EOS, TABLE, new_reply

E_ACUTE = (12, 13)
TRAIN = (15, 16)


def front(**sampling: object) -> ReplyFront:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    return ReplyFront(new_reply(params), lambda token: TABLE[token], params.stop)


def test_provisional_text_continues_an_unfinished_character() -> None:
    text = front()
    assert text.commit(E_ACUTE[:1]) == ("", [(0, 1)])
    outlook = text.outlook(1, (E_ACUTE[1], 2), (0.9, 0.8), False)
    assert (outlook.text, outlook.ends) == ("é cat", (1, 5))
    assert text.commit(E_ACUTE[1:]) == ("é", [(0, 1)])


def test_a_draft_that_ends_inside_a_character_adds_only_whole_ones() -> None:
    outlook = front().outlook(0, TRAIN, (0.9, 0.8), False)
    assert (outlook.text, outlook.ends) == (" 🚂", (1, 2))


def test_an_outlook_changes_nothing() -> None:
    text = front()
    text.commit((1,))
    before = text.outlook(1, (2, 12), (0.9, 0.9), False)
    assert text.outlook(1, (2, 12), (0.9, 0.9), False) == before
    assert text.commit((2,)) == (" cat", [(4, 8)])


def test_text_held_back_for_a_stop_string_leads_the_outlook() -> None:
    text = front(stop=("STOP",))
    assert text.commit((1, 18)) == (" the", [(0, 4), (4, 6)])
    outlook = text.outlook(2, (20,), (0.9,), False)
    assert (outlook.text, outlook.ends) == ("ST!", (3,))
    assert text.commit((20,)) == ("ST!", [(6, 7)])


def test_the_outlook_ends_before_a_stop_string() -> None:
    outlook = front(stop=("STOP",)).outlook(0, (1, 18, 19, 2), (0.9,) * 4, False)
    assert (outlook.text, outlook.ends, outlook.final) == (" the", (4, 4, 4, 4), True)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=12),
    st.lists(st.integers(1, 20), max_size=6),
    st.sampled_from([(), ("STOP",), ("e c", "!")]),
)
def test_resumed_ids_leave_what_committed_ones_leave(
    ids: list[int], more: list[int], stop: tuple[str, ...]
) -> None:
    one, other = front(stop=stop, max_tokens=10), front(stop=stop, max_tokens=10)
    try:
        text, _ = one.commit(ids)
    except MalformedFrameError:
        with pytest.raises(MalformedFrameError):
            other.resume(ids)
        return
    assert (other.resume(ids), other.finished) == (text, one.finished)
    for token in more:
        if one.finished:
            break
        assert other.outlook(0, (token,), (0.9,), False) == one.outlook(0, (token,), (0.9,), False)
        assert other.commit((token,)) == one.commit((token,))
    assert other.finish() == one.finish()


def test_ids_past_the_end_are_refused() -> None:
    text = front()
    assert text.commit((1, EOS)) == (" the", [(0, 4), (4, 4)])
    assert text.finished
    with pytest.raises(MalformedFrameError):
        text.commit((2,))


def test_finish_releases_what_was_held_back() -> None:
    text = front(stop=("STOP",))
    text.commit((1, 18))
    assert text.finish() == "ST"
