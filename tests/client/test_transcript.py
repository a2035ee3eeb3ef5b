"""The client's model of the text: every event, and events that do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.client.events import Event
from outrider.client.transcript import Transcript
from outrider.errors import MalformedFrameError
from outrider.session.client import Accepted, Committed, Done, Provisional, Retracted
from outrider.session.types import FinishReason, ScoredToken, Timings, TokenLogprobs, Usage

TIMES = Timings()


def done(upto: int) -> Done:
    return Done(FinishReason.STOP, Usage(), TIMES, TIMES, upto, "", "")


def after(*events: Event) -> Transcript:
    transcript = Transcript()
    for event in events:
        transcript.apply(event)
    return transcript


def test_provisional_text_is_replaced_from_a_code_point_on() -> None:
    transcript = after(
        Accepted("r", "m", 1, "e"),
        Provisional(0, 0, "🚂 puffs", 0.9),
        Provisional(0, 2, "rolls", 0.9),
    )
    assert transcript.text == "🚂 rolls"
    assert (transcript.num_retractions, transcript.erased_chars) == (1, 5)


def test_commits_move_text_from_provisional_to_final() -> None:
    transcript = after(Provisional(0, 0, "hello wor", 0.9), Committed("hello ", (1,), 1))
    assert (transcript.committed, transcript.provisional) == ("hello ", "wor")
    assert transcript.text == "hello wor"
    transcript.apply(Retracted(0))
    assert (transcript.committed, transcript.provisional) == ("hello ", "")
    transcript.apply(Committed("there", (2, 3), 3))
    transcript.apply(done(3))
    assert transcript.text == "hello there"
    assert transcript.ids == [1, 2, 3]


def test_the_model_of_the_last_token_is_remembered_and_that_it_changed() -> None:
    one, other = b"\x0a" * 32, b"\x0b" * 32
    first = Committed("a", (1,), 1, model_identity=one)
    transcript = after(first, Committed("b", (2,), 2))
    assert (transcript.model_identity, transcript.inexact) == (one, False)
    transcript.apply(Committed("c", (3,), 3, model_identity=other, inexact=True))
    transcript.apply(Committed("d", (4,), 4))
    assert (transcript.model_identity, transcript.inexact) == (other, True)
    assert after(first, replace(done(1), inexact=True)).inexact, "it is said at its end too"


@pytest.mark.parametrize(
    "events",
    [
        (Retracted(1),),
        (Provisional(0, 3, "x", 0.5),),
        (Provisional(0, 0, "abc", 0.5), Committed("abd", (1,), 1)),
        (Committed("a", (1,), 2),),
        (Provisional(0, 0, "abc", 0.5), done(0)),
        (done(1),),
        (done(0), Committed("a", (1,), 1)),
    ],
    ids=[
        "retract more than there is",
        "keep more than there is",
        "commit against provisional text",
        "miscounted tokens",
        "end with provisional text",
        "end with tokens missing",
        "event after the end",
    ],
)
def test_events_that_do_not_fit_are_found_out(events: tuple[Event, ...]) -> None:
    *good, bad = events
    transcript = after(*good)
    with pytest.raises(MalformedFrameError):
        transcript.apply(bad)


def test_log_probabilities_belong_to_the_last_ids_of_a_commit() -> None:
    told = [TokenLogprobs(ScoredToken(token, -1.0), ()) for token in (1, 2, 3)]
    transcript = after(
        Committed("a b", (1, 2), 2, logprobs=(told[1],)),
        Committed("c", (3,), 3, logprobs=(told[2],)),
        Committed("!", (), 3),
    )
    assert transcript.logprobs == [None, told[1], told[2]]
    for wrong in ((told[0],), (told[1], told[2])):
        with pytest.raises(MalformedFrameError, match="of other tokens"):
            after(Committed("c", (3,), 1, logprobs=wrong))
