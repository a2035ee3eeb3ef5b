"""Distinguishes text for the model from commands in a line of a conversation (pure).

The commands are those of `ollama run` and similar programs, with the same meaning.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final

from outrider.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and what follows it on the line, without spaces around."""

    name: str
    argument: str


COMMANDS: Final = {
    "/help": "",
    "/model": "NAME",
    "/system": "TEXT",
    "/seed": "NUMBER",
    "/save": "FILE",
    "/stats": "",
    "/reset": "",
    "/bye": "",
}
"""Each command with its argument."""

HELP: Final = """\
/model NAME    ask this model from now on; without a name: which one is asked
/system TEXT   the system message from now on, none with `/system -`; without a text: show it
/seed NUMBER   of what comes next, where replies are sampled; without a number: show it
/save FILE     write the conversation as JSON, in the shape of OpenAI's messages
/stats         what the conversation and its last reply took
/reset         forget the conversation
/bye           end (Ctrl-D does too)
Enter sends, Alt-Enter begins a new line, pasted text is one message. Ctrl-C stops a reply.
A message that begins with a / is sent with two: //etc is a path."""

_FORM: Final = re.compile(r"/([a-z?]+)(?:\s+(.*))?\s*", re.DOTALL | re.IGNORECASE)


def read(line: str) -> Command | str:
    """A command, or the text for the model. Raises InvalidRequestError for an unknown command, and
    for an argument to a command that takes none."""
    if line.startswith("//"):
        return line[1:]
    if (found := _FORM.fullmatch(line)) is None:
        return line
    name = f"/{found[1].lower()}".replace("/?", "/help")
    argument = (found[2] or "").strip()
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f", but there is {near[0]}" if near else ""
        raise InvalidRequestError(
            f"there is no command {name}{meant}; see /help, or write // to send a message that "
            "begins with a /"
        )
    if argument and not COMMANDS[name]:
        raise InvalidRequestError(f"{name} takes no argument")
    return Command(name, argument)
