"""The display policy: what is shown, where it is cut, and how seldom it is rewritten."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import MalformedFrameError
from outrider.models.detokenizer import Detokenizer
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.session.client import Provisional, Retracted
from services.edge.session.display import Display, DisplayPolicy, DraftText, ReplyDecoder, word_end
from tests.edge.session.toolkit import EOS, TABLE, new_reply

PLAIN = DisplayPolicy(threshold=0.5, rewrite_burst=1)


def plain(policy: DisplayPolicy = PLAIN) -> Display:
    """Without a threshold of its own for first tokens."""
    return Display(policy, first_tokens=0)


def draft_text(*pieces: tuple[str, float], base: int = 10, final: bool = False) -> DraftText:
    text, ends = "", []
    for piece, _ in pieces:
        text += piece
        ends.append(len(text))
    return DraftText(base, text, tuple(ends), tuple(p for _, p in pieces), final)


@pytest.mark.parametrize(
    ("text", "limit", "final", "end"),
    [
        (" hello", 6, False, 1),
        (" hello", 6, True, 6),
        (" hello world", 6, False, 6),
        (" hello world", 9, False, 7),
        ("lo, you", 2, False, 2),
        ("don't go", 4, False, 0),
        ("猫が好き", 2, False, 2),
        ("end.", 4, False, 4),
        ("e\u0301 a", 1, False, 0),
        ("👩\u200d🚀!", 1, False, 0),
        ("👩\u200d🚀!", 3, False, 3),
        ("", 0, True, 0),
    ],
)
def test_text_is_cut_where_a_word_ends(text: str, limit: int, final: bool, end: int) -> None:
    assert word_end(text, limit, final) == end


def test_shows_the_longest_likely_prefix() -> None:
    display = plain()
    shown = display.show(draft_text((" the", 0.9), (" cat", 0.6), (" sat", 0.4), (" on", 0.3)), 0.0)
    assert shown == Provisional(10, 0, " the cat", 0.6)
    assert display.shown == " the cat"


def test_a_reply_may_begin_inside_a_word_that_is_long_in_coming() -> None:
    display = Display(DisplayPolicy(threshold=0.5, max_risk=2.1), first_tokens=4)
    letters = [("", 0.9), ("Д", 0.8), ("", 0.7), ("ж", 0.6)]
    assert display.show(draft_text(*letters[:3], base=0), 0.0) is None
    assert display.show(draft_text(*letters, base=0), 0.0) == Provisional(0, 0, "Дж", 0.6)
    more = [*letters, ("", 0.5), ("п", 0.5), (" ", 0.5)]
    assert display.show(draft_text(*more, base=0), 0.0) == Provisional(0, 2, "п", 0.5)
    later = Display(DisplayPolicy(threshold=0.5), first_tokens=4)
    assert later.show(draft_text(*letters, base=8), 0.0) is None, (
        "behind the first tokens words end"
    )


def test_the_first_tokens_may_have_a_threshold_of_their_own() -> None:
    bold = DisplayPolicy(first_threshold=0.3, max_risk=9.0)
    pieces = ((" the", 0.4), (" cat", 0.3), (" sat", 0.29), (" on", 0.28))
    shown = Display(bold, 2).show(draft_text(*pieces, base=0), 0.0)
    assert shown == Provisional(0, 0, " the cat", 0.3)
    assert Display(bold, 2).show(draft_text(*pieces, base=5), 0.0) is None


def test_the_first_tokens_are_as_many_as_the_policy_says() -> None:
    bold = DisplayPolicy(first_threshold=0.3, max_risk=9.0)
    cat = (" cat", 0.4), (" ", 0.4)
    assert Display(bold, 4).show(draft_text(*cat, base=3), 0.0) == Provisional(3, 0, " cat", 0.4)
    assert Display(bold, 4).show(draft_text(*cat, base=4), 0.0) is None


@pytest.mark.parametrize(("base", "least"), [(0, 0.5), (5, 0.6)])
def test_by_default_nothing_is_shown_that_is_rather_wrong_than_right(
    base: int, least: float
) -> None:
    pieces = ((" the", least - 0.01), (" cat", 0.48), (".", 0.47))
    assert Display(DisplayPolicy(), 4).show(draft_text(*pieces, base=base), 0.0) is None
    likelier = ((" the", least), *pieces[1:])
    shown = Display(DisplayPolicy(), 4).show(draft_text(*likelier, base=base), 0.0)
    assert shown == Provisional(base, 0, " the", least)


def stayed(display: Display) -> bool | None:
    """What is known of the first shown word by now."""
    return display.first_word_stayed


def test_what_becomes_of_the_first_word_is_known() -> None:
    pieces = ((" the", 0.9), (" cat", 0.8), (".", 0.8))
    right, wrong, gone, early = (plain() for _ in range(4))
    for display in (right, wrong, gone, early):
        assert stayed(display) is None
        display.show(draft_text(*pieces), 0.0)
    right.confirm(" th", False, 1.0)
    assert stayed(right) is None, "its last letter is still to come"
    right.confirm("e dog", True, 1.0)
    assert stayed(right) is True
    assert (right.shown_chars, right.erased_chars) == (9, 4)
    wrong.confirm(" thin", True, 1.0)
    assert stayed(wrong) is False
    wrong.show(draft_text(*pieces), 9.0)
    wrong.confirm(" the", False, 9.0)
    assert stayed(wrong) is False, "there is one first word"
    gone.forget()
    gone.confirm(" a", True, 1.0)
    assert stayed(gone) is None, "nobody saw what became of it"
    early.clear(1.0)
    assert stayed(early) is False


def test_a_blank_before_a_word_to_come_is_not_shown() -> None:
    display = plain()
    shown = display.show(draft_text((" the", 0.9), (" cat", 0.4)), 0.0)
    assert shown == Provisional(10, 0, " the", 0.9)


def test_a_line_break_has_to_be_likelier_than_a_word() -> None:
    pieces = ((" end.", 0.95), ("\n", 0.65), ("Then", 0.6), (" we", 0.55), (".", 0.3))
    display = plain(replace(PLAIN, max_risk=9.0))
    assert display.show(draft_text(*pieces), 0.0) == Provisional(10, 0, " end.", 0.95)
    sure = tuple((text, 0.72 if text == "\n" else p) for text, p in pieces)
    assert display.show(draft_text(*sure), 0.0) == Provisional(10, 5, "\nThen we", 0.55)
    assert display.show(draft_text(*pieces[:1], ("\n", 0.6), *pieces[2:4], (".", 0.5)), 0.0) == (
        Provisional(10, 13, ".", 0.5)
    ), "one that is shown does not hold up the rest"


def test_long_chains_are_shown_as_far_as_the_risk_is_borne() -> None:
    pieces = tuple((f" w{n}", 0.97**n) for n in range(1, 20))
    bold = plain(replace(PLAIN, max_risk=1e9))
    shown = bold.show(draft_text(*pieces), 0.0)
    assert shown is not None and shown.text.count(" w") == 18
    shown = plain().show(draft_text(*pieces), 0.0)
    assert shown is not None
    assert shown.text.count(" w") == 7, "of which one is expected to fall"


def test_tokens_shown_and_taken_back_are_counted() -> None:
    display = plain()
    display.show(draft_text((" the", 0.9), (" cat", 0.8), (" sat", 0.7), (".", 0.7)), 0.0)
    display.confirm(" the", False, 1.0)
    assert (display.shown_tokens, display.erased_tokens) == (1, 0)
    display.confirm(" cat lay", True, 1.0)
    assert (display.shown_tokens, display.erased_tokens) == (2, 2)
    display.show(draft_text((" down", 0.9), (".", 0.9)), 2.0)
    display.clear(2.0)
    assert (display.shown_tokens, display.erased_tokens) == (2, 4)
    display.show(draft_text((" down", 0.9), (".", 0.9)), 3.0)
    display.forget()
    display.confirm(" down.", False, 3.0)
    assert (display.shown_tokens, display.erased_tokens) == (2, 4), "who had not seen it, has not"


def test_growth_appends_only() -> None:
    display = plain()
    display.show(draft_text((" the", 0.9), (" cat", 0.8), (".", 0.1)), 0.0)
    more = display.show(draft_text((" the", 0.9), (" cat", 0.8), (".", 0.7)), 0.0)
    assert more == Provisional(10, 8, ".", 0.7)
    assert display.show(draft_text((" the", 0.9)), 0.0) is None, (
        "a fallen estimate takes nothing back"
    )


@pytest.mark.parametrize(
    ("text", "diverged", "retract", "left"),
    [
        (" the", False, None, " cat."),
        (" the cat. And", False, None, ""),
        (" the dog", True, Retracted(5), ""),
        (" the dog", False, Retracted(5), ""),  # what is shown may be of drafts that are no more
        (" the", True, Retracted(4), ""),
    ],
)
def test_a_commit_confirms_or_retracts(
    text: str, diverged: bool, retract: Retracted | None, left: str
) -> None:
    display = plain()
    display.show(draft_text((" the", 0.9), (" cat", 0.8), (".", 0.7)), 0.0)
    assert display.confirm(text, diverged, 1.0) == retract
    assert display.shown == left
    if retract is not None:
        assert (display.erased_chars, display.num_retractions) == (9 - retract.erase_to, 1)


def test_after_a_rewrite_nothing_new_is_shown_for_a_while() -> None:
    display = plain()
    display.show(draft_text((" the", 0.9), (".", 0.9)), 0.0)
    display.confirm(" a", True, 1.0)
    again = draft_text((" cat", 0.9), (".", 0.9))
    assert display.quiet_until == pytest.approx(1.15)
    assert display.show(again, 1.14) is None
    assert display.show(again, 1.15) == Provisional(10, 0, " cat.", 0.9)


def test_clear_leaves_nothing_behind() -> None:
    display = plain()
    assert display.clear(0.0) is None
    display.show(draft_text((" the", 0.9), (".", 0.9)), 0.0)
    assert display.clear(0.0) == Retracted(0)
    assert display.shown == ""


def test_some_rewrites_may_come_close_together() -> None:
    display = plain(replace(PLAIN, rewrite_burst=3))
    for number, quiet_until in enumerate((0.85, 1.0, 1.15)):
        assert display.show(draft_text((" the", 0.9), (".", 0.9)), 1.0) is not None, number
        display.confirm(" a", True, 1.0)
        assert display.quiet_until == pytest.approx(quiet_until)
    assert display.show(draft_text((" the", 0.9), (".", 0.9)), 1.14) is None


@given(st.integers(1, 4), st.data())
def test_rewrites_are_limited_in_every_span_of_time(burst: int, data: st.DataObject) -> None:
    policy = replace(PLAIN, rewrite_burst=burst)
    display, now, rewrites = plain(policy), 0.0, list[float]()
    words = st.sampled_from([" the", " cat", " a", ".", "lo"])
    for _ in range(data.draw(st.integers(1, 30))):
        now += data.draw(st.sampled_from([0.0, 0.01, 0.1, 0.2]))
        if data.draw(st.booleans()):
            pieces = data.draw(st.lists(words, max_size=4))
            # What is shown is a part of every later text of drafts until a draft proves wrong.
            start = ((display.shown, 1.0),) if display.shown else ()
            display.show(draft_text(*start, *((p, 0.9) for p in pieces)), now)
        else:
            text = data.draw(words)
            wrong = not display.shown.startswith(text[: len(display.shown)])
            if display.confirm(text, wrong or data.draw(st.booleans()), now) is not None:
                rewrites.append(now)
    for first, last in itertools.combinations(range(len(rewrites)), 2):
        passed_s = rewrites[last] - rewrites[first]
        most = burst + passed_s / (policy.rewrite_interval_ms / 1000)
        assert last - first + 1 <= most + 1e-9


E_ACUTE = (12, 13)
TRAIN = (15, 16)


def decoder(**sampling: object) -> ReplyDecoder:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    return ReplyDecoder(new_reply(params), lambda token: TABLE[token], params.stop)


def test_provisional_text_continues_an_unfinished_character() -> None:
    text = decoder()
    assert text.commit(E_ACUTE[:1]) == ""
    drafted = text.draft_text(1, (E_ACUTE[1], 2), (0.9, 0.8), False)
    assert (drafted.text, drafted.ends) == ("é cat", (1, 5))
    assert text.commit(E_ACUTE[1:]) == "é"


def test_a_draft_that_ends_inside_a_character_adds_only_whole_ones() -> None:
    drafted = decoder().draft_text(0, TRAIN, (0.9, 0.8), False)
    assert (drafted.text, drafted.ends) == (" 🚂", (1, 2))


def test_the_space_that_a_vocabulary_puts_in_front_is_not_shown() -> None:
    """Neither in drafts nor in what is committed, and only the first one."""
    params = SamplingParams()
    reply = ReplyText(params, (), Detokenizer(TABLE, strips_space=True))
    text = ReplyDecoder(reply, lambda token: TABLE[token], params.stop, strips_space=True)
    drafted = text.draft_text(0, (2, 2), (0.9, 0.8), False)
    assert (drafted.text, drafted.ends) == ("cat cat", (3, 7))
    assert text.commit((2,)) == "cat"
    assert text.draft_text(1, (2,), (0.9,), False).text == " cat"
    assert text.commit((2,)) == " cat"


def test_the_text_of_drafts_changes_nothing() -> None:
    text = decoder()
    text.commit((1,))
    before = text.draft_text(1, (2, 12), (0.9, 0.9), False)
    assert text.draft_text(1, (2, 12), (0.9, 0.9), False) == before
    assert text.commit((2,)) == " cat"


def test_text_held_back_for_a_stop_string_leads_the_text_of_drafts() -> None:
    text = decoder(stop=("STOP",))
    assert text.commit((1, 18)) == " the"
    drafted = text.draft_text(2, (20,), (0.9,), False)
    assert (drafted.text, drafted.ends) == ("ST!", (3,))
    assert text.commit((20,)) == "ST!"


def test_the_text_of_drafts_ends_before_a_stop_string() -> None:
    drafted = decoder(stop=("STOP",)).draft_text(0, (1, 18, 19, 2), (0.9,) * 4, False)
    assert (drafted.text, drafted.ends, drafted.final) == (" the", (4, 4, 4, 4), True)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=12),
    st.lists(st.integers(1, 20), max_size=6),
    st.sampled_from([(), ("STOP",), ("e c", "!")]),
)
def test_resumed_ids_leave_what_committed_ones_leave(
    ids: list[int], more: list[int], stop: tuple[str, ...]
) -> None:
    one, other = decoder(stop=stop, max_tokens=10), decoder(stop=stop, max_tokens=10)
    try:
        text = one.commit(ids)
    except MalformedFrameError:
        with pytest.raises(MalformedFrameError):
            other.resume(ids)
        return
    assert (other.resume(ids), other.finished) == (text, one.finished)
    for token in more:
        if one.finished:
            break
        assert other.draft_text(0, (token,), (0.9,), False) == one.draft_text(
            0, (token,), (0.9,), False
        )
        assert other.commit((token,)) == one.commit((token,))
    assert other.finish() == one.finish()


def test_ids_past_the_end_are_refused() -> None:
    text = decoder()
    assert text.commit((1, EOS)) == " the"
    assert text.finished
    with pytest.raises(MalformedFrameError):
        text.commit((2,))


def test_finish_releases_what_was_held_back() -> None:
    text = decoder(stop=("STOP",))
    text.commit((1, 18))
    assert text.finish() == "ST"
