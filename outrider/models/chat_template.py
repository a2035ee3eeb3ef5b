"""The template that turns a chat into a prompt.

A user may type the text of a control token, for example `<|im_end|>`. Rendered and tokenized
naively it would end their turn and let them write the system's next. Here control tokens come only
from the template:

1. Before rendering, each control token's text in a message is replaced by one private-use
   character that occurs nowhere in the chat or the template.
   So is what at the ends of a message could become markup beside the template's text.
2. The rendered text is split at control tokens, and the characters are turned back into what
   the user typed, inside the text segments, which are tokenized as plain text.
3. A second rendering, with every character but spaces blanked out of the messages, shows which
   control tokens the template writes by itself. Both must agree: no token is pieced together from
   template and message. It also shows which text is the template's own.

Names, ids, tool definitions, call arguments and texts of variables are the user's as well and
treated like messages. So is markup (markup.py), but in what the assistant said: it is as the model
wrote it, and templates look for it there.
Whether a template shows calls and tools is found out by rendering two small chats, not by reading
the template.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import islice
from typing import Any, Final

from outrider.errors import ConfigError, InvalidRequestError
from outrider.models.chat import Message, Segment, check_continued, check_text
from outrider.models.markup import TokenFinder
from outrider.models.replay_forms import replay_forms
from outrider.models.template_budget import BudgetSpentError
from outrider.models.template_data import TemplateData, is_blank
from outrider.models.template_variables import (
    CONTINUES,
    DATE,
    RESERVED,
    read_date,
    read_variables,
    unknown_variable,
)
from outrider.models.templating import (
    BROKEN,
    BoundedEnvironment,
    TemplateRefusal,
    date_formatter,
)
from outrider.models.tools import ToolCall, described, tool_text
from outrider.reply_parsing.formats import ReasoningTags, ends_in, reasoning_tags_of

_PIECE_CHARS: Final = 4096
_PRIVATE_USE: Final = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_MAX_OPENINGS: Final = 64
_MAX_SEGMENTS: Final = 1 << 16
"""Most control tokens and texts between them that a template may write."""
_QUOTED: Final = re.compile(r"'([^'\\\n]*)'|\"([^\"\\\n]*)\"")
_A_DAY: Final = date(1, 1, 1)
"""The day of small chats that find out what a template can do."""
_END: Final = ""
"""Among the tokens for which characters stand: the end of a message that is continued."""
_ASK: Final = Message("user", "a")
_PROBE_TOOL: Final = tool_text(
    {
        "name": "probe_tool",
        "description": "a",
        "parameters": {
            "type": "object",
            "properties": {"probe_value": {"type": "string", "description": "a"}},
            "required": ["probe_value"],
        },
    }
)
_PROBE_CALL: Final = (
    _ASK,
    # Mistral's templates want ids of nine letters and digits.
    Message(
        "assistant", "", (ToolCall("call00001", "probe_tool", '{"probe_value":"probe_city"}'),)
    ),
    Message("tool", "probe_result", tool_call_id="call00001"),
)


@dataclass(frozen=True, slots=True)
class TemplateAbilities:
    """Which parts of a chat besides messages the template shows."""

    tools: bool
    """Definitions of tools."""
    calls: bool
    """Calls in earlier replies, and their results."""
    reasoning: ReasoningTags | None
    """Tags between which the model thinks; None: it does not."""
    begins_in_reasoning: bool
    """The prompt ends in the tag that begins reasoning."""


class ChatTemplate:
    """A model's Jinja chat template in a sandbox and in bounds (templating.py). It has no clock:
    the prompt is a function of the messages, tools and variables, and the date is one of these.
    Thread-safe."""

    def __init__(
        self,
        source: str,
        control_tokens: Sequence[str],
        variables: Mapping[str, str],
        clock: Callable[[], float] = lambda: 0.0,
        markup: Sequence[str] = (),
    ) -> None:
        """`variables`: bos_token and the like. `clock`, in seconds, ends a rendering that takes too
        long; without one its steps do. `markup`: tokens that only the template and the assistant
        write, besides control tokens. Raises ConfigError if `source` is no template."""
        self._environment = BoundedEnvironment(clock)
        try:
            self._template = self._environment.compiled(source)
        except (*BROKEN, SyntaxError) as error:
            raise ConfigError(f"the model's chat template is broken: {error}") from error
        self._source = source
        self._reasoning_field = _reasoning_field(source)
        self._openings: dict[str, bool] = {}
        """Whether prompts with these variables end in the tag that begins reasoning."""
        self._variables = dict(variables)
        self._control = TokenFinder(control_tokens)
        self._markup = TokenFinder(markup)
        self._tokens = TokenFinder([*control_tokens, *markup]) if markup else self._control

    def segments(
        self, messages: Sequence[Message], tools: Sequence[str] = (), variables: str = ""
    ) -> list[Segment]:
        """The prompt for `messages`, which `check_messages` passed, with the generation prompt, the
        definitions of `tools`, which `check_tools` returned, and the client's own variables, as
        `check_variables` returned them. What the template refuses, or does not show, of earlier
        calls and results is rendered in another form (`replay_forms`); templates that need a
        description of every tool get an empty one.

        With the variable CONTINUES the prompt ends with the last message's content instead.

        Raises InvalidRequestError if the template refuses the messages in every form, if it shows
        no tools, if it has no such variable, if it shows the date and there is none, or if a
        message and the template would make a control token together.
        """
        with self._environment.job():
            return self._in_some_form(messages, tools, variables)

    def _in_some_form(
        self, messages: Sequence[Message], tools: Sequence[str], variables: str
    ) -> list[Segment]:
        given = read_variables(variables)
        continues = given.pop(CONTINUES, False)
        if continues:
            check_continued(messages)
        for name in given:
            if name not in self.variables:
                raise unknown_variable(name, self.variables)
        if DATE in self.variables and DATE not in given:
            raise InvalidRequestError(
                f"the model's chat template shows the date; give it as the variable {DATE}"
            )
        if tools and not self.abilities.tools:
            raise InvalidRequestError(
                "the model's chat template shows no tools; choose a model that was trained to "
                "call them, or send the chat without tools"
            )
        refusals = list[InvalidRequestError]()
        for shown in dict.fromkeys((tuple(tools), described(tools))):
            for form in replay_forms(messages, shows_calls=self.abilities.calls):
                try:
                    return self._segments(form, shown, given, continues=continues)
                except InvalidRequestError as error:
                    refusals.append(error)
                    if isinstance(error.__cause__, BudgetSpentError):
                        raise refusals[0] from error
        raise refusals[0]

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names of the variables that the template takes from a client."""
        return self._environment.variables(self._source) - RESERVED

    @cached_property
    def _own_words(self) -> frozenset[str]:
        """Texts in quotes in the template."""
        return frozenset(text for pair in _QUOTED.findall(self._source) for text in pair)

    @cached_property
    def abilities(self) -> TemplateAbilities:
        """Features that the template renders, found by rendering small chats."""
        with self._environment.job():
            prompt = self._probed([_ASK], [])
            with_tool = self._probed([_ASK], [_PROBE_TOOL])
            # Some templates fail without tools.
            shows_calls = any(
                _has(self._probed(_PROBE_CALL, tools), "probe_tool", "probe_city", "probe_result")
                for tools in ([], [_PROBE_TOOL])
            )
        tags = reasoning_tags_of(self._source, prompt)
        return TemplateAbilities(
            tools=_has(with_tool, "probe_tool", "probe_value"),
            calls=shows_calls,
            reasoning=tags,
            begins_in_reasoning=tags is not None and ends_in(tags, prompt),
        )

    def begins_in_reasoning(self, variables: str = "") -> bool:
        """Whether a prompt with these variables ends in the tag that begins reasoning, as far as a
        small chat tells. Values that the template does not name count as not given."""
        abilities, given = self.abilities, read_variables(variables)
        given.pop(DATE, None)  # no reasoning depends on the day
        if abilities.reasoning is None or not given or not self._are_common(given):
            return abilities.begins_in_reasoning
        named = repr(sorted(given.items()))
        is_open = self._openings.get(named)  # another thread may clear them
        if is_open is None:
            is_open = ends_in(abilities.reasoning, self._probed([_ASK], [], given))
            if len(self._openings) >= _MAX_OPENINGS:
                self._openings.clear()
            self._openings[named] = is_open
        return is_open

    def split(self, text: str) -> list[Segment]:
        """Split a text at the control tokens and the markup whose texts it contains; they become
        these tokens. Only for prompts that the sender rendered, never for text from others."""
        check_text(text)
        return _segments_of(text, self._tokens)

    def split_reply(self, text: str) -> list[Segment]:
        """Split a text as the model writes it, at its markup."""
        return _segments_of(text, self._markup)

    def check(self) -> None:
        """Raises ConfigError for a template that fails on a chat of one message, with a tool and
        without: whatever its clients send then, the fault is the template's. One that refuses it by
        itself is whole."""
        try:
            self._try([])
        except BROKEN as error:
            try:
                self._try([_PROBE_TOOL])  # some are for chats with tools alone
            except BROKEN:
                raise ConfigError(
                    f"the model's chat template is broken, a chat of one message fails: {error} "
                    f"({type(error).__name__}); set another one (chat_template)"
                ) from error

    def _try(self, tools: Sequence[str]) -> None:
        """Raises one of BROKEN for a template that fails."""
        with contextlib.suppress(TemplateRefusal):
            self._rendered(self._data([_ASK], tools, {}), _A_DAY)

    def _probed(
        self,
        messages: Sequence[Message],
        tools: Sequence[str],
        variables: dict[str, Any] | None = None,
    ) -> str:
        """A chat as the template renders it; "" if the template refuses it."""
        try:
            return "".join(segment.text for segment in self._segments(messages, tools, variables))
        except InvalidRequestError:
            return ""

    def _segments(
        self,
        messages: Sequence[Message],
        tools: Sequence[str],
        variables: dict[str, Any] | None = None,
        *,
        continues: bool = False,
    ) -> list[Segment]:
        """`continues`: the prompt ends with the content of the last message."""
        given = dict(variables or {})
        day = read_date(given.pop(DATE)) if DATE in given else _A_DAY
        chat = self._data(messages, tools, given)
        texts = list(chat.texts())
        stand_ins = self._stand_ins(texts, has_end=continues)
        end = stand_ins.get(_END, "")
        hidden = chat
        if stand_ins:
            hidden = chat.changed(
                lambda text: _with_stand_ins(self._hidden(text), stand_ins),
                lambda text: _with_stand_ins(self._control.split(text), stand_ins),
            )
        segments = self._written(hidden, day, end)
        # On another day: a text with the date, which may be the client's choice, is no template's.
        alone = self._written(chat.blanked(self._own_words), _A_DAY, end)
        if _control_texts(segments) != _control_texts(alone):
            raise InvalidRequestError(
                "a message and the chat template together would make a control token; change the "
                "beginning or the end of the message"
            )
        # Texts made with what others cannot know are no texts of the template. A text that looks
        # blanked as it was sent would look like one.
        is_common = self._are_common(chat.variables) and not any(is_blank(it) for it, _ in texts)
        typed = {char: text for text, char in stand_ins.items()}
        return list(_restored(segments, alone if is_common else [], self._markup, typed))

    def _are_common(self, variables: Mapping[str, Any]) -> bool:
        return all(map(self._is_common, variables.values()))

    def _is_common(self, value: Any) -> bool:
        """Whether a variable's value is one of a few that the template itself names."""
        is_own_word = isinstance(value, str) and value in self._own_words
        return is_own_word or value is None or isinstance(value, bool)

    def _hidden(self, text: str) -> Iterator[tuple[str, bool]]:
        """The parts of a text that is not the assistant's, and whether a character stands for
        each."""
        num_head, num_tail = self._markup.open_ends(text)
        end = len(text) - num_tail
        if num_head:
            yield text[:num_head], True
        yield from self._tokens.split(text[num_head:end])
        if num_tail:
            yield text[end:], True

    def _stand_ins(
        self, texts: Sequence[tuple[str, bool]], *, has_end: bool = False
    ) -> dict[str, str]:
        """For each part of these texts that is hidden (of the assistant: control token) a character
        that occurs nowhere, and with `has_end` one for _END."""
        found = {
            part
            for text, is_reply in texts
            for part, is_hidden in (self._control.split if is_reply else self._hidden)(text)
            if is_hidden
        }
        if has_end:
            found.add(_END)
        if not found:
            return {}
        free = _unused_characters((self._source, *(text for text, _ in texts)))
        stand_ins = dict(zip(sorted(found), free, strict=False))
        if len(stand_ins) < len(found):
            raise InvalidRequestError("the chat uses up all private-use characters; use fewer")
        return stand_ins

    def _data(
        self, messages: Sequence[Message], tools: Sequence[str], variables: dict[str, Any]
    ) -> TemplateData:
        return TemplateData.of(
            messages,
            tools,
            variables,
            knows_developer="developer" in self._source,
            reasoning_field=self._reasoning_field,
        )

    def _written(self, chat: TemplateData, day: date, end: str) -> list[Segment]:
        parts = islice(self._control.split(self._render(chat, day, end)), _MAX_SEGMENTS + 1)
        segments = [Segment(part, is_token) for part, is_token in parts]
        if len(segments) > _MAX_SEGMENTS:
            raise InvalidRequestError(
                f"the model's chat template writes more than {_MAX_SEGMENTS // 2} control tokens"
            )
        return segments

    def _render(self, chat: TemplateData, day: date, end: str = "") -> str:
        """`end`: the character that stands for the end of the prompt, behind the content of the
        last message; "": the prompt ends with what begins the next message."""
        try:
            text = self._rendered(chat.ended(end) if end else chat, day, is_open=bool(end))
            if end not in text:
                raise InvalidRequestError(
                    "the model's chat template does not show the last message, so that it cannot "
                    "be continued; end the conversation with a user's message"
                )
            return text[: text.rindex(end)] if end else text
        except TemplateRefusal as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}"
            ) from error
        except BROKEN as error:
            raise InvalidRequestError(
                f"the model's chat template fails on these messages: {error} "
                f"({type(error).__name__}); the operator may set another one"
            ) from error

    def _rendered(self, chat: TemplateData, day: date, *, is_open: bool = False) -> str:
        """`is_open`: without what begins the next message. Raises one of BROKEN."""
        # As `apply_chat_template` has them: None, where there is nothing, is defined.
        variables = {
            "messages": chat.messages,
            "tools": chat.tools or None,
            "documents": None,
            "add_generation_prompt": not is_open,
            **chat.variables,
            **self._variables,
            DATE: date_formatter(day),
        }
        rendered, _ = self._environment.rendered(self._template, variables)
        return rendered


