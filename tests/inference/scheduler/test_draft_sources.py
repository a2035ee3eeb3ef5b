"""Edge chains by epoch; how likely drafts are to be accepted; what trust groups learn."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.fake import FakeOptions
from outrider.sampling.constraint import Mask
from outrider.session.region import Commit, Draft
from outrider.speculation.learnt import NOTHING
from outrider.speculation.suffix_drafter import SuffixDrafter
from outrider.speculation.verification import Verification
from services.inference.scheduler.draft_sources import (
    FORCED_SURVIVAL,
    MAX_UNSEEN_TOKENS,
    DraftSources,
    EdgeAcceptance,
    EdgeChain,
    GroupStatisticsTable,
)
from tests.inference.scheduler.driver import Driver, prompts, request


def chain(*ids: int, epoch: int = 1, max_lead: int = 8) -> EdgeChain:
    made = EdgeChain(epoch, max_lead)
    made.receive(Draft(epoch, 0, ids), [])
    return made


@pytest.mark.parametrize(
    ("frames", "reply", "num_prompt", "ids", "is_dead"),
    [
        pytest.param([(1, 0, [1])], [1, 2], 0, [], False, id="behind the commits, and agreed"),
        pytest.param([(1, 1, [5])], [1, 2], 0, [], True, id="behind the commits, and wrong"),
        pytest.param([(1, 0, [1, 9, 3]), (1, 2, [3])], [1, 2], 0, [], True, id="partly wrong"),
        pytest.param([(1, 0, [1, 9]), (2, 2, [3])], [1, 2], 0, [3], False, id="a newer epoch"),
        pytest.param([(3, 0, [7]), (2, 0, [8, 9])], [], 0, [7], False, id="an older epoch"),
        pytest.param([(1, 0, [1, 2]), (1, 1, [9])], [], 0, [], True, id="contradicts itself"),
        pytest.param(
            [(1, 0, range(1, 10)), (1, 9, [5])], [], 0, [], True, id="behind what was cut"
        ),
        pytest.param([(1, 1, [5])], [], 0, [], True, id="a gap at the beginning"),
        pytest.param([(1, 0, [1, 2, 3])], [8, 9, 1, 2], 2, [3], False, id="behind a prompt"),
        pytest.param([(1, 1, [9])], [8, 9, 1, 2], 2, [], True, id="that the prompt agrees to"),
    ],
)
def test_what_a_chain_makes_of_frames(
    frames: list[tuple[int, int, Sequence[int]]],
    reply: list[int],
    num_prompt: int,
    ids: list[int],
    is_dead: bool,
) -> None:
    edge = chain()
    for epoch, base, guess in frames:
        edge.receive(Draft(epoch, base, tuple(guess)), reply, num_prompt)
    assert (edge.ids, edge.dead) == (ids, is_dead)


def test_an_epoch_without_its_beginning_is_dropped() -> None:
    """The first frame was lost and its tokens are committed: whether it was right is unknown."""
    edge = chain()
    edge.receive(Draft(2, 2, (3, 4), continues=True), [1, 2])
    assert (edge.ids, edge.dead) == ([], True)


def test_the_lead_is_cut() -> None:
    edge = chain(1, 2, 3, 4, max_lead=3)
    assert edge.ids == [1, 2, 3]
    edge.advance([1, 2])
    edge.receive(Draft(1, 3, (4, 5)), [1, 2])
    assert edge.ids == [3, 4, 5]


def test_a_gap_that_commits_have_filled_ends_the_epoch_all_the_same() -> None:
    """The guess that was cut was wrong: the edge is in its next epoch and cannot resolve this."""
    edge = chain(1, 2, 3, 4, max_lead=3)
    assert edge.advance([1, 2, 3, 9]) == 3
    edge.receive(Draft(1, 4, (5, 6)), [1, 2, 3, 9, 5])
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
    edge.receive(Draft(1, 1, (2, 3, 4)), [1, 2, 3])
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
        edge.receive(Draft(number, base, tuple(ids)), reply)
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
    rate = EdgeAcceptance(0.6)
    assert rate.rate == pytest.approx(0.6)
    for _ in range(60):
        rate.observe(4, 4)
    assert rate.rate > 0.95
    for _ in range(60):
        rate.observe(1, 0)
    assert rate.rate < 0.3


def sources(edge: EdgeChain | None, drafter: SuffixDrafter | None) -> DraftSources:
    made = DraftSources(edge, drafter, EdgeAcceptance(0.5))
    made.learn_prompt([1, 2, 3, 4, 1, 2], 100)
    return made


def test_the_region_goes_on_behind_the_edge() -> None:
    made = DraftSources(chain(3), SuffixDrafter(), EdgeAcceptance(0.9))
    made.learn_prompt([1, 2, 3, 4, 1, 2], 100)
    # As long as the edge's guess and what follows it are expected to bring more than the
    # region's own.
    proposal = made.propose(1)
    assert proposal.ids == (3,)
    assert proposal.survival[0] == pytest.approx(0.9)
    made = DraftSources(chain(3, 4), SuffixDrafter(), EdgeAcceptance(0.99))
    made.learn_prompt([1, 2, 3, 4, 1, 2], 100)
    proposal = made.propose(3)
    assert proposal.ids == (3, 4, 1)
    assert list(proposal.survival) == sorted(proposal.survival, reverse=True)


class Scripted:
    """A grammar that forces some ids and forbids others."""

    def __init__(self, forced: tuple[int, ...] = (), forbidden: tuple[int, ...] = ()) -> None:
        self._forced, self._forbidden = forced, forbidden
        self.allows_all = False

    def allowed(self) -> Mask:
        raise AssertionError("drafting needs no mask")

    def advance(self, token: int) -> None:
        raise AssertionError("drafting commits nothing")

    def prepare(self, drafts: Sequence[int]) -> None:
        raise AssertionError("drafting needs no mask")

    def num_valid(self, drafts: Sequence[int]) -> int:
        return next((n for n, i in enumerate(drafts) if i in self._forbidden), len(drafts))

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        return self._forced[:max_tokens]


def under(edge: EdgeChain | None, grammar: Scripted, *, forces: bool = True) -> DraftSources:
    """With a suffix drafter that has seen 1 2 3 4 1 2."""
    acceptance = EdgeAcceptance(0.9)
    made = DraftSources(edge, SuffixDrafter(), acceptance, grammar, drafts_forced=forces)
    made.learn_prompt([1, 2, 3, 4, 1, 2], 100)
    return made


def test_what_a_grammar_forces_comes_first() -> None:
    proposal = under(None, Scripted(forced=(8, 9))).propose(4)
    assert proposal.ids[:2] == (8, 9)
    assert proposal.survival[:2] == (FORCED_SURVIVAL, FORCED_SURVIVAL**2)
    assert under(None, Scripted(forced=(8, 9))).propose(1).ids == (8,)
    assert under(None, Scripted(forced=(8, 9)), forces=False).propose(1).ids == (3,)


def test_an_edge_that_agrees_with_what_is_forced_goes_on_behind_it() -> None:
    made = under(chain(8, 9, 5), Scripted(forced=(8, 9)))
    proposal = made.propose(3)
    assert proposal.ids == (8, 9, 5)
    assert proposal.survival[2] == pytest.approx(FORCED_SURVIVAL**2 * 0.9)
    assert made.num_edge_drafts == 3
    assert under(chain(8), Scripted(forced=(8, 9))).propose(2).ids == (8, 9)


def test_an_edge_that_contradicts_what_is_forced_is_not_verified() -> None:
    made = under(chain(8, 7, 5), Scripted(forced=(8, 9)))
    assert made.propose(2).ids == (8, 9)
    assert made.num_edge_drafts == 0


def test_drafts_that_a_grammar_forbids_are_not_proposed() -> None:
    assert under(chain(3, 5, 6), Scripted(forbidden=(5,))).propose(2).ids[:1] == (3,)
    assert 5 not in under(chain(3, 5, 6), Scripted(forbidden=(5,))).propose(4).ids
    assert under(None, Scripted(forbidden=(3,))).propose(2).ids == ()
    assert under(None, Scripted(forbidden=(4,))).propose(4).ids == (3,)
    assert 4 not in under(None, Scripted(forced=(3,), forbidden=(4,))).propose(4).ids


def offered(made: DraftSources, ids: tuple[int, ...], committed: tuple[int, ...]) -> None:
    """A round for which the edge had these ids; nothing of it is verified."""
    made.chain = chain(*ids)
    made.propose(4)
    made.observe(0, Verification(committed, 0, 0))


def test_the_source_with_more_expected_tokens_drafts() -> None:
    made = DraftSources(chain(50, 51), SuffixDrafter(), EdgeAcceptance(0.5))
    made.learn_prompt([1, 2, 3, 4, 1, 2], 100)
    assert made.propose(1).ids == (3,), "a copy, and an edge that is as often wrong as right"
    for _ in range(30):
        offered(made, (7,), (7,))
    made.chain = chain(50, 51)
    assert made.propose(2).ids == (50, 51)


def test_what_the_edge_guessed_is_learned_whether_it_was_verified_or_not() -> None:
    average = EdgeAcceptance(0.9)
    made = DraftSources(chain(), None, average)
    offered(made, (8, 9, 9), (8, 1, 9))
    assert average.rate == pytest.approx((0.9 * 4 * 0.95 + 1) / (4 * 0.95 + 2))
    rate = average.rate
    offered(made, (), (1,))
    assert average.rate == rate, "who had nothing to say was not wrong"


def test_a_call_without_a_proposal_says_nothing_of_the_edge() -> None:
    """As beside the end of another session's prompt."""
    average = EdgeAcceptance(0.9)
    made = DraftSources(chain(), None, average)
    offered(made, (8, 9), (8,))
    rate = average.rate
    made.observe(0, Verification((5,), 0, 0))
    assert average.rate == rate, "what was offered before it was not for this place"


