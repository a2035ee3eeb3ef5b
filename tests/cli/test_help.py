"""The help of every command, as a user reads it: whole sentences, of which nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from typer.main import get_command

from outrider.cli.main import app_for
from tests.cli.invoking import invoke

_VERBS: Final = frozenset(
    """
    add answer ask chat check compare continue copy count create cut define draft drain embed fetch
    keep kill leave let list make manage move print refresh remove replace return revoke run send
    serve set show sign start stop stream take trust turn use verify
    """.split()
)
"""What a command begins with, and a flag that takes no value."""
_NO_SENTENCE: Final = re.compile(r"^(Of|Where|Who|Whose|What|Which|At|Also) ")
"""Openings after which a reader looks for the verb."""
_STALE: Final = re.compile(r"\b(go(es)? on|anew|tells?|told|that of|there (is|are))\b", re.I)
"""Phrases that a plainer one replaces."""
_SWALLOWED: Final = re.compile(r"\[\]|\( *\)|<>|``|(?<=\S)  +(?=\S)|\s[,.;:](\s|$)|_ |__")
"""What is left of a sentence whose brackets were taken for markup."""
_PAIRS: Final = ("()", "[]", "<>")


def commands() -> Iterator[tuple[str, Any]]:
    """Each command and group of commands, with what a user types for it."""

    def below(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, inner in getattr(command, "commands", {}).items():
            yield from below(inner, f"{path} {name}")

    return below(get_command(app_for([])), "outrider")


def own(command: Any) -> list[Any]:
    """Its flags and arguments, but for those that every command line has."""
    ours = [it for it in command.params if "completion" not in it.name]
    return [it for it in ours if not getattr(it, "hidden", False)]


def faults(text: str) -> list[str]:
    """What is wrong with a text, as far as a machine can tell."""
    found = [f"left over: {it[0]!r}" for it in _SWALLOWED.finditer(text)]
    found += [f"stale: {it[0]!r}" for it in _STALE.finditer(text)]
    found += [f"unbalanced {a}{b}" for a, b in _PAIRS if text.count(a) != text.count(b)]
    found += ["an odd number of `"] if text.count("`") % 2 else []
    for paragraph in text.split("\n\n"):
        if not paragraph.rstrip().endswith((".", "...")):
            found.append(f"no end: ...{paragraph[-20:]!r}")
        if _NO_SENTENCE.match(paragraph):
            found.append(f"no sentence: {paragraph[:20]!r}...")
        if paragraph[0].islower():
            found.append(f"begins small: {paragraph[:20]!r}...")
    return found


def letters(text: str) -> str:
    """Without what a terminal adds or leaves out: blanks, frames, the quotes of code."""
    return re.sub(r"[\s\u2500-\u257f`]", "", text)


COMMANDS: Final = dict(commands())


@pytest.mark.parametrize("path", COMMANDS)
def test_help_is_whole_sentences(path: str) -> None:
    command = COMMANDS[path]
    assert faults(command.help) == []
    for it in own(command):
        assert it.help, f"{it.name} is not explained"
        text = it.help.replace("HOST:PORT", "Host and port").replace("`", "", 2)
        text = text[0].upper() + text[1:] if it.help[0] == "`" else text
        assert faults(text) == [], it.name


@pytest.mark.parametrize("path", COMMANDS)
def test_what_does_something_says_so_with_a_verb(path: str) -> None:
    command = COMMANDS[path]
    for name, text in (
        (path, command.help),
        *((it.name, it.help) for it in own(command) if getattr(it, "is_flag", False)),
    ):
        assert re.split(r"\W", text.lower(), maxsplit=1)[0] in _VERBS, f"{name}: {text[:40]}"


@pytest.mark.parametrize("path", COMMANDS)
def test_a_terminal_shows_all_of_a_help_text(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    command = COMMANDS[path]
    shown = letters(invoke([*path.split()[1:], "--help"]).output)
    for text in (command.help, *(it.help for it in own(command))):
        assert letters(text) in shown


def test_faults_are_found() -> None:
    for text in (
        "They are registered as [].",
        "A TOML file with tables , and more.",
        "The environment (OUTRIDER__).",
        "Of the shards.",
        "Go on where it ended.",
        "prints it.",
        "Print it",
        "Print (it.",
        "Print `it.",
    ):
        assert faults(text), text
    assert faults("Print [edge], `x` and (y).\n\nThen HOST:PORT.") == []
