"""Chats and the template that turns them into a prompt.

A user may type the text of a control token, for example `<|im_end|>`. Rendered and tokenized
naively it would end their turn and let them write the system's next. Here control tokens come
from the template alone:

1. Before rendering, each control token's text in a message is replaced by one private-use
   character that occurs nowhere in the chat or the template.
2. The rendered text is split at control tokens, and the characters are turned back into what
   the user typed, inside the text segments, which are tokenized as plain text.
3. A second rendering, with every character that a control token could be made of blanked out of
   the messages, shows which control tokens the template writes by itself. Both must agree: no
   token is pieced together from template and message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from outrider.errors import ConfigError, EmptyPromptError, InvalidRequestError
from outrider.models.templating import BROKEN, BoundedEnvironment
from outrider.models.tools import ToolCall

ROLES: Final = ("system", "user", "assistant")
MAX_MESSAGES: Final = 512
MAX_CHAT_CHARS: Final = 1 << 20
"""Characters of all messages together."""
_BLANK: Final = "\ufffd"
_ASCII_BLANK: Final = 0x7F
"""Stands for `_BLANK` in ASCII text: no control token has it, no template looks for it."""
_PIECE_CHARS: Final = 4096
_PRIVATE_USE: Final = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. Nothing is checked before `check_messages`."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant: what it called. Its content may be empty."""
    tool_call_id: str = ""
    """Of a tool: the call that it answers."""
    name: str = ""
    """Who speaks, for templates that show it; of a tool "" is the name that its call has."""
    reasoning: str = ""
    """Of an assistant: what it thought first, for templates that show it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a rendered chat: one control token, or text that holds none."""

    text: str
    is_control: bool