def _reasoning_field(source: str) -> str:
    """The field of a message in which a template looks for reasoning, as an attribute or a key in
    quotes; "": it does not."""
    names = ("reasoning_content", "reasoning", "thinking")
    return next((name for name in names if re.search(rf"[.'\"]{name}\b", source)), "")


def _has(text: str, *wanted: str) -> bool:
    return all(part in text for part in wanted)


def _segments_of(text: str, tokens: TokenFinder) -> list[Segment]:
    return [Segment(part, is_token) for part, is_token in tokens.split(text)]


def _with_stand_ins(parts: Iterator[tuple[str, bool]], stand_ins: Mapping[str, str]) -> str:
    return "".join(stand_ins[part] if is_hidden else part for part, is_hidden in parts)


def _control_texts(segments: Sequence[Segment]) -> list[str]:
    return [segment.text for segment in segments if segment.is_token]


def _restored(
    segments: Sequence[Segment],
    alone: Sequence[Segment],
    markup: TokenFinder,
    typed: Mapping[str, str],
) -> Iterator[Segment]:
    """Segments between control tokens, split at markup, with the user's text put back for each
    stand-in. A text counts as the template's if the rendering of the template `alone` has the same
    text between the same control tokens."""
    own = {number: segment.text for number, segment in _numbered(alone)}
    stand_ins = re.compile("[" + "".join(typed) + "]") if typed else None
    for number, segment in _numbered(segments):
        is_template = segment.is_token or own.get(number) == segment.text
        if segment.is_token:
            yield Segment(segment.text, True, is_template)
            continue
        for text, is_markup in markup.split(segment.text):
            if stand_ins is not None and not is_markup:
                text = stand_ins.sub(lambda match: typed[match.group()], text)
            yield Segment(text, is_markup, is_template)


def _numbered(segments: Sequence[Segment]) -> Iterator[tuple[int, Segment]]:
    """With the place of each: odd for a control token, even for the text before it."""
    num_control = 0
    for segment in segments:
        yield 2 * num_control + segment.is_token, segment
        num_control += segment.is_token


def _unused_characters(texts: Sequence[str]) -> Iterator[str]:
    """Private-use characters that occur in none of these. In one pass over them, and in pieces:
    one call over a long text would hold the GIL."""
    used: set[str] = set()
    for text in texts:
        if not text.isascii():
            for at in range(0, len(text), _PIECE_CHARS):
                used.update(text[at : at + _PIECE_CHARS])
    for block in _PRIVATE_USE:
        yield from (char for char in map(chr, block) if char not in used)
