"""Each input of a request is answered once, whatever becomes of replicas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import MalformedFrameError
from services.router.embedding.request import EmbeddingRequest

REPLICAS = ["a", "b", "c"]


@given(st.lists(st.tuples(st.sampled_from("paplx"), st.integers(0, 9), st.sampled_from(REPLICAS))))
def test_every_input_is_answered_once(steps: list[tuple[str, int, str]]) -> None:
    """Replicas that were lost, and those that never had an input, answer nothing."""
    request = EmbeddingRequest(max_inputs=10, max_lost_replicas=3)
    where: dict[int, str] = {}
    answers: dict[int, int] = {}
    for number in range(10):
        request.add(number, b"", 5)
    for what, number, replica in steps:
        if what == "p":
            if inputs := [it for it in request.pending if it.number == number and not it.replica]:
                request.placed(inputs, replica)
                where[number] = replica
        elif what == "a":
            is_there = where.get(number) == replica and number not in answers
            if is_there:
                request.answered([number], replica)
                answers[number] = answers.get(number, 0) + 1
            else:
                with pytest.raises(MalformedFrameError):
                    request.answered([number], replica)
        elif what == "l":
            _, spent = request.lost(replica)
            for each in spent:
                assert len(each.lost) == 3
                assert request.given_up(each.number) is not None
                answers[each.number] = answers.get(each.number, 0) + 1
            where = {key: it for key, it in where.items() if it != replica or key in answers}
        elif not any(it.number == number for it in request.pending):
            assert request.given_up(number) is None
    assert all(count == 1 for count in answers.values())
    assert {it.number for it in request.pending} == set(range(10)) - answers.keys()
    request.is_whole = True
    assert request.is_done == (len(answers) == 10)


def test_part_of_an_answer_is_no_answer() -> None:
    request = EmbeddingRequest(4, 3)
    inputs = [request.add(number, b"", 5) for number in range(2)]
    request.placed(inputs, "a")
    for numbers in ([0, 9], [0, 0]):
        with pytest.raises(MalformedFrameError):
            request.answered(numbers, "a")
    assert len(request.pending) == 2


def test_what_a_request_holds_is_bounded() -> None:
    request = EmbeddingRequest(2, 3)
    request.add(0, b"", 5)
    with pytest.raises(MalformedFrameError):
        request.add(0, b"", 5)
    request.add(1, b"", 5)
    with pytest.raises(MalformedFrameError):
        request.add(2, b"", 5)


def test_a_replica_that_was_never_reached_did_not_lose_it() -> None:
    request = EmbeddingRequest(2, 1)
    request.placed([request.add(0, b"", 5)], "a")
    assert len(request.lost("a", had_them=False)[0]) == 1
    request.placed(request.pending, "a")
    assert len(request.lost("a")[1]) == 1
