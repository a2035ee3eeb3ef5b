"""Render chat templates here and with transformers' `apply_chat_template`, and compare.

    python -m tools.check_templates FOLDER [--show NAME]

FOLDER has templates (*.jinja) and models (*.gguf, whose template is taken); llama.cpp's repository,
for one, has some seventy in models/templates. Each is rendered with 21 conversations. transformers
is installed into .bench-venvs. Exit status 1 if a chat is not equal for a reason that is not known:
transformers leaves out tools, and calls, that a template does not show; here the tools are refused,
and the calls written as text.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

from bench.judges.environments import environment, version_of
from outrider.errors import OutriderError
from outrider.models.chat import Message
from outrider.models.chat_template import ChatTemplate, TemplateAbilities
from outrider.models.gguf_file import content_of, open_gguf
from outrider.models.template_variables import dated
from outrider.models.tools import ToolCall, check_tools, tool_text
from tools.check_templates.conversations import CONVERSATIONS, MARKUP, Conversation

PACKAGES: Final = ("transformers==5.24.0", "jinja2==3.1.6")
_DAY: Final = "2026-11-29"
_VARIABLES: Final = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
_SHOWN_CHARS: Final = 160

Rendered: TypeAlias = tuple[str, str]
"""A text and "", or "" and why there is none."""


class Outcome(StrEnum):
    """What comparing one chat gives."""

    EQUAL = "equal"
    BOTH_REFUSE = "refused by both"
    ONLY_WE_RENDER = "refused by transformers alone"
    NO_TOOLS = "refused by us alone: the template shows no tools"
    CALLS_AS_TEXT = "calls written as text: the template shows none"
    ONLY_WE_REFUSE = "refused by us alone"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Compared:
    """One template with one conversation."""

    template: str
    conversation: Conversation
    ours: Rendered
    theirs: Rendered
    abilities: TemplateAbilities | None
    """None: the template is refused."""

    @property
    def outcome(self) -> Outcome:
        match bool(self.ours[1]), bool(self.theirs[1]):
            case True, True:
                return Outcome.BOTH_REFUSE
            case True, False:
                has_tools = self.abilities is None or self.abilities.tools
                is_known = self.conversation.tools and not has_tools
                return Outcome.NO_TOOLS if is_known else Outcome.ONLY_WE_REFUSE
            case False, True:
                return Outcome.ONLY_WE_RENDER
        if self.ours == self.theirs:
            return Outcome.EQUAL
        has_calls = self.abilities is None or self.abilities.calls
        is_known = any("tool_calls" in it for it in self.conversation.messages) and not has_calls
        return Outcome.CALLS_AS_TEXT if is_known else Outcome.DIFFERENT

    @property
    def why(self) -> str:
        """The refusal, or where the texts part; "" where the outcome says it."""
        if self.outcome in (Outcome.NO_TOOLS, Outcome.CALLS_AS_TEXT):
            return ""
        if self.ours[1] or self.theirs[1]:
            return (self.ours[1] or self.theirs[1])[:_SHOWN_CHARS]
        one, other = self.ours[0], self.theirs[0]
        pairs = enumerate(zip(one, other, strict=False))
        at = next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
        around = slice(max(0, at - 20), at + 60)
        return f"ours {one[around]!r}, theirs {other[around]!r}"


def templates_of(folder: Path) -> dict[str, str]:
    """Sources by file."""
    found = {it.name: it.read_text("utf-8") for it in folder.glob("*.jinja")}
    for file in folder.glob("*.gguf"):
        if template := content_of(open_gguf(file), "tokenizer.chat_template"):
            found[file.name] = str(template)
    return dict(sorted(found.items()))


def loaded(source: str) -> ChatTemplate | str:
    """As a service loads it, whose vocabulary has the control tokens that users type in the chats;
    or why it is refused."""
    try:
        template = ChatTemplate(source, [*_VARIABLES.values(), *MARKUP], _VARIABLES)
        template.check()
    except OutriderError as error:
        return error.message
    return template


def compare(name: str, source: str, theirs: Sequence[Rendered]) -> list[Compared]:
    """One template with all conversations."""
    template = loaded(source)
    if isinstance(template, str):
        return [
            Compared(name, chat, ("", template), their, None)
            for chat, their in zip(CONVERSATIONS, theirs, strict=True)
        ]
    return [
        Compared(name, chat, _rendered(template, chat), their, template.abilities)
        for chat, their in zip(CONVERSATIONS, theirs, strict=True)
    ]


def _rendered(template: ChatTemplate, chat: Conversation) -> Rendered:
    tools = check_tools(list(map(tool_text, chat.tools))) if chat.tools else ()
    variables = dated("", template.variables, _DAY)
    try:
        segments = template.segments(list(map(_message, chat.messages)), tools, variables)
    except OutriderError as error:
        return "", error.message
    return "".join(segment.text for segment in segments), ""


def _message(message: dict[str, Any]) -> Message:
    calls = tuple(
        ToolCall(
            call["id"],
            call["function"]["name"],
            json.dumps(call["function"]["arguments"], ensure_ascii=False),
        )
        for call in message.get("tool_calls", ())
    )
    return Message(
        message["role"],
        message["content"],
        calls,
        message.get("tool_call_id", ""),
        message.get("name", ""),
    )


def render_there(python: Path, sources: Sequence[str]) -> list[list[Rendered]]:
    """The same by transformers."""
    chats = [{"messages": it.messages, "tools": it.tools} for it in CONVERSATIONS]
    asked = {"day": _DAY, "variables": _VARIABLES, "templates": sources, "chats": chats}
    worker = Path(__file__).with_name("transformers_worker.py")
    done = subprocess.run(
        [str(python), str(worker)], input=json.dumps(asked), text=True, stdout=-1, check=True
    )
    return [[(text, why) for text, why in row] for row in json.loads(done.stdout)]


def report(compared: Sequence[Compared]) -> str:
    """The table, and what is not equal by template and reason."""
    counts = Counter(it.outcome for it in compared)
    lines = [f"| {outcome} | {counts[outcome]} |" for outcome in Outcome]
    reasons = defaultdict[tuple[str, Outcome, str], list[str]](list)
    for it in compared:
        if it.outcome is not Outcome.EQUAL and it.outcome is not Outcome.BOTH_REFUSE:
            reasons[it.template, it.outcome, it.why].append(it.conversation.name)
    lines.append("")
    for (template, outcome, why), names in reasons.items():
        lines.append(f"{template}: {outcome} ({', '.join(names)})")
        lines += [f"    {why}"] if why else []
    return "\n".join(["| outcome | chats |", "| --- | ---: |", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="with *.jinja and *.gguf")
    parser.add_argument("--show", default="", help="both texts of templates with this in the name")
    chosen = parser.parse_args(arguments)
    templates = templates_of(chosen.folder)
    if not templates:
        parser.error(f"{chosen.folder} has no *.jinja and no *.gguf with a template")
    programs = environment("transformers", *PACKAGES)
    there = render_there(programs / "python", list(templates.values()))
    compared = [
        it
        for (name, source), row in zip(templates.items(), there, strict=True)
        for it in compare(name, source, row)
    ]
    print(
        f"{len(templates)} templates, {len(CONVERSATIONS)} conversations, "
        f"transformers {version_of(programs, 'transformers')}"
    )
    print(report(compared))
    for it in compared:
        if chosen.show and chosen.show in it.template and it.outcome is Outcome.DIFFERENT:
            print(f"--- {it.template}, {it.conversation.name}, ours:\n{it.ours[0]}")
            print(f"--- transformers:\n{it.theirs[0]}")
    bad = (Outcome.DIFFERENT, Outcome.ONLY_WE_REFUSE)
    return int(any(it.outcome in bad for it in compared))


if __name__ == "__main__":
    raise SystemExit(main())
