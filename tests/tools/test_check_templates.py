"""The tool that compares templates with transformers, which small templates stand in for here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.models import tool_templates
from tests.models.gguf_files import write_out
from tests.models.tool_templates import as_transformers_does
from tools.check_templates.__main__ import Outcome, Rendered, compare, report, templates_of
from tools.check_templates.conversations import CONVERSATIONS

VARIABLES: dict[str, Any] = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
LEAVES_CALLS_OUT = """
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}{{ message.role + ': ' + message.content }}{% endfor %}"""


def rendered(template: str) -> list[Rendered]:
    """By transformers' set-up of Jinja."""
    found = list[Rendered]()
    for chat in CONVERSATIONS:
        try:
            text = as_transformers_does(
                f"{template} ", chat.messages, chat.tools or None, **VARIABLES
            )
            found.append((text, ""))
        except Exception as error:
            found.append(("", str(error)))
    return found


def outcomes(template: str, theirs: list[Rendered]) -> Counter[Outcome]:
    return Counter(it.outcome for it in compare("t", f"{template} ", theirs))


def test_every_conversation_has_another_name() -> None:
    assert len({it.name for it in CONVERSATIONS}) == len(CONVERSATIONS) == 21


@pytest.mark.parametrize("family", tool_templates.FAMILIES)
def test_templates_of_every_family_are_equal(family: str) -> None:
    template = tool_templates.FAMILIES[family]
    found = outcomes(template, rendered(template))
    assert found[Outcome.EQUAL] >= 19
    assert found.keys() <= {Outcome.EQUAL, Outcome.BOTH_REFUSE, Outcome.ONLY_WE_RENDER}


def test_what_a_template_leaves_out_is_no_difference() -> None:
    plain = outcomes(tool_templates.PLAIN, rendered(tool_templates.PLAIN))
    assert plain == {Outcome.EQUAL: 12, Outcome.NO_TOOLS: 9}
    calls = outcomes(LEAVES_CALLS_OUT, rendered(LEAVES_CALLS_OUT))
    assert calls == {Outcome.EQUAL: 15, Outcome.CALLS_AS_TEXT: 6}


def test_what_differs_is_shown() -> None:
    theirs = rendered(tool_templates.HERMES)
    theirs[0] = (theirs[0][0].replace("Hello", "Hallo"), "")
    compared = compare("hermes", f"{tool_templates.HERMES} ", theirs)
    assert compared[0].outcome is Outcome.DIFFERENT
    text = report(compared)
    assert "| different | 1 |" in text
    assert "hermes: different (one message)" in text and "Hallo" in text


def test_a_template_that_is_refused() -> None:
    broken = "{% for message in messages %}"
    found = outcomes(broken, [("text", "")] * len(CONVERSATIONS))
    assert found == {Outcome.ONLY_WE_REFUSE: len(CONVERSATIONS)}


def test_templates_come_from_files_of_both_kinds(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    (tmp_path / "b.jinja").write_text("B")
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_chat_template("A")
    write_out(writer)
    write_out(GGUFWriter(tmp_path / "c.gguf", "llama"))
    assert templates_of(tmp_path) == {"a.gguf": "A", "b.jinja": "B"}
