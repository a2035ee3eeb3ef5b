"""Edge chains by epoch, and what is believed of drafts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.speculation.suffix import SuffixDrafter
from outrider.speculation.verify import Verdict
from services.inference.scheduling.drafting import Acceptance, DraftSources, EdgeChain
from services.inference.scheduling.events import Drafts


def chain(*ids: int, epoch: int = 1, max_lead: int = 8) -> EdgeChain:
    made = EdgeChain(epoch, max_lead)
    made.receive(Drafts(epoch, 0, ids), [])
    return made


def test_frames_of_an_epoch_extend_each_other() -> None:
    edge = chain(1, 2)
    edge.receive(Drafts(1, 2, (3, 4)), [])
    assert edge.ids == [1, 2, 3, 4]


def test_a_frame_sent_twice_changes_nothing() -> None:
    edge = chain(1, 2, 3)
    edge.receive(Drafts(1, 1, (2, 3, 4)), [])
    assert edge.ids == [1, 2, 3, 4]


def test_a_newer_epoch_replaces_the_chain_and_an_older_one_is_dropped() -> None:
    edge = chain(1, 2)
    edge.receive(Drafts(3, 0, (7,)), [])
    edge.receive(Drafts(2, 0, (8, 9)), [])
    assert (edge.epoch, edge.ids) == (3, [7])


def test_late_drafts_count_from_where_the_reply_is_now() -> None:
    edge = chain()
    edge.receive(Drafts(1, 0, (1, 2, 3, 4)), [1, 2])
    assert edge.ids == [3, 4]


def test_drafts_wholly_behind_the_commits_are_agreed_or_fatal() -> None:
    edge = chain()
    edge.receive(Drafts(1, 0, (1,)), [1, 2])
    assert (edge.ids, edge.dead) == ([], False)
    edge.receive(Drafts(1, 1, (5,)), [1, 2])
    assert edge.dead


def test_the_prompt_is_not_part_of_the_reply() -> None:
    edge = chain()
    edge.receive(Drafts(1, 0, (1, 2, 3, 4)), [8, 9, 1, 2], 2)
    assert edge.ids == [3, 4]
    edge.receive(Drafts(1, 1, (9,)), [8, 9, 1, 2], 2)
    assert edge.dead


def test_an_overlap_that_disagrees_kills_the_epoch() -> None:
    edge = chain()
    edge.receive(Drafts(1, 0, (1, 9, 3)), [1, 2])
    assert (edge.ids, edge.dead) == ([], True)
    edge.receive(Drafts(1, 2, (3,)), [1, 2])
    assert edge.ids == []
    edge.receive(Drafts(2, 2, (3,)), [1, 2])
    assert (edge.ids, edge.dead) == ([3], False)


def test_an_epoch_that_contradicts_itself_dies() -> None:
    edge = chain(1, 2)
    edge.receive(Drafts(1, 1, (9,)), [])
    assert edge.dead


def test_the_lead_is_cut() -> None:
    edge = chain(1, 2, 3, 4, max_lead=3)
    assert edge.ids == [1, 2, 3]
    edge.advance([1, 2])
    edge.receive(Drafts(1, 3, (4, 5)), [1, 2])
    assert edge.ids == [3, 4, 5]


def test_a_gap_ends_the_epoch() -> None:
    edge = chain(1, 2, 3, 4, max_lead=3)
    edge.receive(Drafts(1, 4, (5,)), [])
    assert (edge.ids, edge.dead) == ([], True)
    edge = chain()
    edge.receive(Drafts(1, 1, (5,)), [])
    assert edge.dead


def test_an_epoch_without_its_beginning_is_dropped() -> None:
    """The first frame was lost and its tokens are committed: whether it was right is unknown."""
    edge = chain()
    edge.receive(Drafts(2, 2, (3, 4), continues=True), [1, 2])
    assert (edge.ids, edge.dead) == ([], True)
    edge.receive(Drafts(3, 2, (3, 4)), [1, 2])
    assert edge.ids == [3, 4]


def test_a_gap_that_commits_have_filled_ends_the_epoch_all_the_same() -> None:
    """The guess that was cut was wrong: the edge is in its next epoch and cannot resolve this."""
    edge = chain(1, 2, 3, 4, max_lead=3)
    assert edge.advance([1, 2, 3, 9]) == 3
    edge.receive(Drafts(1, 4, (5, 6)), [1, 2, 3, 9, 5])
    assert (edge.ids, edge.dead) == ([], True)
    assert edge.advance([6]) == 0


def test_commits_consume_the_chain_or_kill_it() -> None:
    edge = chain(1, 2, 3)
    assert edge.advance([1, 2]) == 2
    assert edge.ids == [3]
    assert edge.advance([4]) == 0
    assert edge.dead
    assert chain(1, 2).advance([1, 5]) == 1


def test_commits_past_the_chain_leave_the_epoch_alive() -> None:
    edge = chain(1)
    assert edge.advance([1, 2, 3]) == 1
    assert not edge.dead
    edge.receive(Drafts(1, 1, (2, 3, 4)), [1, 2, 3])
    assert edge.ids == [4]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 6), st.lists(st.integers(0, 1), max_size=5)),
        max_size=12,
    ),
    st.lists(st.integers(0, 1), max_size=6),
)
def test_a_chain_is_what_the_newest_epoch_said(
    frames: list[tuple[int, int, list[int]]], reply: list[int]
) -> None:
    """Against a naive map of positions, for an edge that keeps the rules."""
    edge, said, epoch, dead = EdgeChain(0, 100), dict[int, int](), 0, False
    end: int | None = None
    for number, base, ids in frames:
        known = {} if number > epoch else said
        agrees = all(known.get(base + i, token) == token for i, token in enumerate(ids))
        behind = end if end is not None and number == epoch else min(base, len(reply))
        if number >= epoch and not (agrees and base <= behind):
            continue
        edge.receive(Drafts(number, base, tuple(ids)), reply)
        if number < epoch:
            continue
        dead, end = dead and number == epoch, max(behind, base + len(ids))
        epoch, said = number, known
        wrong = any(reply[base + i : base + i + 1] not in ([], [t]) for i, t in enumerate(ids))
        dead = dead or wrong
        said.update({base + i: t for i, t in enumerate(ids) if base + i >= len(reply)})
        said = {} if dead else said
        assert edge.dead == dead
        assert edge.ids == [said[place] for place in sorted(said)]
    assert edge.epoch == epoch


def test_acceptance_follows_what_happens() -> None:
    rate = Acceptance(0.6)
    assert rate.rate == pytest.approx(0.6)
    for _ in range(60):
        rate.observe(4, 4)
    assert rate.rate > 0.95
    for _ in range(60):
        rate.observe(1, 0)
    assert rate.rate < 0.3


def sources(edge: EdgeChain | None, drafter: SuffixDrafter | None) -> DraftSources:
    made = DraftSources(edge, drafter, Acceptance(0.5))
    made.teach([1, 2, 3, 4, 1, 2], 100)
    return made


def test_the_edge_comes_first_and_the_region_goes_on_behind_it() -> None:
    proposal = sources(chain(3), SuffixDrafter()).propose(3)
    assert proposal.ids == (3, 4, 1)
    assert proposal.num_edge == 1
    assert proposal.survival[0] == pytest.approx(0.5)
    assert list(proposal.survival) == sorted(proposal.survival, reverse=True)


def test_the_region_drafts_when_no_edge_draft_is_ahead() -> None:
    proposal = sources(chain(), SuffixDrafter()).propose(2)
    assert (proposal.ids, proposal.num_edge) == ((3, 4), 0)


def test_sources_that_are_off_give_nothing() -> None:
    assert sources(None, None).propose(4).ids == ()
    assert sources(chain(9, 8, 7), None).propose(2).ids == (9, 8)
    assert sources(chain(9), SuffixDrafter()).propose(0).ids == ()


def test_the_region_drafts_only_when_it_has_seen_everything() -> None:
    made = DraftSources(chain(), SuffixDrafter(), Acceptance(0.5))
    ids = [1, 2, 3, 4, 1, 2]
    assert made.propose(2).ids == ()
    assert [made.teach(ids, 4), made.num_untaught(ids), made.propose(2).ids] == [4, 2, ()]
    assert [made.teach(ids, 4), made.num_untaught(ids), made.propose(2).ids] == [2, 0, (3, 4)]
    assert [made.teach([*ids, 3], 0), made.propose(2).ids] == [0, ()]
    assert [made.teach([*ids, 3], 9), made.propose(2).ids] == [1, (4, 1)]


def test_there_is_nothing_to_teach_without_a_drafter() -> None:
    made = DraftSources(chain(), None, Acceptance(0.5))
    assert (made.num_untaught([1, 2]), made.teach([1, 2], 9)) == (0, 0)


def test_a_new_session_is_believed_to_be_like_the_others() -> None:
    average = Acceptance(0.5)
    first = DraftSources(chain(1, 2, 3, 4), None, average)
    for _ in range(20):
        first.learn(4, 4, Verdict((1, 2, 3, 4), 4, ()))
    second = DraftSources(chain(1), None, average)
    assert second.propose(1).survival[0] == pytest.approx(average.rate)
    assert average.rate > 0.9
