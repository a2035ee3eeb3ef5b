"""The suffix drafter against quadratic searches."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.speculation.suffix_automaton import SuffixAutomaton
from outrider.speculation.suffix_drafter import DraftTokens, SuffixDrafter

TEXTS = st.lists(st.integers(0, 2), max_size=60)
LARGER_TEXTS = st.lists(st.integers(0, 9), max_size=120)


def ends_of(needle: Sequence[int], text: Sequence[int]) -> list[int]:
    size = len(needle)
    starts = range(len(text) - size + 1)
    return [start + size - 1 for start in starts if list(text[start : start + size]) == needle]


def earlier_match(text: list[int]) -> tuple[int, list[int]]:
    """Length of the longest suffix that occurred before, and where its occurrences end."""
    for size in range(len(text) - 1, 0, -1):
        ends = ends_of(text[-size:], text[:-1])
        if ends:
            return size, ends
    return 0, []


def match_after(text: list[int], tentative: list[int]) -> tuple[int, list[int]]:
    """The same for text + tentative, occurrences within the text."""
    whole = text + tentative
    for size in range(len(whole), 0, -1):
        ends = ends_of(whole[-size:], text)
        if ends:
            return size, ends
    return 0, []


def copied(whole: list[int], end: int, count: int) -> tuple[int, ...]:
    known = list(whole)
    for at in range(end + 1, end + 1 + count):
        known.append(known[at])
    return tuple(known[len(whole) :])


@settings(max_examples=100)
@given(text=st.one_of(TEXTS, LARGER_TEXTS))
def test_the_longest_earlier_suffix_is_found_after_every_token(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for at, token in enumerate(text):
        automaton.append(token)
        length, ends = earlier_match(text[: at + 1])
        assert automaton.match_length == length
        if length:
            assert automaton.match_end in ends
            assert automaton.match_end < at


@settings(max_examples=100)
@given(text=st.one_of(TEXTS, LARGER_TEXTS), count=st.integers(0, 20))
def test_a_draft_copies_what_followed_an_earlier_occurrence(text: list[int], count: int) -> None:
    drafter = SuffixDrafter()
    drafter.extend(text)
    guess = drafter.draft_after((), count)
    length, ends = earlier_match(text)
    if not length:
        assert guess == DraftTokens()
    else:
        assert guess.ids in {copied(text, end, count) for end in ends}


@settings(max_examples=100)
@given(
    text=st.one_of(TEXTS, LARGER_TEXTS),
    tentative=st.lists(st.integers(0, 3), max_size=8),
    count=st.integers(0, 12),
)
def test_a_draft_after_tentative_ids_copies_and_keeps_nothing(
    text: list[int], tentative: list[int], count: int
) -> None:
    drafter = SuffixDrafter()
    drafter.extend(text)
    before = drafter.draft_after((), 8)
    guess = drafter.draft_after(tentative, count)
    length, ends = match_after(text, tentative) if tentative else earlier_match(text)
    if not length:
        assert guess == DraftTokens()
    else:
        assert guess.ids in {copied(text + tentative, end, count) for end in ends}
    assert drafter.draft_after((), 8) == before


@given(text=TEXTS, tentative=st.lists(st.integers(0, 3), max_size=4))
def test_survival_is_a_falling_probability_per_draft(text: list[int], tentative: list[int]) -> None:
    drafter = SuffixDrafter()
    drafter.extend(text)
    guess = drafter.draft_after(tentative, 10)
    assert len(guess.survival) == len(guess.ids)
    assert all(0.0 <= chance <= 1.0 for chance in guess.survival)
    assert list(guess.survival) == sorted(guess.survival, reverse=True)


@given(text=LARGER_TEXTS, cut=st.integers(0, 120))
def test_how_ids_are_split_over_calls_does_not_matter(text: list[int], cut: int) -> None:
    whole, parts = SuffixDrafter(), SuffixDrafter()
    whole.extend(text)
    parts.extend(text[:cut])
    parts.extend(text[cut:])
    whole.update_statistics()
    parts.update_statistics()
    assert whole.draft_after((), 10) == parts.draft_after((), 10)


@given(text=LARGER_TEXTS)
def test_studying_early_or_late_comes_to_the_same(text: list[int]) -> None:
    early, late = SuffixDrafter(), SuffixDrafter()
    for token in text:
        early.extend([token])
        early.update_statistics()
        early.update_statistics()
        late.extend([token])
    late.update_statistics()
    assert early.draft_after((), 10) == late.draft_after((), 10)


@given(text=st.lists(st.integers(0, 2), min_size=1, max_size=120), half=st.integers(1, 20))
def test_memory_is_bounded_and_the_recent_half_is_known(text: list[int], half: int) -> None:
    drafter = SuffixDrafter(max_context=2 * half)
    for at, token in enumerate(text, start=1):
        drafter.extend([token])
        known = drafter._automaton.text
        assert len(known) < 2 * half
        assert len(known) >= min(at, half)
        assert known == text[at - len(known) : at]


def test_the_latest_occurrence_wins() -> None:
    drafter = SuffixDrafter()
    drafter.extend([1, 2, 5, 1, 2, 6, 1, 2, 7, 1, 2])
    assert drafter.draft_after((), 1).ids == (7,)


def test_survival_follows_what_was_observed() -> None:
    """In text where copies after a pair are always wrong, they are soon trusted less."""
    repeats, breaks = SuffixDrafter(), SuffixDrafter()
    repeats.extend([1, 2, 3, 4] * 30)
    for fresh in range(200):
        breaks.extend([1, 2, 1000 + fresh])
    assert repeats.draft_after((), 4).survival[3] > 0.6
    assert sum(breaks.draft_after([1, 2], 1).survival) < 0.1
