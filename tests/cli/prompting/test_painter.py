"""The painter against a small terminal: what is final stays, what is provisional is replaced."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.cli.prompting.painter import Painter
from tests.cli.prompting.screen import Screen

texts = st.text(alphabet="ab \n漢é😀", max_size=60)


@given(st.lists(st.tuples(texts, texts), max_size=12), st.integers(8, 40))
def test_screen_shows_the_last_state(states: list[tuple[str, str]], width: int) -> None:
    painter, screen = Painter(width), Screen(width)
    committed, provisional = "", ""
    for delta, provisional in states:
        committed += delta
        screen.write(painter.paint(delta, provisional))
    assert screen.text(dim=False) == committed.replace("\n", "")
    assert screen.text(dim=True) == provisional.replace("\n", "")


def test_provisional_text_that_wrapped_is_erased_whole() -> None:
    painter, screen = Painter(10), Screen(10)
    screen.write(painter.paint("abc", "x" * 40))
    assert len(screen.rows) > 3
    screen.write(painter.paint("d", ""))
    assert screen.text(dim=False) == "abcd"
    assert screen.text(dim=True) == ""
    assert (screen.row, screen.column) == (0, 4)


def test_control_characters_are_shown_not_obeyed() -> None:
    painted = Painter(80).paint("a\x1b[2Jb\x07", "")
    assert "\x1b" not in painted
    assert "\x07" not in painted
