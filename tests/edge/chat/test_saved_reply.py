"""What an edge saves of a reply is read by another one as it was, or up to where it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.session.client import Accepted, Committed, Done
from outrider.session.types import FinishReason, Timings, Usage
from services.edge.chat import saved_reply
from services.edge.chat.replay import ReplayCursor, ReplayLog
from services.edge.chat.resumption_table import ChatKey
from services.edge.chat.saved_reply import ReplySaver, ReplySealer

SEALER = ReplySealer("a secret of edges")
NAME = SEALER.name(ChatKey(b"owner", "key"))
ACCEPTED = Accepted("request", "model", 7, template_date="2026-11-30")

COMMITS = st.lists(
    st.tuples(st.text(max_size=5), st.lists(st.integers(0, 1 << 17), max_size=5)), max_size=12
)


def done(reason: FinishReason = FinishReason.STOP) -> Done:
    return Done(reason, Usage(7, 3), Timings(), Timings(), 3, "region", "replica")


def sealed(saver: ReplySaver) -> list[bytes]:
    first = saver.num_saved
    return [SEALER.seal(NAME, first + n, it) for n, it in enumerate(saver.more())]


def told(log: ReplayLog) -> tuple[object, ...]:
    text = log.after(ReplayCursor()).text
    return log.accepted, log.ids, text, log.model_identity, log.is_inexact, log.done


def appended(log: ReplayLog, text: str, ids: list[int]) -> None:
    log.append(Committed(text, tuple(ids), log.upto + len(ids)))


@given(COMMITS, st.data(), st.booleans())
def test_a_log_is_read_as_it_was_saved(
    commits: list[tuple[str, list[int]]], data: st.DataObject, is_whole: bool
) -> None:
    log, pieces = ReplayLog(), []
    saver = ReplySaver(log)
    log.append(ACCEPTED)
    for text, ids in commits:
        appended(log, text, ids)
        if data.draw(st.booleans()):
            pieces += sealed(saver)
    if is_whole:
        log.append(done())
    pieces += sealed(saver)
    assert told(SEALER.log(NAME, pieces)) == told(log)
    assert saver.is_whole is is_whole and saver.num_saved == len(pieces)
    assert sealed(saver) == []


@given(COMMITS, st.data())
def test_a_log_is_read_up_to_what_is_not_genuine(
    commits: list[tuple[str, list[int]]], data: st.DataObject
) -> None:
    log, frames = ReplayLog(), []
    saver = ReplySaver(log)
    log.append(ACCEPTED)
    frames += saver.more()
    for text, ids in commits:
        appended(log, text, ids)
        frames += saver.more()
    pieces = [SEALER.seal(NAME, index, frame) for index, frame in enumerate(frames)]
    at = data.draw(st.integers(0, len(pieces) - 1))
    other = SEALER.name(ChatKey(b"owner", "another"))
    forged = data.draw(
        st.sampled_from(
            [
                b"",
                pieces[at][:-1],
                bytes(len(pieces[at])),
                SEALER.seal(NAME, at + 1, frames[at]),
                SEALER.seal(other, at, frames[at]),
                SEALER.seal(NAME, at, b"\xff"),
            ]
        )
    )
    found = SEALER.log(NAME, [*pieces[:at], forged, *pieces[at + 1 :]])
    assert told(found) == told(SEALER.log(NAME, pieces[:at]))


def test_pieces_that_do_not_follow_each_other_end_the_log() -> None:
    log = ReplayLog()
    saver = ReplySaver(log)
    appended(log, "ab", [1, 2])
    (first,) = saver.more()
    appended(log, "c", [3])
    (second,) = saver.more()
    gap = [SEALER.seal(NAME, 0, second), SEALER.seal(NAME, 1, first)]
    assert SEALER.log(NAME, gap).ids == ()


@pytest.mark.parametrize("reason", [FinishReason.DEADLINE, FinishReason.CANCELLED])
def test_an_end_that_may_be_asked_for_again_is_not_saved(reason: FinishReason) -> None:
    log = ReplayLog()
    saver = ReplySaver(log)
    appended(log, "ab", [1, 2])
    log.append(done(reason))
    found = SEALER.log(NAME, sealed(saver))
    assert (found.ids, found.done, saver.is_whole) == ((1, 2), None, False)


def test_what_is_saved_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_reply, "MAX_SAVED_BYTES", 100)
    log = ReplayLog()
    saver = ReplySaver(log)
    for token in range(100):
        appended(log, "word ", [token])
        saver.more()
    log.append(done())
    assert saver.more() == [] and not saver.is_whole
    assert saver.num_saved < 20


def test_names_differ_by_owner_key_and_secret() -> None:
    keys = [ChatKey(b"a", "bc"), ChatKey(b"ab", "c"), ChatKey(b"a", "b"), ChatKey(b"b", "b")]
    other = ReplySealer("another secret of edges")
    assert len({it.name(key) for key in keys for it in (SEALER, other)}) == 2 * len(keys)
    requests = {SEALER.request(SEALER.name(key), digest) for key in keys for digest in (b"", b"x")}
    assert len(requests) == 2 * len(keys)
    assert other.log(NAME, [SEALER.seal(NAME, 0, b"")]).accepted is None
