"""The two halves of the screen."""

from __future__ import annotations

from rich.console import Console

from outrider.cli.demo.wan import _screen, _Side
from outrider.client import Committed, Provisional, Transcript


def test_the_halves_stand_side_by_side_and_control_characters_are_shown() -> None:
    plain = _Side("plain streaming", Transcript(), took_s=1.0)
    ours = _Side("Outrider", Transcript(), took_s=2.0)
    plain.transcript.apply(Committed("The\x1b[2J", (1,), 1))
    ours.transcript.apply(Committed("The", (1,), 1))
    ours.transcript.apply(Provisional(1, 0, " sky", 0.9))
    console = Console(width=60, record=True, color_system=None)
    with console.capture() as seen:
        console.print(_screen(plain, ours))
    lines = seen.get().splitlines()
    assert "plain streaming" in lines[1]
    assert "Outrider" in lines[1]
    assert "The\N{REPLACEMENT CHARACTER}[2J" in lines[3]
    assert "The sky" in lines[3]
    assert "\x1b[2J" not in seen.get()
    assert "1.0 s" in lines[-2]
    assert "2.0 s" in lines[-2]
