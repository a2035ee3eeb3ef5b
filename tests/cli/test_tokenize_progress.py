"""What is told of a run where there is no terminal."""

from __future__ import annotations

import pytest

from outrider.bulk.plan.results import TextCounts
from outrider.bulk.run import RunProgress
from outrider.cli.bulk_progress import LINE_EVERY_S, ProgressLines, progress_line, shown
from outrider.testing import FakeClock


def progress(num_shards: int, *, earlier: int = 0) -> RunProgress:
    done = num_shards * 10_000_000
    return RunProgress(
        num_shards, 4, done, 40_000_000, TextCounts(tokens=num_shards * 1000), earlier
    )


def test_a_line_has_rate_and_time_left() -> None:
    assert progress_line(progress(3), 2.0) == (
        "3 of 4 shards, 30.0 of 40.0 MB, 3,000 tokens, 15.0 MB/s, 1 s left"
    )
    assert progress_line(progress(0), 0.0).endswith("0.0 MB/s, no rate yet")


def test_what_an_earlier_run_did_is_no_part_of_the_rate() -> None:
    assert progress_line(progress(3, earlier=20_000_000), 2.0).endswith("5.0 MB/s, 2 s left")


def test_lines_come_now_and_then_and_at_the_end() -> None:
    clock, lines = FakeClock(), list[str]()
    show = ProgressLines(lines.append, clock)
    show(progress(0))
    clock.advance(LINE_EVERY_S)
    show(progress(1))
    show(progress(2))
    assert len(lines) == 1
    show(progress(4))
    assert len(lines) == 2 and lines[1].startswith("4 of 4 shards")


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("tokenizing", quiet=True) as show:
        show(progress(4))
    assert capsys.readouterr() == ("", "")
