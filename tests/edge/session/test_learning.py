"""What an edge learns of one model: within a group, across restarts, with and without tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.speculation.calibration import POSITION_BEGINS, Platt, SourceCalibrations
from outrider.speculation.learnt import KeptGroups, Learnt, binding_of, row_of
from outrider.speculation.ngrams import NgramPrior, pack
from services.edge.session.acceptance import MAX_SOURCES, DraftOutcome
from services.edge.session.draft_sources import PHRASE_SOURCE, CopyDrafter, DrafterNeeds
from services.edge.session.learning import EdgeLearning

REPLY = list(range(100, 140))
BINDING = binding_of(b"model")


def opened(kept: KeptGroups | None = None, *, has_drafter: bool = False) -> EdgeLearning:
    kept = kept or KeptGroups(BINDING, 1000, 1 << 20)
    return EdgeLearning(512, is_drafted_for=lambda: has_drafter, restore=kept.restore)


def chat(learning: EdgeLearning, group: bytes, prompt: int, reply: list[int]) -> int:
    """A greedy chat, token by token; how many of them the edge's own draft had right."""
    drafter = learning.new_drafter(DrafterNeeds(group, 1))
    drafter.extend([prompt])
    averages = learning.averages(group)
    right = 0
    for position, token in enumerate(reply):
        guess = drafter.draft_after((), 1)
        drafter.extend([token])
        if guess.ids:
            hit = guess.ids[0] == token
            right += hit
            chance = guess.survival[0]
            averages.acceptance.observe(
                [DraftOutcome(guess.sources[0], position, 0, chance, hit, first_wrong=not hit)]
            )
            averages.calibrations(sampled=False).observe(guess.sources[0], chance, position, hit)
    return right


def restarted(learning: EdgeLearning, *groups: bytes, **options: bool) -> EdgeLearning:
    """The same edge after a restart, if these groups' names last."""
    kept = KeptGroups(BINDING, 1000, 1 << 20)
    for group in groups:
        kept.admit(group)
    for group, learnt in kept.changed(learning):
        kept.keep(*kept.packed(group, learnt))
    return opened(kept, **options)


def test_a_model_without_tables_is_drafted_for_from_its_groups_earlier_replies() -> None:
    learning = opened()
    rights = [chat(learning, b"a", prompt, REPLY) for prompt in range(6)]
    assert rights[0] == 0, "nothing repeats within the chat"
    assert rights[-1] > 0.9 * len(REPLY)
    assert chat(learning, b"b", 6, REPLY) == chat(learning, b"", 7, REPLY) == 0


def test_where_a_drafter_process_learns_phrases_chats_copy_their_own_text_alone() -> None:
    learning = opened(has_drafter=True)
    assert [chat(learning, b"a", prompt, REPLY) for prompt in range(4)] == [0] * 4
    drafter = learning.new_drafter(DrafterNeeds(b"a", 1))
    drafter.extend([1, 2, 3, 1, 2])
    assert drafter.draft_after((), 1).sources == (CopyDrafter.SOURCE,)


def test_a_chat_learns_phrases_again_once_the_drafter_is_given_up() -> None:
    is_usable = [True]
    learning = EdgeLearning(512, is_drafted_for=lambda: is_usable[0])
    assert [chat(learning, b"a", prompt, REPLY) for prompt in range(3)] == [0] * 3
    is_usable[0] = False
    assert [chat(learning, b"a", prompt, REPLY) for prompt in range(6)][-1] > 0.9 * len(REPLY)


def test_only_the_edges_own_sources_use_what_is_shipped() -> None:
    lines = tuple(Platt(-2.0, 0.7) for _ in POSITION_BEGINS)
    shipped = SourceCalibrations(greedy=dict.fromkeys(("copy", "suffix", "model"), lines))
    known = EdgeLearning(512, shipped=shipped).averages(b"a").calibrations(sampled=False)
    for source in ("copy", PHRASE_SOURCE, "suffix", "model", "both"):
        expected = lines[0].chance(0.6) if source in ("copy", PHRASE_SOURCE) else 0.6
        assert known.chance(source, 0.6, 0) == pytest.approx(expected)


def test_a_shipped_prior_is_where_every_group_begins() -> None:
    prior = NgramPrior([{7: pack(8, 4)}])
    learning = EdgeLearning(512, prior)
    drafter = learning.new_drafter(DrafterNeeds(b"a", 1))
    drafter.extend([7])
    assert drafter.draft_after((), 1).ids == (8,)


