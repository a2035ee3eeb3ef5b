"""What clients draft themselves, compared with what is final."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.edge.session.client_drafts import SOURCE, ClientDrafts
from services.edge.session.events import DrafterReport

REPLY = (5, 6, 7, 8, 9, 10)


def chain(report: DrafterReport | None) -> tuple[int, tuple[int, ...]] | None:
    return None if report is None else (report.base, report.ids)


def test_messages_of_an_epoch_extend_each_other() -> None:
    drafts = ClientDrafts(8)
    assert chain(drafts.take(0, 0, (5, 6))) == (0, (5, 6))
    report = drafts.take(0, 2, (7,))
    assert report == DrafterReport(0, (5, 6, 7), (1.0,) * 3, (SOURCE,) * 3)
    assert drafts.committed((5, 6)) == 2
    assert chain(drafts.take(0, 3, (8,))) == (2, (7, 8))
    assert (drafts.num_taken, drafts.num_ignored) == (4, 0)


def test_drafts_behind_a_wrong_one_are_ignored_until_the_next_epoch() -> None:
    drafts = ClientDrafts(8)
    drafts.take(0, 0, (5, 1, 2))
    assert drafts.committed((5, 6)) == 1
    assert drafts.take(0, 3, (3,)) is None
    assert drafts.num_ignored == 1
    assert chain(drafts.take(1, 2, (7, 8))) == (2, (7, 8))
    assert drafts.committed((7, 8, 9)) == 2


def test_a_client_that_is_behind_is_taken_at_its_word_where_it_was_right() -> None:
    drafts = ClientDrafts(8)
    drafts.committed((5, 6, 7))
    assert chain(drafts.take(1, 1, (6, 7, 8, 9))) == (3, (8, 9))
    assert (drafts.num_taken, drafts.num_ignored) == (2, 2)
    assert drafts.take(2, 1, (6, 1, 8)) is None
    assert drafts.num_ignored == 5
    # What is final by now is no draft any more, but what follows it is.
    assert drafts.take(3, 1, (6, 7)) is None
    assert chain(drafts.take(3, 3, (8,))) == (3, (8,))


def test_gaps_and_earlier_epochs_and_what_is_too_far_ahead_are_ignored() -> None:
    drafts = ClientDrafts(4)
    assert drafts.take(2, 1, (6,)) is None, "nothing is known of the token before"
    assert drafts.take(1, 0, (5,)) is None, "of an earlier epoch"
    assert chain(drafts.take(3, 0, (5, 6, 7, 8, 9, 10))) == (0, (5, 6, 7, 8))
    assert drafts.take(3, 4, (9,)) is None, "behind what was left out"
    assert (drafts.num_taken, drafts.num_ignored) == (4, 5)
    assert drafts.committed(REPLY) == 4


def test_a_client_that_comes_back_begins_behind_what_it_has() -> None:
    drafts = ClientDrafts(8, first=3)
    assert drafts.take(1, 2, (7,)) is None, "what it has is not known here"
    assert chain(drafts.take(2, 3, (8, 9))) == (3, (8, 9))
    assert drafts.committed((8,)) == 1 and drafts.upto == 4


@given(st.data())
def test_whatever_comes_is_counted_once_and_bounded(data: st.DataObject) -> None:
    reply = data.draw(st.lists(st.integers(0, 2), max_size=12))
    max_ahead = data.draw(st.integers(0, 5))
    drafts, committed, num_sent, num_accepted = ClientDrafts(max_ahead), 0, 0, 0
    for _ in range(data.draw(st.integers(0, 20))):
        if data.draw(st.booleans()):
            num = data.draw(st.integers(0, len(reply) - committed))
            ids = reply[committed : committed + num]
            accepted = drafts.committed(ids)
            assert 0 <= accepted <= num
            committed += num
            num_accepted += accepted
        else:
            epoch, base = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 12))
            ids = data.draw(st.lists(st.integers(0, 2), max_size=6))
            num_sent += len(ids)
            before = drafts.epoch
            report = drafts.take(epoch, base, ids)
            assert drafts.epoch == max(before, epoch)
            if report is not None:
                assert report.base == committed
                assert 0 < len(report.ids) <= max_ahead
        assert drafts.upto == committed
    assert drafts.num_taken + drafts.num_ignored == num_sent
    assert num_accepted <= drafts.num_taken


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(1, 8))
def test_who_knows_the_reply_has_all_of_it_accepted(sizes: list[int], ahead: int) -> None:
    """However late the client hears of commits, and however they are cut."""
    reply = list(range(sum(sizes)))
    drafts, told = ClientDrafts(ahead), 0
    for epoch, size in enumerate(sizes, start=1):
        drafts.take(epoch, told, reply[told : told + ahead])  # told late: of the commit before
        before = drafts.upto
        had = min(size, max(0, told + ahead - before))
        assert drafts.committed(reply[before : before + size]) == had
        told = before