def test_the_region_drafts_when_no_edge_draft_is_ahead() -> None:
    proposal = sources(chain(), SuffixDrafter()).propose(2)
    assert proposal.ids == (3, 4)


def test_sources_that_are_off_give_nothing() -> None:
    assert sources(None, None).propose(4).ids == ()
    assert sources(chain(9, 8, 7), None).propose(2).ids == (9, 8)
    assert sources(chain(9), SuffixDrafter()).propose(0).ids == ()


def test_the_region_drafts_only_when_it_has_seen_the_prompt() -> None:
    made = DraftSources(chain(), SuffixDrafter(), EdgeAcceptance(0.5))
    ids = [*range(1, MAX_UNSEEN_TOKENS + 4), 1, 2]
    assert made.propose(2).ids == ()
    assert [made.learn_prompt(ids, 4), made.num_unseen(ids), made.propose(2).ids] == [4, 33, ()]
    assert [made.learn_prompt(ids, 4), made.num_unseen(ids), made.propose(2).ids] == [4, 29, (3, 4)]
    assert [made.learn_prompt(ids, 4), made.num_unseen(ids)] == [0, 29]


def test_a_guess_looks_past_tokens_that_are_yet_to_be_learned() -> None:
    made = sources(None, SuffixDrafter())
    ids = [1, 2, 3, 4, 1, 2, 3]
    assert [made.learn_prompt(ids, 9), made.num_unseen(ids), made.propose(2).ids] == [0, 1, (4, 1)]
    made.update_estimates()
    assert [made.num_unseen(ids), made.learn_prompt(ids, 9), made.propose(2).ids] == [0, 0, (4, 1)]


