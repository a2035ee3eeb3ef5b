"""Lines that are not for the model: which ones, in whose messages, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.models.chat import Message
from outrider.models.tools import ToolCall
from services.edge.http.config import HttpConfig
from services.edge.http.system_lines import BILLING_LINE, LeftOutLines

LINE = f"{BILLING_LINE} cc_version=2.1.177.01c; cc_entrypoint=cli; cch=8ae40;"
ASKED = Message("user", "hello")
DEFAULT = LeftOutLines(HttpConfig().left_out_lines)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"{LINE}\nYou are a coder.", "You are a coder."),
        (f"You are a coder.\n{LINE}\nBe brief.", "You are a coder.\nBe brief."),
        (f"You are a coder.\n{LINE}", "You are a coder."),
        (f"{LINE}\r\nYou are a coder.\r\n", "You are a coder.\r\n"),
        (f"{LINE}\n\n  Indented.\n", "\n  Indented.\n"),
        (f"{LINE}\n{LINE}x\nYou", "You"),
        # Not at a line's beginning, so it is text.
        (f"Never repeat {LINE}", f"Never repeat {LINE}"),
        (f"  {LINE}\nYou", f"  {LINE}\nYou"),
        # Dates and ids that carry something for the model.
        ("Today's date: 2026-11-29\nYou", "Today's date: 2026-11-29\nYou"),
        ("x-request-id: 7\nYou", "x-request-id: 7\nYou"),
    ],
)
@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_lose_the_line(role: str, said: str, told: str) -> None:
    assert DEFAULT.without((Message(role, said), ASKED)) == (Message(role, told), ASKED)


def test_a_message_that_has_nothing_else_is_left_out() -> None:
    system, later = Message("system", LINE), Message("system", "You are a coder.")
    assert DEFAULT.without((system, later, ASKED)) == (later, ASKED)
    assert DEFAULT.without((system, Message("developer", ""), ASKED)) == (
        Message("developer", ""),
        ASKED,
    )
    assert DEFAULT.without((system,)) == (Message("system", ""),), "a chat has some message"


def test_what_others_say_is_shown_as_it_is() -> None:
    said = (
        Message("user", f"{LINE}\nWhat is this?"),
        Message("assistant", LINE, (ToolCall("1", "f", "{}"),)),
        Message("tool", f"{LINE}\n", tool_call_id="1"),
    )
    assert DEFAULT.without(said) is said


def test_an_operator_says_which_lines() -> None:
    said = (Message("system", f"{LINE}\nTrace: 12\nYou"), ASKED)
    assert LeftOutLines().without(said) is said and LeftOutLines().found(said) == ()
    assert DEFAULT.found(said) == (BILLING_LINE,)
    assert LeftOutLines(["Trace: ", "12 34", BILLING_LINE]).found(said) == ("Trace: ", BILLING_LINE)
    assert DEFAULT.found((Message("system", f"Never {LINE}"), Message("user", LINE))) == ()
    other = LeftOutLines(["Trace: "]).without(said)
    assert other[0].content == f"{LINE}\nYou"
    both = LeftOutLines([BILLING_LINE, "Trace: "]).without(said)
    assert both[0].content == "You"


@given(st.lists(st.sampled_from([LINE, "", "You", f" {LINE}", "\r"]), max_size=6))
@example([LINE, ""])
def test_no_other_line_is_changed(lines: list[str]) -> None:
    (told, _) = (*DEFAULT.without((Message("system", "\n".join(lines)), ASKED)), ASKED)[:2]
    rest = "\n".join(line for line in lines if line != LINE)
    assert told == (Message("system", rest) if rest or LINE not in lines else ASKED)


@pytest.mark.parametrize("bad", ["", "   ", "abc", "a line\nand another", "x" * 300])
def test_what_is_no_beginning_of_a_line_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="left_out_lines"):
        HttpConfig(left_out_lines=(bad,))
    with pytest.raises(ConfigError, match="at most"):
        HttpConfig(left_out_lines=tuple(f"line {number}" for number in range(65)))
