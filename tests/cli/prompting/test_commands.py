"""Lines of a conversation: commands, text, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cli.prompting.commands import COMMANDS, HELP, Command, read
from outrider.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("hello", "hello"),
        ("", ""),
        ("//tmp", "/tmp"),
        ("/usr/bin is what?", "/usr/bin is what?"),
        ("/ is the root", "/ is the root"),
        (" /bye", " /bye"),
        ("two lines\n/bye", "two lines\n/bye"),
        ("/bye", Command("/bye", "")),
        ("/BYE ", Command("/bye", "")),
        ("/?", Command("/help", "")),
        ("/model  small ", Command("/model", "small")),
        ("/system be\nbrief", Command("/system", "be\nbrief")),
    ],
)
def test_what_a_line_is(line: str, what: Command | str) -> None:
    assert read(line) == what


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/foo", "no command /foo; see /help"),
        ("/rest", "/rest, but there is /reset"),
        ("/bye now", "/bye takes no argument"),
    ],
)
def test_what_is_no_command(line: str, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        read(line)


def test_help_tells_of_every_command() -> None:
    for name in COMMANDS.keys() - {"/help"}:
        assert f"\n{name} " in f"\n{HELP}"


@given(st.text())
def test_any_text_can_be_said(text: str) -> None:
    assert read(text if not text.startswith("/") else f"/{text}") == text
