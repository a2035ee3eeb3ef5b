"""What sessions of one trust group learn from each other, and those of two groups do not."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest

from outrider.engines.draft_calibration import DraftCalibration
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.speculation.learnt import BINDING_BYTES, KeptGroups, LearntConfig
from outrider.speculation.learnt_files import LearntKeeper
from services.edge.drafter.calibration import GroupLearning
from services.edge.drafter.drafter import Drafter
from services.edge.drafter.protocol import CommitTokens, DraftSource, DraftUpdate, OpenReply
from services.edge.drafter.settings import DrafterLimits
from services.edge.drafter.worker import LearntSaver

SECRET = [7, 8, 9, 10, 11, 12]
# Without room for the model: what is drafted was read.
INFO = FakeEngine(FakeOptions(vocabulary_size=32, block_tokens=2, num_blocks=1)).info


@pytest.mark.parametrize(
    ("teller", "listener", "hears"), [(b"a", b"a", True), (b"a", b"b", False), (b"", b"", False)]
)
def test_the_words_of_a_chat_are_drafts_within_its_group_alone(
    teller: bytes, listener: bytes, hears: bool
) -> None:
    limits = DrafterLimits(min_survival=0.05)
    drafter = Drafter(INFO, limits, DraftCalibration(), GroupLearning())
    for number in range(1, 21):
        said(drafter, number, SECRET, teller)
        drafter.close(number)
    drafts = said(drafter, 21, SECRET[:3], listener)
    assert bool(drafts) is hears
    for draft in drafts:
        assert list(draft.ids) == SECRET[draft.base :][: len(draft.ids)]


def test_how_often_drafts_are_right_is_known_within_a_group_alone() -> None:
    learned = GroupLearning(max_groups=2)
    fresh = learned.of(b"", are_sampled=False)[1].probability(DraftSource.MODEL, 0, 0.5)
    for _ in range(50):
        learned.of(b"a", are_sampled=False)[1].observe(DraftSource.MODEL, 0, 0.5, hit=False)
        learned.of(b"", are_sampled=False)[1].observe(DraftSource.MODEL, 0, 0.5, hit=False)

    def chance(group: bytes) -> float:
        return learned.of(group, are_sampled=False)[1].probability(DraftSource.MODEL, 0, 0.5)

    assert chance(b"a") < fresh == chance(b"b") == chance(b"")
    for group in range(10):
        learned.of(b"%d" % group, are_sampled=group % 2 > 0)
    assert len(learned._calibrations) <= 4 and len(learned._ngrams) <= 2, "bounded"
    assert chance(b"a") == fresh


def said(
    drafter: Drafter, number: int, reply: list[int], group: bytes, *, lasts: bool = False
) -> list[DraftUpdate]:
    """A chat, whose reply is this so far: the updates on it."""
    opening = OpenReply(number, (1, 2, 3), (), SamplingParams(), group=group, group_lasts=lasts)
    drafter.open(opening, 0.0)
    updates: list[DraftUpdate] = []
    for token in reply:
        assert drafter.schedule(0.0) is None
        updates += drafter.take_updates(0.0)
        drafter.commit(CommitTokens(number, (token,)), 0.0)
    return updates


def test_what_a_group_taught_is_there_after_a_restart() -> None:
    kept = KeptGroups(bytes(BINDING_BYTES), 32, 1 << 20)

    def started() -> Drafter:
        learning = GroupLearning(restore=kept.restore)
        return Drafter(
            INFO, DrafterLimits(min_survival=0.05), DraftCalibration(), learning, kept.admit
        )

    first = started()
    for number in range(1, 21):
        for group in (b"a", b"b"):
            said(first, number, SECRET, group, lasts=group == b"a")
            first.close(number)
    for _ in range(50):
        calibration = first.learning.of(b"a", are_sampled=False)[1]
        calibration.observe(DraftSource.MODEL, 0, 0.5, hit=False)
    copies = list(kept.changed(first.learning))
    assert [group for group, _ in copies] == [b"a"]
    for group, learnt in copies:
        kept.keep(*kept.packed(group, learnt))
    again = started()
    chances = [
        drafter.learning.of(b"a", are_sampled=False)[1].probability(DraftSource.MODEL, 0, 0.5)
        for drafter in (first, again)
    ]
    assert chances[1] == pytest.approx(chances[0], rel=1e-4)
    assert said(again, 1, SECRET[:3], b"a") and not said(again, 2, SECRET[:3], b"b")


def test_what_is_learnt_is_written_a_group_at_a_time(tmp_path: Path) -> None:
    def opened() -> tuple[LearntKeeper, Drafter]:
        keeper = LearntKeeper.open(tmp_path, bytes(BINDING_BYTES), 32, LearntConfig())
        learning = GroupLearning(restore=keeper.kept.restore)
        limits, admit = DrafterLimits(min_survival=0.05), keeper.kept.admit
        return keeper, Drafter(INFO, limits, DraftCalibration(), learning, admit)

    keeper, drafter = opened()
    saver = LearntSaver(keeper, drafter.learning, interval_s=60.0)
    for group in (b"a", b"b", b"c"):
        said(drafter, 1, SECRET, group, lasts=True)
        drafter.close(1)
    now = monotonic()
    saver.save_due(now, is_idle=True)
    saver.save_due(now + 61.0, is_idle=False)
    assert saver._written is None, "it is not due, or there is other work"
    saver.save_due(now + 61.0, is_idle=True)
    saver.finish(now + 600.0)
    assert len(list(tmp_path.rglob("*.learnt"))) == 3
    again, _ = opened()
    assert not any(again.kept.restore(group).is_empty for group in (b"a", b"b", b"c"))


def test_a_drafter_that_is_never_idle_saves_all_the_same(tmp_path: Path) -> None:
    keeper = LearntKeeper.open(tmp_path, bytes(BINDING_BYTES), 32, LearntConfig())
    limits = DrafterLimits(min_survival=0.05)
    drafter = Drafter(INFO, limits, DraftCalibration(), GroupLearning(), keeper.kept.admit)
    saver = LearntSaver(keeper, drafter.learning, interval_s=60.0)
    for group in (b"a", b"b"):
        said(drafter, 1, SECRET, group, lasts=True)
        drafter.close(1)
    late = monotonic() + 121.0
    for _ in range(2):
        saver.save_due(late, is_idle=False)
        assert saver._written is not None
        saver._written.result()
    assert len(list(tmp_path.rglob("*.learnt"))) == 2
    saver.save_due(late, is_idle=False)
    said(drafter, 1, SECRET, b"a", lasts=True)
    last = saver._written
    saver.save_due(late + 119.0, is_idle=False)
    assert saver._written is last, "the next saving is not due"
    saver.finish(late)


def test_a_copy_keeps_the_calibration_of_a_kind_of_reply_that_there_was_none_of() -> None:
    kept = KeptGroups(bytes(BINDING_BYTES), 32, 1 << 20)

    def chat(are_sampled: bool) -> GroupLearning:
        """After a start: a chat of this kind, and what it taught is saved."""
        kept._admitted.clear()
        kept.admit(b"a")
        learning = GroupLearning(restore=kept.restore)
        ngrams, calibration = learning.of(b"a", are_sampled=are_sampled)
        ngrams.learn([1], 2)
        for _ in range(50):
            calibration.observe(DraftSource.MODEL, 0, 0.5, hit=are_sampled)
        for group, learnt in kept.changed(learning):
            kept.keep(*kept.packed(group, learnt))
        return learning

    sampled = chat(True).of(b"a", are_sampled=True)[1].numbers()
    greedy = chat(False).of(b"a", are_sampled=False)[1].numbers()
    numbers = kept.restore(b"a").numbers
    assert numbers["calibration.sampled"] == pytest.approx(sampled, rel=1e-4)
    assert numbers["calibration.greedy"] == pytest.approx(greedy, rel=1e-4)
    assert sampled != greedy
