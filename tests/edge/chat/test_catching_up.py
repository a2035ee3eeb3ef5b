"""Clients that were away for longer than anybody buffers: they get what they lack from the log, as
fast as they read, exactly once, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import OutriderError
from outrider.session.client import Accepted, Committed, Done, Failed, Provisional
from outrider.session.types import FinishReason, ScoredToken, Timings, TokenLogprobs, Usage
from services.edge.chat import replay
from services.edge.chat.replay import ClientChannel, ReplayCursor
from services.edge.chat.stream import Backlog
from services.edge.session.events import ClientEvent

ACCEPTED = Accepted("r", "m", 3)
SHOWN = Provisional(0, 0, "a guess", 0.5)


def commit(number: int) -> Committed:
    """The reply's token of this number: an id of its own, and two characters."""
    scored = (TokenLogprobs(ScoredToken(number, -1.0), ()),)
    return Committed(text_of(number), (number,), number + 1, logprobs=scored)


def text_of(number: int) -> str:
    return chr(97 + number % 26) + "\U0001f600"


class Reader:
    """A client's stream that takes a piece at a time, when it is told to read."""

    def __init__(self) -> None:
        self.told: list[ClientEvent] = []
        self.has_ended = False
        self._backlog: Backlog | None = None
        self._last: Callable[[], None] | None = None

    def catch_up(self, backlog: Backlog) -> None:
        self._backlog = backlog

    def tell(self, event: ClientEvent, token: str = "") -> None:
        assert self._backlog is None and not self.has_ended
        self.told.append(event)

    def end(self, last: ClientEvent | None = None) -> None:
        def ended() -> None:
            self.told += [] if last is None else [last]
            self.has_ended = True

        if self._backlog is not None and not self._backlog.is_over:
            self._last = ended
        else:
            ended()

    def read(self) -> bool:
        """Take a piece; False if nothing is to be caught up with."""
        if self._backlog is None:
            return False
        if (piece := self._backlog.next()) is not None:
            self.told.append(piece[0])
            return True
        self._backlog = None
        if self._last is not None:
            self._last()
        return False


def heard(events: list[ClientEvent]) -> list[Committed]:
    return [event for event in events if isinstance(event, Committed)]


def has(commits: list[Committed]) -> ReplayCursor:
    text = "".join(it.text for it in commits)
    return ReplayCursor(sum(len(it.ids) for it in commits), len(text))


steps = st.lists(st.sampled_from(["commit", "commit", "read", "show", "lose", "return"]))


@given(steps, st.integers(0, 12))
def test_every_client_gets_everything_once_and_in_order(steps: list[str], num_more: int) -> None:
    with pytest.MonkeyPatch.context() as bounds:
        bounds.setattr(replay, "MAX_FRAME_LOGPROBS", 2)
        bounds.setattr(replay, "_MAX_READ_CHARS", 3)
        stream = Reader()
        channel = ClientChannel(stream, lambda: "", ReplayCursor())
        got: list[Committed] = []
        number = 0
        channel.tell(ACCEPTED)
        for step in [*steps, "return", *["commit"] * num_more]:
            if step == "commit":
                channel.tell(commit(number))
                number += 1
            elif step == "show":
                channel.tell(SHOWN)
            elif step == "read":
                stream.read()
            elif step == "lose":
                channel.lose()
            else:
                got += heard(stream.told)
                stream = Reader()
                channel.join(stream, has(got))
        channel.tell(Done(FinishReason.STOP, Usage(), Timings(), Timings(), number, "", ""))
        channel.end()
        while stream.read():
            assert not stream.has_ended
        assert stream.has_ended
    kinds = [type(event) for event in stream.told]
    assert kinds == [Accepted, *[Committed] * (len(kinds) - 2), Done]
    assert all(len(it.ids) <= 2 and len(it.text) <= 3 for it in heard(stream.told))
    got += heard(stream.told)
    whole = [commit(at) for at in range(number)]
    assert "".join(it.text for it in got) == "".join(it.text for it in whole)
    assert [at for it in got for at in it.ids] == list(range(number))
    assert [at.chosen.id for it in got for at in it.logprobs] == list(range(number))


def test_provisional_text_waits_until_the_client_has_caught_up() -> None:
    stream = Reader()
    channel = ClientChannel(Reader(), lambda: "", ReplayCursor())
    for event in (ACCEPTED, commit(0), commit(1)):
        channel.tell(event)
    channel.join(stream, ReplayCursor())
    assert not channel.tell(SHOWN)
    assert stream.read() and not channel.tell(commit(2)), "it goes to the log"
    while stream.read():
        assert not channel.tell(SHOWN)
    assert not channel.tell(SHOWN), "it begins anew first"
    assert channel.tell(commit(3))
    assert not channel.tell(SHOWN)
    assert stream.told[-2:] == [commit(3), SHOWN]
    assert [at for it in heard(stream.told) for at in it.ids] == [0, 1, 2, 3]


def test_a_failure_comes_after_what_was_committed() -> None:
    stream = Reader()
    channel = ClientChannel(Reader(), lambda: "", ReplayCursor())
    channel.tell(commit(0))
    channel.join(stream, ReplayCursor())
    channel.tell(failed := Failed(OutriderError("it failed")))
    channel.end()
    while stream.read():
        pass
    assert stream.told == [commit(0), failed] and stream.has_ended


def test_a_stream_that_is_replaced_ends_without_the_rest() -> None:
    first, second = Reader(), Reader()
    channel = ClientChannel(Reader(), lambda: "", ReplayCursor())
    channel.tell(commit(0))
    channel.join(first, ReplayCursor())
    channel.join(second, ReplayCursor())
    assert [type(event) for event in first.told] == [Failed] and first.has_ended
    assert second.read() and second.told == [commit(0)]


def test_a_client_hears_of_another_model_while_it_catches_up() -> None:
    stream, other = Reader(), b"\x0b" * 32
    channel = ClientChannel(Reader(), lambda: "", ReplayCursor())
    channel.tell(commit(0)._replace(model_identity=b"\x0a" * 32))
    channel.join(stream, ReplayCursor())
    stream.read()
    channel.tell(commit(1)._replace(model_identity=other, inexact=True))
    channel.tell(commit(2))
    while stream.read():
        pass
    channel.tell(commit(3))
    told = [(it.model_identity, it.inexact) for it in heard(stream.told)]
    assert told == [(b"\x0a" * 32, False), (other, True), (None, False)]
