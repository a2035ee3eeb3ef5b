"""Audiences: nothing lost, nothing twice, whichever stream the client listens on."""

from __future__ import annotations

from services.edge.resumption.audience import Audience
from services.edge.resumption.journal import Listener
from services.edge.session.events import (
    Accepted,
    ClientEvent,
    Commit,
    Failed,
    Provisional,
    Retract,
)

ACCEPTED = Accepted("r", "m", 3)


class Stream:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.ended = False

    def send(self, payload: bytes) -> None:
        assert not self.ended
        self.sent.append(payload.decode())

    def end(self, last: bytes = b"") -> None:
        assert not self.ended
        if last:
            self.send(last)
        self.ended = True


def encode(event: ClientEvent) -> bytes:
    match event:
        case Commit(text, ids, upto):
            return f"commit {text} {len(ids)} {upto}".encode()
        case Provisional(text=text):
            return f"provisional {text}".encode()
        case _:
            return type(event).__name__.encode()


def tell(audience: Audience, *events: ClientEvent) -> list[bool]:
    return [audience.tell(event) for event in events]


def test_one_client_hears_everything_as_it_comes() -> None:
    stream = Stream()
    audience = Audience(stream, encode)
    told = tell(audience, ACCEPTED, Provisional(0, 0, "x", 0.5), Retract(0), Commit("a", (1,), 1))
    assert stream.sent == ["Accepted", "provisional x", "Retract", "commit a 1 1"]
    assert told == [False] * 4
    audience.end()
    assert stream.ended
    assert not audience.is_present


def test_a_client_that_comes_back_gets_what_it_missed_and_then_goes_on() -> None:
    first, second = Stream(), Stream()
    audience = Audience(first, encode)
    tell(audience, ACCEPTED, Commit("a", (1,), 1))
    audience.lose()
    assert not audience.is_present
    tell(audience, Commit("b", (2,), 2), Commit("c", (3,), 3))
    audience.join(second, Listener(1, 1))
    tell(audience, Provisional(3, 0, "d", 0.9), Commit("d", (4,), 4))
    assert first.sent == ["Accepted", "commit a 1 1"]
    assert not first.ended, "its connection is gone; there is nobody to tell"
    assert second.sent == ["Accepted", "commit bc 2 3", "provisional d", "commit d 1 4"]


def test_the_last_stream_to_come_has_the_chat() -> None:
    first, second = Stream(), Stream()
    audience = Audience(first, encode)
    tell(audience, ACCEPTED, Commit("a", (1,), 1))
    audience.join(second, Listener())
    tell(audience, Commit("b", (2,), 2))
    assert first.sent == ["Accepted", "commit a 1 1", Failed.__name__]
    assert first.ended
    assert second.sent == ["Accepted", "commit a 1 1", "commit b 1 2"]


def test_a_client_ahead_of_the_chat_hears_nothing_it_has() -> None:
    stream = Stream()
    audience = Audience(stream, encode)
    audience.listen(Listener(3, 3))
    assert audience.is_behind
    reached = tell(
        audience,
        ACCEPTED,
        Provisional(0, 0, "ab", 0.9),
        Commit("a", (1,), 1),
        Retract(0),
        Commit("bcd", (2, 3, 4), 4),
        Provisional(4, 0, "e", 0.9),
    )
    assert stream.sent == ["Accepted", "commit d 1 4", "provisional e"]
    assert reached == [False, False, False, False, True, False], "provisional text begins anew"
