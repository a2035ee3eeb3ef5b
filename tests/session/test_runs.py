"""Which of two runs of a request is the later one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import DuplicateSessionError
from outrider.session.runs import UNKNOWN_RUN, check_run, later_run, next_run, replaced_error
from outrider.wire import error_from_proto, error_to_proto

MAX_RUN = 2**32 - 1
numbers = st.integers(0, MAX_RUN)


@given(st.lists(st.floats(0, 2.0**33), min_size=1, max_size=20))
def test_numbers_rise_whatever_the_clock_does(times: list[float]) -> None:
    run = UNKNOWN_RUN
    for unix_s in times:
        before, run = run, next_run(run, unix_s)
        assert before < run <= MAX_RUN or before == run == MAX_RUN
        assert run >= min(int(unix_s), MAX_RUN)


def test_another_process_of_the_client_goes_on_with_later_numbers() -> None:
    first = next_run(UNKNOWN_RUN, 1_800_000_000.2)
    second = next_run(first, 1_800_000_000.9)
    assert (first, second) == (1_800_000_000, 1_800_000_001)
    assert next_run(UNKNOWN_RUN, 1_800_000_003.0) > second


@given(numbers, numbers)
def test_an_earlier_run_is_refused_and_told_the_later_one(run: int, running: int) -> None:
    if UNKNOWN_RUN < run < running:
        with pytest.raises(DuplicateSessionError) as caught:
            check_run(run, running)
        told = error_from_proto(error_to_proto(caught.value))
        assert isinstance(told, DuplicateSessionError)
        assert later_run(told) == running
    else:
        check_run(run, running)


@pytest.mark.parametrize("said", ["", "-1", "1e9", "\u0661", " 7", "12345678901", "x"])
def test_what_is_no_number_says_nothing(said: str) -> None:
    error = DuplicateSessionError("x", metadata={"later_run": said})
    assert later_run(error) == UNKNOWN_RUN


def test_a_peers_number_is_bounded() -> None:
    assert later_run(DuplicateSessionError("x", metadata={"later_run": "9999999999"})) == MAX_RUN
    assert later_run(replaced_error()) == UNKNOWN_RUN
