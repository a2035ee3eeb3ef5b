"""However a reply was committed, however much of it a client has and whichever stream it reads, it
gets the rest: nothing is lost, nothing comes twice."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outrider.client.transcript import Transcript
from outrider.codec.frames import DEFAULT_MAX_FRAME_BYTES
from outrider.session.client import Accepted, Committed, Done, Provisional, Retracted
from outrider.session.client_wire import write
from outrider.session.types import FinishReason, ScoredToken, Timings, TokenLogprobs, Usage
from services.edge.chat.logprob_log import MAX_BYTES, LogprobLog
from services.edge.chat.replay import (
    MAX_FRAME_LOGPROBS,
    ClientChannel,
    ReplayCursor,
    ReplayLog,
    ReplayReader,
)
from services.edge.chat.stream import Backlog
from services.edge.session.events import ClientEvent

ACCEPTED = Accepted("r", "m", 3)
TOKEN = "t" * 32


def done(upto: int) -> Done:
    return Done(FinishReason.STOP, Usage(), Timings(), Timings(), upto, "", "")


# A reply is tokens with their texts; a commit groups some of them, and the text may lag behind.
Pieces = list[tuple[int, str]]
pieces = st.lists(st.tuples(st.integers(0, 49_151), st.text(max_size=3)), max_size=30)


def commits_of(reply: Pieces, cuts: set[int]) -> list[Committed]:
    edges = sorted({0, len(reply), *(cut % (len(reply) + 1) for cut in cuts)})
    out = []
    for begin, end in pairwise(edges):
        part = reply[begin:end]
        text = "".join(text for _, text in part)
        ids = tuple(i for i, _ in part)
        logprobs = tuple(logprobs_of(begin + at, i) for at, i in enumerate(ids))
        out.append(Committed(text, ids, end, logprobs=logprobs))
    return out


def logprobs_of(position: int, token: int) -> TokenLogprobs:
    """Of an id in its place: with two likely ones."""
    top = tuple(ScoredToken(token + n, -float(n), b"x" * n) for n in range(2))
    return TokenLogprobs(ScoredToken(token, -float(position), b"t"), top)


def told_logprobs(events: list[ClientEvent]) -> list[TokenLogprobs]:
    return [at for event in events if isinstance(event, Committed) for at in event.logprobs]


def replayed(log: ReplayLog, cursor: ReplayCursor) -> list[ClientEvent]:
    """What brings a client up to date; `cursor` is then at the end."""
    reader = ReplayReader(log, cursor, lambda: "")
    return [piece[0] for piece in iter(reader.next, None)]


def received(events: list[ClientEvent]) -> tuple[str, list[int]]:
    commits = [event for event in events if isinstance(event, Committed)]
    ids = [i for commit in commits for i in commit.ids]
    return "".join(c.text for c in commits), ids


@given(pieces, st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(0, 30))
def test_who_comes_back_gets_what_is_missing(
    reply: Pieces, cuts: set[int], other_cuts: set[int], lost_after: int
) -> None:
    """The first run and the one that goes on may commit in other steps."""
    first, second = commits_of(reply, cuts), commits_of(reply, other_cuts)
    had = list[ClientEvent](first[: lost_after % (len(first) + 1)])
    text, ids = received(had)
    cursor = ReplayCursor(len(ids), len(text))
    log = ReplayLog()
    at = lost_after % (len(second) + 1)
    for commit in second[:at]:
        log.append(commit)
    told = replayed(log, cursor)
    for commit in second[at:]:
        clipped = cursor.clip(commit, log.num_chars)
        log.append(commit)
        told += [] if clipped is None else [clipped]
    whole_text, whole_ids = received(list[ClientEvent](first))
    more_text, more_ids = received(told)
    assert text + more_text == whole_text
    assert ids + more_ids == whole_ids
    assert told_logprobs(had) + told_logprobs(told) == told_logprobs(list[ClientEvent](first))
    assert (cursor.upto, cursor.num_chars) == (log.upto, log.num_chars)


def test_who_comes_back_hears_which_model_computed_what_it_lacks_and_what_it_has() -> None:
    one, other = b"\x0a" * 32, b"\x0b" * 32
    log = ReplayLog()
    log.append(Committed("a", (1,), 1, model_identity=one))
    log.append(Committed("b", (2,), 2, model_identity=other, inexact=True))
    (missing,) = replayed(log, ReplayCursor(1, 1))
    assert missing == Committed("b", (2,), 2, model_identity=other, inexact=True)
    cursor = ReplayCursor(2, 2)
    assert replayed(log, cursor) == [], "it has all of it by an earlier run"
    more = cursor.clip(Committed("c", (3,), 3), 2)
    assert more == Committed("c", (3,), 3, model_identity=other, inexact=True)
    assert cursor.clip(Committed("d", (4,), 4), 3) == Committed("d", (4,), 4), "it is told once"


def test_a_replay_is_all_of_a_chat_that_ended() -> None:
    log = ReplayLog()
    shown = Provisional(0, 0, "a gu", 0.7)
    told: list[ClientEvent] = [
        ACCEPTED,
        shown,
        Committed("a", (1,), 1),
        Committed("b", (2,), 2),
        done(2),
    ]
    for event in told:
        log.append(event)
    assert replayed(log, ReplayCursor()) == [ACCEPTED, Committed("ab", (1, 2), 2), done(2)]
    assert replayed(log, ReplayCursor(2, 2)) == [ACCEPTED, done(2)]


def test_text_without_a_token_comes_once() -> None:
    log = ReplayLog()
    cursor = ReplayCursor()
    log.append(Committed("a", (1, 2), 2))
    assert replayed(log, cursor) == [Committed("a", (1, 2), 2)]
    flushed = Committed("b", (), 2)
    assert cursor.clip(flushed, log.num_chars) == flushed
    log.append(flushed)
    assert replayed(log, cursor) == []


def test_bytes_grow_with_tokens_and_text() -> None:
    log = ReplayLog()
    empty = log.num_bytes
    for number in range(1000):
        log.append(Committed("word ", (number,), number + 1))
    assert log.num_bytes - empty == 1000 * (4 + 5)
    assert log.upto == 1000
    assert log.num_chars == 5000


class Stream:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.ended = False

    def catch_up(self, backlog: Backlog) -> None:
        for event, token in iter(backlog.next, None):
            self.tell(event, token)

    def tell(self, event: ClientEvent, token: str = "") -> None:
        assert not self.ended
        assert token == (TOKEN if isinstance(event, Accepted) else "")
        self.sent.append(short(event))

    def end(self, last: ClientEvent | None = None) -> None:
        assert not self.ended
        if last is not None:
            self.tell(last)
        self.ended = True


def resume_token() -> str:
    return TOKEN


def short(event: ClientEvent) -> str:
    match event:
        case Committed(text, ids, upto):
            return f"commit {text} {len(ids)} {upto}"
        case Provisional(text=text):
            return f"provisional {text}"
        case _:
            return type(event).__name__


def tell(channel: ClientChannel, *events: ClientEvent) -> list[bool]:
    return [channel.tell(event) for event in events]


def test_one_client_hears_everything_as_it_comes() -> None:
    stream = Stream()
    channel = ClientChannel(stream, resume_token, ReplayCursor())
    told = tell(
        channel, ACCEPTED, Provisional(0, 0, "x", 0.5), Retracted(0), Committed("a", (1,), 1)
    )
    assert stream.sent == ["Accepted", "provisional x", "Retracted", "commit a 1 1"]
    assert told == [False] * 4
    channel.end()
    assert stream.ended and not channel.is_present


def test_a_client_ahead_of_the_chat_hears_nothing_it_has() -> None:
    stream = Stream()
    channel = ClientChannel(stream, resume_token, ReplayCursor(3, 3))
    assert channel.is_behind
    reached = tell(
        channel,
        ACCEPTED,
        Provisional(0, 0, "ab", 0.9),
        Committed("a", (1,), 1),
        Retracted(0),
        Committed("bcd", (2, 3, 4), 4),
        Provisional(4, 0, "e", 0.9),
    )
    assert stream.sent == ["Accepted", "commit d 1 4", "provisional e"]
    assert reached == [False, False, False, False, True, False], "provisional text begins anew"


def test_a_long_replay_with_log_probabilities_comes_in_frames_of_bounded_size() -> None:
    """300 tokens of an earlier run elsewhere, of which none are known, and 1,000 since."""
    wide = tuple(ScoredToken(n, -1.0, b"w" * 250) for n in range(20))
    log = ReplayLog()
    log.append(Committed("a" * 300, tuple(range(300)), 300))
    for number in range(300, 1300):
        top = wide if number < 340 else (ScoredToken(1, -1.0, b"w"),)
        told = TokenLogprobs(ScoredToken(number, -1.0, b"t"), top)
        log.append(Committed("b", (number,), number + 1, logprobs=(told,)))
    events = replayed(log, ReplayCursor())
    sizes = [len(write(event)) for event in events]
    assert max(sizes) < DEFAULT_MAX_FRAME_BYTES / 2
    commits = [event for event in events if isinstance(event, Committed)]
    assert max(len(commit.logprobs) for commit in commits) == MAX_FRAME_LOGPROBS
    assert commits[0].text == "a" * 300 + "b" * 1000
    transcript = Transcript()
    for one in commits:
        transcript.apply(one)
    assert transcript.ids == list(range(1300))
    assert transcript.logprobs[:300] == [None] * 300
    assert [at.chosen.id for at in transcript.logprobs[300:] if at] == list(range(300, 1300))


def test_beyond_the_bound_the_oldest_log_probabilities_are_dropped() -> None:
    log, kept = ReplayLog(), LogprobLog()
    wide = tuple(ScoredToken(n, -1.0, b"word") for n in range(20))
    count = 4000
    for number in range(count):
        told = TokenLogprobs(ScoredToken(number, -1.0, b"t"), wide)
        log.append(Committed("b", (number,), number + 1, logprobs=(told,)))
        kept.append((told,))
        assert kept.num_bytes <= MAX_BYTES
    assert 1000 < len(kept) < count
    assert log.num_bytes < MAX_BYTES + 4 * count + count + 4096
    events = [event for event in replayed(log, ReplayCursor()) if isinstance(event, Committed)]
    assert sum(len(event.ids) for event in events) == count
    told_ids = [at.chosen.id for at in told_logprobs(list[ClientEvent](events))]
    assert told_ids == list(range(count - len(kept), count)), "the last ones"
    assert [at.chosen.id for at in kept.some(len(kept) - 3, 9)] == [3997, 3998, 3999]
    assert kept.some(0, 0) == kept.some(len(kept), 5) == ()
