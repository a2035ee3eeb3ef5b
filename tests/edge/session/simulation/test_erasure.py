"""How much of the text a reader sees early, and how much of it is taken back."""

from __future__ import annotations

from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.edge.session.acceptance import Averages
from services.edge.session.display import DisplayPolicy
from tests.edge.session.simulation.circumstances import Circumstances
from tests.edge.session.simulation.reading import Reading

NE, SHOWN = 0.2, 0.35
NUM_TOKENS = 300


def at(
    seed: int, accuracy: float = 0.8, rtt_s: float = 0.1, draft_s: float = 0.005
) -> Circumstances:
    return Circumstances(
        accuracy=accuracy, seed=seed, rtt_s=rtt_s, draft_s=draft_s, num_tokens=NUM_TOKENS
    )


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    accuracy=st.sampled_from([0.75, 0.8, 0.9]),
    rtt_s=st.sampled_from([0.0, 0.05, 0.25]),
    draft_s=st.sampled_from([0.0, 0.002, 0.01]),
)
def test_calibrated_drafts_are_shown_early_and_seldom_taken_back(
    seed: int, accuracy: float, rtt_s: float, draft_s: float
) -> None:
    """At the thresholds that are served."""
    chat = Reading(at(seed, accuracy, rtt_s, draft_s)).run()
    assert chat.erasure < NE + 0.02, "one chat"
    chats = [chat, *(Reading(at(seed + n, accuracy, rtt_s, draft_s)).run() for n in (1, 2))]
    assert mean(chat.erasure for chat in chats) < NE
    assert mean(chat.shown_early for chat in chats) >= SHOWN


def test_overconfidence_is_corrected() -> None:
    averages = Averages()
    chats = [Reading(at(seed), averages=averages, boast=0.4).run() for seed in range(5)]
    assert mean(chat.erasure for chat in chats[1:]) < NE
    assert mean(chat.shown_early for chat in chats[1:]) >= SHOWN


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.9])
def test_threshold_is_a_choice_between_early_and_steady(threshold: float) -> None:
    bold = [Reading(at(seed), DisplayPolicy(threshold=threshold)).run() for seed in range(4)]
    calm = [Reading(at(seed), DisplayPolicy(threshold=threshold + 0.09)).run() for seed in range(4)]
    assert mean(chat.erasure for chat in calm) <= mean(chat.erasure for chat in bold) + 0.005


def test_without_a_bound_on_risk_very_right_drafts_fall_in_long_runs() -> None:
    """Which is why there is one: the runs that fall are as long as the chains are good."""
    boundless = DisplayPolicy(caution=0.0, max_risk=1e9)
    free = [Reading(at(seed, 0.95), boundless).run() for seed in range(4)]
    bound = [Reading(at(seed, 0.95)).run() for seed in range(4)]
    assert mean(chat.erasure for chat in free) > NE > 1.5 * mean(chat.erasure for chat in bound)
    assert mean(c.shown_early for c in bound) > 0.95 * mean(c.shown_early for c in free)


def test_caution_bounds_what_overconfidence_takes_back() -> None:
    free = [Reading(at(seed), DisplayPolicy(caution=0.0), boast=0.3).run() for seed in range(4)]
    cautious = [Reading(at(seed), boast=0.3).run() for seed in range(4)]
    assert mean(chat.erasure for chat in cautious) < mean(chat.erasure for chat in free)


def test_useless_drafts_are_not_shown() -> None:
    chat = Reading(at(1, accuracy=0.15)).run()
    assert chat.erasure < 0.1
    assert chat.shown_early < 0.1
