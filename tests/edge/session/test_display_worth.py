"""Whether chats are drafted for, by what became of what was shown: in chats, not in seconds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.edge.session.display_worth import DisplayWorth, Drafting, Shown, WorthPolicy

RTT_S = 0.1
GOOD = Shown(100, 50, 5, 5.0)
"""50 ms sooner on average; of what was shown 10 of 11 stayed."""
USELESS = Shown(100, 1, 0, 0.05)
"""0.5 ms sooner: hardly anything was likely enough to be shown."""
WRONG = Shown(100, 20, 40, 3.0)
"""30 ms sooner, but two of three shown tokens were taken back."""
POLICY = WorthPolicy()


def chats(worth: DisplayWorth, shown: Shown, count: int) -> list[Drafting]:
    """So many, one after the other; of those that are drafted for this is what comes."""
    found = []
    for _ in range(count):
        drafting = worth.begin(RTT_S, sampled=False)
        found.append(drafting)
        if drafting is not Drafting.OFF:
            worth.ended(RTT_S, shown, sampled=False)
    return found


def test_it_stays_on_where_words_stay_and_come_sooner() -> None:
    assert chats(DisplayWorth(), GOOD, 500) == [Drafting.ON] * 500


@given(st.sampled_from([USELESS, WRONG]), st.integers(500, 3000))
def test_it_ends_where_it_brings_nothing_and_costs_little_from_then_on(
    bad: Shown, count: int
) -> None:
    found = chats(DisplayWorth(), bad, count)
    num_first = found.index(Drafting.OFF)
    assert num_first == 3, "256 tokens of 100 each"
    assert Drafting.ON not in found[num_first:]
    # Each vain decision takes three trials, and doubles the chats between two of them.
    trials = found.count(Drafting.TRIAL)
    assert 0 < trials <= 3 * 5 + count / POLICY.last_trial


def test_it_begins_again_when_words_stay_again() -> None:
    worth = DisplayWorth()
    chats(worth, USELESS, 1000)
    assert not worth.is_on(RTT_S, sampled=False)
    found = chats(worth, GOOD, 3 * POLICY.last_trial)
    assert found[-1] is Drafting.TRIAL or found[-1] is Drafting.ON
    assert worth.is_on(RTT_S, sampled=False)
    assert chats(worth, GOOD, 100) == [Drafting.ON] * 100


def test_an_outlier_changes_nothing() -> None:
    worth = DisplayWorth()
    chats(worth, GOOD, 30)
    for _ in range(20):
        assert chats(worth, USELESS, 1) == [Drafting.ON]
        chats(worth, GOOD, 4)
    assert worth.is_on(RTT_S, sampled=False)


def test_a_reply_without_provisional_text_decides_by_its_tokens_alone() -> None:
    worth = DisplayWorth()
    for _ in range(3):
        assert worth.begin(RTT_S, sampled=False) is Drafting.ON
        worth.ended(RTT_S, Shown(100), sampled=False)
    assert worth.begin(RTT_S, sampled=False) is Drafting.OFF


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.1)),
        max_size=300,
    )
)
def test_it_never_flaps(outcomes: list[tuple[int, float, float, float]]) -> None:
    """Whatever comes: between two changes lie as many tokens as a decision takes, and it begins and
    ends by means that are apart."""
    worth, was_on, since = DisplayWorth(), True, Shown()
    for num_final, shown, stayed, sooner_s in outcomes:
        if worth.begin(RTT_S, sampled=False) is Drafting.OFF:
            continue
        num_shown = num_final * shown
        num_stayed = num_shown * stayed
        outcome = Shown(num_final, num_stayed, num_shown - num_stayed, num_stayed * sooner_s)
        worth.ended(RTT_S, outcome, sampled=False)
        since = since.plus(outcome)
        is_on = worth.is_on(RTT_S, sampled=False)
        if is_on != was_on:
            assert since.num_final >= POLICY.min_tokens
            since = Shown()
        was_on = is_on


@given(st.lists(st.floats(2.2, 3.8), max_size=200), st.booleans())
def test_between_both_thresholds_nothing_changes(sooner_ms: list[float], begins_off: bool) -> None:
    worth = DisplayWorth()
    if begins_off:
        chats(worth, USELESS, 10)
    before = worth.is_on(RTT_S, sampled=False)
    for each in sooner_ms:
        if worth.begin(RTT_S, sampled=False) is not Drafting.OFF:
            worth.ended(RTT_S, Shown(100, 55, 45, each / 10), sampled=False)
        assert worth.is_on(RTT_S, sampled=False) == before


@given(st.lists(st.tuples(st.sampled_from([None, 0.002, 0.03, 0.1, 0.4]), st.booleans())))
def test_other_distances_and_kinds_are_judged_apart(
    others: list[tuple[float | None, bool]],
) -> None:
    worth = DisplayWorth()
    chats(worth, USELESS, 3)
    for rtt_s, sampled in others:
        is_same = rtt_s == RTT_S and not sampled
        assert worth.is_on(rtt_s, sampled=sampled) is not is_same
