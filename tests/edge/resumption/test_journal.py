"""Journals: however a reply was committed and however much of it a client has, it gets the rest."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outrider.session_types import FinishReason, Timings, Usage
from services.edge.resumption.journal import Journal, Listener
from services.edge.session.actions import Accepted, ClientEvent, Commit, Done, Provisional

ACCEPTED = Accepted("r", "m", 3)


def done(upto: int) -> Done:
    return Done(FinishReason.STOP, upto, Usage(), Timings(), Timings(), "", "")


# A reply is tokens with their texts; a commit groups some of them, and the text may lag behind.
Pieces = list[tuple[int, str]]
pieces = st.lists(st.tuples(st.integers(0, 49_151), st.text(max_size=3)), max_size=30)


def commits_of(reply: Pieces, cuts: set[int]) -> list[Commit]:
    edges = sorted({0, len(reply), *(cut % (len(reply) + 1) for cut in cuts)})
    out = []
    for begin, end in pairwise(edges):
        part = reply[begin:end]
        lossy = tuple(n for n in range(begin, end) if reply[n][0] % 3 == 0)
        spans = tuple((n, n + 1) for n in lossy)
        text = "".join(text for _, text in part)
        out.append(Commit(text, tuple(i for i, _ in part), end, lossy, spans))
    return out


def received(events: list[ClientEvent]) -> tuple[str, list[int], list[int]]:
    commits = [event for event in events if isinstance(event, Commit)]
    ids = [i for commit in commits for i in commit.ids]
    return "".join(c.text for c in commits), ids, [n for c in commits for n in c.lossy]


@given(pieces, st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(0, 30))
def test_who_comes_back_gets_what_is_missing(
    reply: Pieces, cuts: set[int], other_cuts: set[int], lost_after: int
) -> None:
    """The first run and the one that goes on may commit in other steps."""
    first, second = commits_of(reply, cuts), commits_of(reply, other_cuts)
    had = list[ClientEvent](first[: lost_after % (len(first) + 1)])
    text, ids, lossy = received(had)
    listener = Listener(len(ids), len(text))
    journal = Journal()
    at = lost_after % (len(second) + 1)
    for commit in second[:at]:
        journal.note(commit)
    told = journal.replay(listener)
    for commit in second[at:]:
        clipped = listener.clip(commit, journal.num_chars)
        journal.note(commit)
        told += [] if clipped is None else [clipped]
    whole_text, whole_ids, whole_lossy = received(list[ClientEvent](first))
    more_text, more_ids, more_lossy = received(told)
    assert text + more_text == whole_text
    assert ids + more_ids == whole_ids
    assert lossy + more_lossy == whole_lossy
    assert (listener.upto, listener.num_chars) == (journal.upto, journal.num_chars)


def test_a_replay_is_all_of_a_chat_that_ended() -> None:
    journal = Journal()
    shown = Provisional(0, 0, "a gu", 0.7)
    told: list[ClientEvent] = [ACCEPTED, shown, Commit("a", (1,), 1), Commit("b", (2,), 2), done(2)]
    for event in told:
        journal.note(event)
    assert journal.replay(Listener()) == [ACCEPTED, Commit("ab", (1, 2), 2), done(2)]
    assert journal.replay(Listener(2, 2)) == [ACCEPTED, done(2)]


def test_text_without_a_token_comes_once() -> None:
    journal = Journal()
    listener = Listener()
    journal.note(Commit("a", (1, 2), 2))
    assert journal.replay(listener) == [Commit("a", (1, 2), 2)]
    flushed = Commit("b", (), 2)
    assert listener.clip(flushed, journal.num_chars) == flushed
    journal.note(flushed)
    assert journal.replay(listener) == []


def test_bytes_grow_with_tokens_and_text() -> None:
    journal = Journal()
    empty = journal.num_bytes
    for number in range(1000):
        journal.note(Commit("word ", (number,), number + 1))
    assert journal.num_bytes - empty == 1000 * (4 + 5)
    assert journal.upto == 1000
    assert journal.num_chars == 5000