@pytest.mark.parametrize("has_drafter", [False, True])
def test_what_was_learnt_is_there_after_a_restart(has_drafter: bool) -> None:
    learning = opened(has_drafter=has_drafter)
    looping = [1, 2, 3, 4] * 12
    for prompt in range(6):
        chat(learning, b"a", prompt + 20, looping)
    learning.averages(b"a").own_tokens.observe(3)
    again = restarted(learning, b"a", has_drafter=has_drafter)
    before, after = learning.averages(b"a"), again.averages(b"a")
    assert after.acceptance.survival(8) == pytest.approx(before.acceptance.survival(8), rel=1e-4)
    assert after.acceptance.sources == before.acceptance.sources
    assert after.own_tokens.tokens == pytest.approx(before.own_tokens.tokens, rel=1e-4)
    for source in before.acceptance.sources:
        for position in POSITION_BEGINS:
            chances = [
                it.calibrations(sampled=False).chance(source, 0.6, position)
                for it in (before, after)
            ]
            assert chances[1] == pytest.approx(chances[0], rel=1e-4)
    if not has_drafter:
        assert chat(again, b"a", 50, looping) > chat(opened(), b"a", 50, looping)
    assert restarted(learning, b"b").averages(b"a").acceptance.sources == ()


def test_a_copy_keeps_the_phrases_that_a_drafter_process_learns_now() -> None:
    before = opened()
    for prompt in range(6):
        chat(before, b"a", prompt, REPLY)
    meanwhile = restarted(before, b"a", has_drafter=True)
    meanwhile.averages(b"a").acceptance.observe([])
    after = restarted(meanwhile, b"a")
    assert not len(meanwhile._ngrams), "none are made for a copy, which could drop another group's"
    assert chat(after, b"a", 50, REPLY) > 0.9 * len(REPLY)


def test_groups_whose_names_do_not_last_are_not_there_after_a_restart() -> None:
    learning = opened()
    for prompt in range(6):
        chat(learning, b"a", prompt, REPLY)
    assert chat(restarted(learning), b"a", 50, REPLY) == 0


CHATS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c"]),
        st.lists(st.integers(1, 6), min_size=1, max_size=10),
    ),
    max_size=10,
)


@given(CHATS, st.booleans())
def test_nothing_crosses_from_group_to_group(
    chats: list[tuple[bytes, list[int]]], restarts: bool
) -> None:
    """Group "a" ends up with the same numbers and drafts whether others were there or not."""
    crowded, alone = opened(), opened()
    for group, reply in chats:
        chat(crowded, group, 9, reply)
        if group == b"a":
            chat(alone, group, 9, reply)
    if restarts:
        crowded, alone = restarted(crowded, b"a", b"b", b"c"), restarted(alone, b"a")
    assert crowded.averages(b"a").numbers() == alone.averages(b"a").numbers()
    for reply in [reply for _, reply in chats]:
        assert chat(crowded, b"a", 9, reply) == chat(alone, b"a", 9, reply)


def test_groups_are_bounded() -> None:
    learning = EdgeLearning(512, max_groups=3, max_entries=1000)
    for number in range(20):
        chat(learning, bytes([number + 1]), 1, REPLY)
    assert len(learning._averages) == 3
    assert len(learning._ngrams) <= 3 and learning._ngrams.num_entries <= 1000


ODD = st.dictionaries(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(
            ["acceptance.x.0", "acceptance.x.9", "acceptance..1", "acceptance.", "own_tokens"]
        ),
        st.sampled_from(["platt.greedy.x", "platt.sampled.", "hit_rates.greedy", "chains.greedy"]),
    ),
    st.lists(st.floats(-1e12, 1e12), max_size=20).map(tuple),
    max_size=30,
)


@given(ODD)
def test_numbers_that_nothing_wrote_do_no_harm(numbers: dict[str, tuple[float, ...]]) -> None:
    learning = EdgeLearning(512, restore=lambda group: Learnt((), numbers))
    chat(learning, b"a", 1, REPLY[:6])
    averages = learning.averages(b"a")
    assert all(0.0 <= chance <= 1.0 for chance in averages.acceptance.survival(9))
    assert len(averages.acceptance.sources) <= MAX_SOURCES + 1
    assert 0.0 < averages.calibrations(sampled=False).chance(PHRASE_SOURCE, 0.5, 0) < 1.0
    assert row_of(averages.numbers(), "own_tokens", 2, 0.0, 1e9) is not None
