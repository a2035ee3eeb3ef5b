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


@given(st.lists(texts, max_size=8), st.lists(st.tuples(st.integers(0, 80), st.integers(0, 20))))
def test_what_is_marked_is_underlined_whatever_pieces_it_comes_in(
    pieces: list[str], starts: list[tuple[int, int]]
) -> None:
    marked = [(begin, begin + length) for begin, length in starts]
    painter, screen = Painter(20), Screen(20)
    for piece in pieces:
        screen.write(painter.paint(piece, "maybe", marked))
    screen.write(painter.paint("", ""))
    whole = "".join(pieces)
    wanted = [c for at, c in enumerate(whole) if any(begin <= at < end for begin, end in marked)]
    assert screen.text(underlined=True) == "".join(wanted).replace("\n", "")
    assert screen.text(dim=False) == whole.replace("\n", "")


def test_a_mark_past_all_text_costs_nothing() -> None:
    assert "a" in Painter(20).paint("a", "", [(0, 2**32 - 1)])