def check_text(text: str) -> None:
    """Raises InvalidRequestError for text that is no Unicode (a lone surrogate)."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text has a lone surrogate at character {error.start}; send valid Unicode"
        ) from error


def check_num_messages(count: int) -> None:
    """Raises InvalidRequestError for a chat of more messages than may be, before each costs."""
    if count > MAX_MESSAGES:
        raise InvalidRequestError(f"the chat has {count} messages; send at most {MAX_MESSAGES}")


def check_messages(messages: Sequence[Message]) -> None:
    """Raises EmptyPromptError or InvalidRequestError for a chat that cannot be answered."""
    if not any(message.content for message in messages):
        raise EmptyPromptError("the chat has no text; send at least one message with content")
    check_num_messages(len(messages))
    num_chars = sum(len(message.content) for message in messages)
    if num_chars > MAX_CHAT_CHARS:
        raise InvalidRequestError(
            f"the chat has {num_chars} characters; send at most {MAX_CHAT_CHARS}"
        )
    for message in messages:
        if message.role not in ROLES:
            raise InvalidRequestError(
                f"role {message.role[:32]!r} is not known; use one of {', '.join(ROLES)}"
            )
        check_text(message.content)


class ChatTemplate:
    """A model's Jinja chat template in a sandbox and in bounds (templating.py). It has no clock:
    the prompt is a function of the messages. Thread-safe."""

    def __init__(
        self,
        source: str,
        control_tokens: Sequence[str],
        variables: Mapping[str, str],
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`variables`: bos_token and the like. `clock`, in seconds, ends a rendering that takes too
        long; without one its steps do. Raises ConfigError if `source` is no template."""
        self._environment = BoundedEnvironment(clock)
        try:
            self._template = self._environment.compiled(source)
        except (*BROKEN, SyntaxError) as error:
            raise ConfigError(f"the model's chat template is broken: {error}") from error
        self._source = source
        self._variables = dict(variables)
        # Longest first: where two tokens begin, the tokenizer takes the longer one.
        longest_first = sorted(control_tokens, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        letters = set("".join(control_tokens))
        self._blanks = {ord(char): _BLANK for char in letters}
        self._ascii_blanks = bytes(_ASCII_BLANK if chr(b) in letters else b for b in range(256))
        firsts = {token[0] for token in control_tokens}
        self._first = firsts.pop() if len(firsts) == 1 else ""

    def segments(self, messages: Sequence[Message]) -> list[Segment]:
        """The prompt for `messages`, which `check_messages` passed, generation prompt included.

        Raises InvalidRequestError if the template refuses them, or if a message and the template
        would make a control token together.
        """
        contents = [message.content for message in messages]
        hidden, typed = self._hide(contents)
        segments = list(self._split(self._render(messages, hidden)))
        blank = [self._blank(content) for content in contents]
        alone = list(self._split(self._render(messages, blank)))
        if _control_texts(segments) != _control_texts(alone):
            raise InvalidRequestError(
                "a message and the chat template together would make a control token; change the "
                "beginning or the end of the message"
            )
        if not typed:
            return segments
        stand_ins = re.compile("[" + "".join(typed) + "]")
        return [
            Segment(stand_ins.sub(lambda match: typed[match.group()], s.text), s.is_control)
            for s in segments
        ]

    def split(self, text: str) -> list[Segment]:
        """Text at the control tokens whose texts it has: they become these tokens. For prompts that
        whoever sends them has rendered, not for what others said in them."""
        check_text(text)
        return list(self._split(text))

    def _blank(self, content: str) -> str:
        """Without any character of a control token. In pieces, or by a table of bytes: one call
        with a dictionary would hold the GIL for tens of milliseconds over a long text."""
        if content.isascii():
            return content.encode().translate(self._ascii_blanks).decode()
        starts = range(0, len(content), _PIECE_CHARS)
        return "".join(content[at : at + _PIECE_CHARS].translate(self._blanks) for at in starts)

    def _matches(self, text: str) -> Iterator[re.Match[str]]:
        """Every control token in `text`. Tokens with one first character are looked for where it
        stands: that is many times faster over a long text, and lets go of the GIL."""
        if not self._first:
            yield from self._control.finditer(text)
            return
        at = text.find(self._first)
        while at >= 0:
            match = self._control.match(text, at)
            if match is not None:
                yield match
            at = text.find(self._first, match.end() if match is not None else at + 1)

    def _hide(self, contents: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Contents with control tokens replaced, and what each replacement stands for."""
        found = {match.group() for content in contents for match in self._matches(content)}
        if not found:
            return list(contents), {}
        free = _unused_characters((self._source, *contents))
        stand_in = dict(zip(sorted(found), free, strict=False))
        if len(stand_in) < len(found):
            raise InvalidRequestError("the chat uses up all private-use characters; use fewer")
        hidden = ["".join(self._with_stand_ins(text, stand_in)) for text in contents]
        return hidden, {char: text for text, char in stand_in.items()}

    def _with_stand_ins(self, text: str, stand_in: Mapping[str, str]) -> Iterator[str]:
        at = 0
        for match in self._matches(text):
            yield text[at : match.start()]
            yield stand_in[match.group()]
            at = match.end()
        yield text[at:]

    def _render(self, messages: Sequence[Message], contents: Sequence[str]) -> str:
        turns = [
            {"role": message.role, "content": content}
            for message, content in zip(messages, contents, strict=True)
        ]
        try:
            variables = {"messages": turns, "add_generation_prompt": True, **self._variables}
            rendered, _ = self._environment.rendered(self._template, variables)
            return rendered
        except BROKEN as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}"
            ) from error

    def _split(self, rendered: str) -> Iterator[Segment]:
        at = 0
        for match in self._matches(rendered):
            if match.start() > at:
                yield Segment(rendered[at : match.start()], False)
            yield Segment(match.group(), True)
            at = match.end()
        if at < len(rendered):
            yield Segment(rendered[at:], False)


def _control_texts(segments: Sequence[Segment]) -> list[str]:
    return [segment.text for segment in segments if segment.is_control]


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