@given(st.lists(st.integers(0, 3), min_size=12, max_size=60), st.data())
def test_what_is_learned_late_is_learned_all_the_same(ids: list[int], data: st.DataObject) -> None:
    """Whenever there is time to study, the guesses end up the same."""
    late, early = (DraftSources(None, SuffixDrafter(), EdgeAcceptance(0.5)) for _ in range(2))
    for end in range(8, len(ids)):
        for made in (late, early):
            made.learn_prompt(ids[:end], 100)
        early.update_estimates()
        if data.draw(st.booleans()):
            late.update_estimates()
    for made in (late, early):
        made.update_estimates()
        made.learn_prompt(ids, 100)
        made.update_estimates()
        made.learn_prompt(ids, 100)
    assert late.propose(6) == early.propose(6)


def test_there_is_nothing_to_teach_without_a_drafter() -> None:
    made = DraftSources(chain(), None, EdgeAcceptance(0.5))
    assert (made.num_unseen([1, 2]), made.learn_prompt([1, 2], 9)) == (0, 0)


def test_a_new_session_is_believed_to_be_like_the_others() -> None:
    average = EdgeAcceptance(0.5)
    first = DraftSources(chain(1, 2, 3, 4), None, average)
    for _ in range(20):
        offered(first, (1, 2, 3, 4), (1, 2, 3, 4))
    second = DraftSources(chain(1), None, average)
    assert second.propose(1).survival[0] == pytest.approx(average.rate)
    assert average.rate > 0.9


