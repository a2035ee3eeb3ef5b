"""Where and how often it is shown how far a start is."""

from __future__ import annotations

import io

from rich.console import Console

from outrider.cli.local.start_line import LINE_EVERY_S, start_line
from outrider.testing import FakeClock


def test_a_file_gets_a_line_now_and_then() -> None:
    out, clock = io.StringIO(), FakeClock()
    with start_line(Console(file=out), clock) as show:
        show("0 of 5 processes ready")
        clock.advance(LINE_EVERY_S)
        show("")
        show("1 of 5 processes ready")
        show("2 of 5 processes ready")
        clock.advance(LINE_EVERY_S)
        show("3 of 5 processes ready")
    assert out.getvalue().splitlines() == [
        "starting: 1 of 5 processes ready",
        "starting: 3 of 5 processes ready",
    ]


def test_a_terminal_keeps_one_line_up_to_date_and_is_left_without_it() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    with start_line(console, FakeClock()) as show:
        show("1 of 5 processes ready")
        console.print("a line that stays")
    seen = out.getvalue()
    assert "starting: 1 of 5 processes ready" in seen
    assert seen.rstrip("\x1b[?25h").endswith("\x1b[2K"), "nothing of it is left"
