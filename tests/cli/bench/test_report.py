"""What is said of a load test."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cli.bench import report
from outrider.cli.bench.report import Measured, Reply, as_dict, lines, percentile


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(
    values: Sequence[float], share: float
) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    needed = math.ceil(share * len(ordered))
    assert sum(it <= found for it in ordered) >= needed
    assert sum(it < found for it in ordered) < needed


def test_times_count_from_the_planned_arrival() -> None:
    measured = Measured()
    reply = Reply(1.0, 1.25, 1.5, 1.75, [2.0, 2.5, 3.0], 5, 3.5)
    measured.add(reply, {"ttft": 1000.0, "tpot": 249.0})
    told = as_dict(measured, {"ttft": 1000.0, "tpot": 249.0})
    for name, value in (
        *(("ttft_ms", 1000.0), ("first_shown_ms", 750.0), ("itl_ms", 500.0), ("tpot_ms", 250.0)),
        *(("e2e_ms", 2500.0), ("generator_late_ms", 250.0), ("waited_to_be_sent_ms", 250.0)),
    ):
        assert told[name]["p50"] == pytest.approx(value), name
    assert (told["well"], told["output_tokens"], told["goodput"]["requests"]) == (1, 5, 0)
    shown = list(lines(told))
    assert shown[0] == "1 requests in 3.5 s, 1 well"
    assert any(line.startswith("goodput 0.00 requests/s, 0% within ttft 1000 ms") for line in shown)


def test_failures_are_counted_by_reason_and_have_no_times() -> None:
    measured = Measured()
    measured.add(Reply(0.0, error="HTTP_429", ended_s=1.0), {})
    measured.add(Reply(0.0, ended_s=2.0), {})
    told = as_dict(measured, {})
    assert told["errors"] == {"HTTP_429": 1, "NO_TEXT": 1}
    assert (told["requests"], told["well"], "ttft_ms" in told) == (2, 0, False)
    assert "  1 x HTTP_429" in list(lines(told))


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_GAPS", 3)
    measured = Measured()
    for _ in range(5):
        measured.add(Reply(0.0, 0.0, 0.0, None, [1.0, 2.0, 3.0], 3, 3.0), {})
    assert {len(values) for values in measured.by_name.values()} == {3}
    assert measured.num_sent == 5