def drafting_sources(*, edge: bool = False) -> DraftSources:
    chain = EdgeChain(0, 8) if edge else None
    return DraftSources(chain, SuffixDrafter(), EdgeAcceptance(0.5))


def grown(source: DraftSources, text: list[int], *, ask_drafter: bool) -> list[tuple[int, ...]]:
    """What it proposes as the text grows token by token."""
    proposals = []
    for end in range(1, len(text)):
        source.learn_prompt(text[:end], 512)
        proposals.append(source.propose(4, ask_drafter=ask_drafter).ids)
        source.update_estimates()
    return proposals


def test_nothing_is_proposed_unasked_and_little_is_left_unlearned() -> None:
    draw = random.Random(5)
    text = [draw.randrange(4) for _ in range(300)]
    source = drafting_sources()
    assert set(grown(source, text, ask_drafter=False)) == {()}
    assert source.num_unseen(text) <= MAX_UNSEEN_TOKENS // 2


def test_a_drafter_asked_after_many_calls_proposes_what_one_asked_always_does() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 6
    never, always = drafting_sources(), drafting_sources()
    grown(never, text, ask_drafter=False)
    grown(always, text, ask_drafter=True)
    for source in (never, always):
        source.learn_prompt(text, 512)
    assert never.propose(4).ids == always.propose(4).ids == (1, 2, 3, 4)


def test_the_edges_chain_is_offered_without_asking_the_drafter() -> None:
    source = drafting_sources(edge=True)
    source.learn_prompt([1, 2, 3], 512)
    assert source.chain is not None
    source.chain.ids = [7, 8]
    assert source.propose(4, ask_drafter=False).ids == (7, 8)


OPTIONS = FakeOptions(min_rows=2, repetition=0.0, fixed_ms=8.0, row_ms=0.1, num_blocks=64)


def commits(salt: bytes, *, num_before: int) -> list[Commit]:
    """Of a chat that others of group "a" have had before."""
    driver = Driver(OPTIONS)
    for number in range(num_before):
        driver.open(request(number, cache_salt=b"a", region_drafts=True))
        driver.finish()
    peer = driver.open(request(99, cache_salt=salt, region_drafts=True))
    driver.finish()
    return peer.commits


def test_a_reply_is_drafted_from_those_of_its_group() -> None:
    told = commits(b"a", num_before=4)
    assert len(told) < 0.7 * len(commits(b"a", num_before=0))


@pytest.mark.parametrize("salt", [b"b", b""])
def test_for_another_group_it_is_drafted_as_in_an_empty_house(salt: bytes) -> None:
    busy, empty = commits(salt, num_before=4), commits(salt, num_before=0)
    assert [(c.base, c.accepted, c.ids) for c in busy] == [
        (c.base, c.accepted, c.ids) for c in empty
    ]


def test_how_good_edges_are_is_known_of_their_group_alone() -> None:
    driver = Driver(OPTIONS)
    for number, prompt in enumerate(prompts(6)):
        wrong = Draft(0, 0, (5, 5, 5))
        driver.open(request(number, prompt, cache_salt=b"a", drafts=wrong))
        driver.finish()
    statistics = driver.scheduler._statistics
    assert (
        statistics.of(b"a").edge_acceptance.rate
        < statistics.of(b"b").edge_acceptance.rate
        == statistics.of(b"").edge_acceptance.rate
    )


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.scheduler.draft_sources.MAX_SALTS", 3)
    statistics = GroupStatisticsTable()
    first = statistics.of(b"1").edge_acceptance
    for group in range(1, 5):
        statistics.of(b"%d" % group)
    assert len(statistics._acceptances) == 3 and statistics.of(b"1").edge_acceptance is not first


def test_the_rate_of_a_groups_edges_is_kept() -> None:
    table = GroupStatisticsTable()
    for _ in range(20):
        table.of(b"a").edge_acceptance.observe(3, 0)
    learnt = table.learnt_of(b"a")
    again = GroupStatisticsTable(restore=lambda group: learnt if group == b"a" else NOTHING)
    rates = [it.of(b"a").edge_acceptance.rate for it in (table, again)]
    assert rates[0] == pytest.approx(rates[1]) and rates[0] < 0.2
    assert again.of(b"b").edge_acceptance.rate > 0.5
    assert (again.version_of(b"a"), table.version_of(b"a")) == (0, 20)
