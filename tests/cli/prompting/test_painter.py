"""The painter against a small terminal: what is final stays, what is provisional is replaced."""

from __future__ import annotations

import pyte
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from outrider.cli.prompting.painter import Painter
from tests.cli.prompting.screen import Screen, Style

texts = st.text(alphabet="ab \n漢é😀", max_size=60)


@given(st.lists(st.tuples(texts, texts), max_size=12), st.integers(8, 40))
def test_screen_shows_the_last_state(states: list[tuple[str, str]], width: int) -> None:
    painter, screen = Painter(width, 1000), Screen(width)
    committed, provisional = "", ""
    for delta, provisional in states:
        committed += delta
        screen.write(painter.paint(delta, provisional))
    # A blank for which a row has no room is not painted.
    assert without_blanks(screen.text(dim=False)) == without_blanks(committed)
    assert without_blanks(screen.text(dim=True)) == without_blanks(provisional)
    whole = {word for word in (committed + provisional).split() if cell_len(word) < width}
    narrow = {word for word in whole if word.isascii()}
    assert narrow <= {word for row in screen.rows for word in words(row)}, "a word was broken"


def without_blanks(text: str) -> str:
    return "".join(text.split())


def words(row: dict[int, tuple[str, Style]]) -> list[str]:
    """Of a row; characters that take two cells are no part of any."""
    chars = [char if cell_len(char) < 2 else " " for _, (char, _) in sorted(row.items())]
    return "".join(chars).split()


def test_a_word_moves_to_the_next_row_as_it_grows() -> None:
    painter, screen = Painter(12), Screen(12)
    for text in ("one two ", "th", "r", "ee four"):
        screen.write(painter.paint(text, ""))
    assert [words(row) for row in screen.rows] == [["one", "two"], ["three", "four"]]


def test_control_characters_are_shown_not_obeyed() -> None:
    painted = Painter(80).paint("a\x1b[2Jb\x07", "")
    assert "\x1b" not in painted
    assert "\x07" not in painted


def rows(terminal: pyte.Screen) -> list[str]:
    return [row.rstrip() for row in terminal.display]


def test_no_more_provisional_text_than_can_be_taken_back() -> None:
    terminal = pyte.Screen(10, 5)
    stream = pyte.Stream(terminal)
    terminal.set_mode(pyte.modes.LNM)  # as the tty does it: "\n" begins a line
    painter = Painter(10, 5)
    stream.feed(painter.paint("a\nb\nc\nfinal", "x" * 200))
    stream.feed(painter.paint("", "y" * 200))
    stream.feed(painter.paint(" text", ""))
    assert rows(terminal) == ["c", "final", "text", "", ""]


sizes = st.tuples(st.integers(6, 60), st.integers(3, 20))


lines = st.text(alphabet="ab \n", max_size=80).map(lambda text: text and text + "\n")


@given(lines, st.lists(st.tuples(texts, texts, sizes), min_size=1, max_size=6), sizes)
@example("", [("a\na", "", (6, 3)), ("\n\n", "\n\n", (6, 4))], (6, 3))
def test_a_resized_terminal_shows_the_end_of_the_text_once(
    before: str, states: list[tuple[str, str, tuple[int, int]]], size: tuple[int, int]
) -> None:
    terminal = pyte.Screen(*size)
    terminal.set_mode(pyte.modes.LNM)
    stream = pyte.Stream(terminal)
    painter = Painter(*size, before)
    stream.feed(painter.resize(size[0] + 1, size[1]) + painter.resize(*size))
    for committed, provisional, new in states:
        terminal.resize(lines=new[1], columns=new[0])
        stream.feed(painter.resize(*new))
        stream.feed(painter.paint(committed, provisional))
        stream.feed(painter.paint("", ""))
    width, height = states[-1][2]
    fresh = pyte.Screen(width, height)
    fresh.set_mode(pyte.modes.LNM)
    pyte.Stream(fresh).feed(Painter(width, height).paint(painter.shown, ""))
    wanted = [row for row in rows(fresh) if row]
    shown = [row for row in rows(terminal) if row]
    # Provisional text may have scrolled rows away, which cannot be taken back.
    assert shown == wanted[len(wanted) - len(shown) :]
    if not any(provisional for _, provisional, _ in states):
        assert len(shown) >= min(len(wanted), height - 1) - 1 or not wanted
    stream.feed(painter.resize(width + 1, height) + painter.resize(width, height))
    shown = [row for row in rows(terminal) if row]
    # A row less fits where the screen was cleared.
    assert shown == wanted[len(wanted) - len(shown) :]
    assert len(shown) >= len(wanted) - 1
