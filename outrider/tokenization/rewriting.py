"""Prompt rewriting: an operator's system prefix, and shortening of chats that are too long. Pure.

The number of tokens of a text is known only once it is tokenized. So a chat that is too long is
shortened in proportion to its own tokens per character and tokenized again: an accepted prompt was
counted, never estimated.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from outrider.bounds import PositiveInt
from outrider.errors import ConfigError, PromptTooLongError
from outrider.models.chat import SYSTEM_ROLES, Message, has_content, num_chars_of


class TooLong(StrEnum):
    """Treatment of a chat that is longer than the model's context."""

    REFUSE = "refuse"
    """The chat is refused; the error gives its tokens and the limit."""
    CUT_HEAD = "cut_head"
    """The beginning of its longest message is removed."""
    CUT_TAIL = "cut_tail"
    """The end of its longest message is removed."""
    CUT_MIDDLE = "cut_middle"
    """The middle of its longest message is removed."""
    KEEP_TURNS = "keep_turns"
    """System messages, the first turn and the last ones stay; a short note replaces the turns
    between. No model summarizes them. The result of a tool stays or goes with its call."""


TURNS: Final = "{turns}"
"""In `RewritingPolicy.omitted`: replaced by the number of messages omitted."""
_MAX_PREFIX_BYTES: Final = 32_768
"""Messages that an edge passes on untokenized travel in one frame with the prefix, which has room
for this much."""


@dataclass(frozen=True, slots=True)
class RewritingPolicy:
    """Raises ConfigError at construction."""

    system_prefix: str = ""
    """Put before every chat's system prompt, or used as one; empty: none."""
    too_long: str = TooLong.REFUSE.value
    """refuse, cut_head, cut_tail, cut_middle or keep_turns."""
    keep_turns: PositiveInt = 8
    """With keep_turns: messages at the end that stay; fewer where they do not fit."""
    drop_turns: PositiveInt = 4
    """With keep_turns: messages that are omitted at a time, in short chats fewer. Between two such
    steps each prompt begins with the whole previous one, which replicas have in their prefix
    caches."""
    omitted: str = f"\n\n[earlier conversation omitted: {TURNS} messages]"
    """With keep_turns: text behind the first turn where turns were omitted; empty: none."""
    min_reply_tokens: PositiveInt = 256
    """Tokens of the context that a shortened chat leaves for its reply."""
    mark: str = "\n[...]\n"
    """Text that replaces what was cut out of a message."""

    def __post_init__(self) -> None:
        known = [one.value for one in TooLong]
        if self.too_long not in known:
            raise ConfigError(f"too_long must be one of {', '.join(known)}, not {self.too_long!r}")
        num_bytes = len(self.system_prefix.encode())
        if num_bytes > _MAX_PREFIX_BYTES:
            raise ConfigError(
                f"system_prefix has {num_bytes} bytes; at most {_MAX_PREFIX_BYTES} fit"
            )


AS_IT_IS: Final = RewritingPolicy()
"""The policy that rewrites nothing."""


_MARGIN: Final = 1.02
"""Factor by which a chat is shortened further than its mean tokens per character require."""
_SYSTEM: Final = "system"


class Rewriter:
    """Applies one policy. Equal chats become equal chats."""

    def __init__(self, policy: RewritingPolicy = AS_IT_IS) -> None:
        self._policy = policy

    @property
    def has_prefix(self) -> bool:
        """Whether `prepare` puts anything before chats."""
        return bool(self._policy.system_prefix)

    @property
    def shortens(self) -> bool:
        """Whether chats that are too long are shortened rather than refused."""
        return self._policy.too_long != TooLong.REFUSE

    def prepare(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The chat with the operator's prefix. An empty chat stays empty, and is refused later."""
        prefix = self._policy.system_prefix
        if not prefix or not has_content(messages):
            return messages
        first, *rest = messages
        if first.role not in SYSTEM_ROLES:
            return [Message(_SYSTEM, prefix), *messages]
        return [replace(first, content=f"{prefix}\n\n{first.content}"), *rest]

    def fitted(
        self,
        messages: Sequence[Message],
        num_tokens: int,
        max_tokens: int,
        encode: Callable[[Sequence[Message]], Generator[int, None, array[int]]],
        *,
        num_fixed_chars: int = 0,
    ) -> Generator[int, None, array[int]]:
        """The ids of the chat, shortened from `num_tokens` so that `min_reply_tokens` remain of
        the context, which is one longer than `max_tokens`. `num_fixed_chars`: of its tools, which
        stay as they are.

        `encode` gives the ids of shorter and shorter chats, in slices, as this does. Raises
        PromptTooLongError if the policy allows none that fits, and what `encode` raises.
        """
        room = max_tokens + 1 - self._policy.min_reply_tokens
        num_chars, count = num_chars_of(messages) + num_fixed_chars, num_tokens
        # Less than before every time, for `count` is above `room`.
        while (max_chars := int(num_chars * room / (count * _MARGIN))) > num_fixed_chars:
            found = self._shorter(messages, max_chars - num_fixed_chars)
            if found is None:
                break
            ids = yield from encode(found)
            if len(ids) <= room:
                return ids
            num_chars, count = num_chars_of(found) + num_fixed_chars, len(ids)
        raise PromptTooLongError.of(num_tokens, max_tokens)

    def _shorter(self, messages: Sequence[Message], max_chars: int) -> Sequence[Message] | None:
        """The chat in at most `max_chars` characters; None if the policy allows none."""
        policy = self._policy
        if policy.too_long == TooLong.REFUSE:
            return None
        if policy.too_long == TooLong.KEEP_TURNS:
            return _last_turns(messages, max_chars, policy)
        return _cut(messages, num_chars_of(messages) - max_chars, policy)


def _last_turns(
    messages: Sequence[Message], max_chars: int, policy: RewritingPolicy
) -> Sequence[Message] | None:
    """Leading system messages, the first message after them, and as many of the last ones as
    `max_chars` allow, at least one; None if even those are too long."""
    roles = [message.role for message in messages]
    num_system = next((n for n, it in enumerate(roles) if it not in SYSTEM_ROLES), len(roles))
    head, turns = messages[: num_system + 1], messages[num_system + 1 :]
    # What a tool answered says nothing without the call in front of it.
    begins = [n for n, turn in enumerate(turns) if turn.role != "tool"]
    for least in _counts_to_omit(len(turns), policy) if begins else ():
        count = next((n for n in begins if n >= least), begins[-1])
        noted = head[-1].content + policy.omitted.replace(TURNS, str(count))
        found = [*head[:-1], replace(head[-1], content=noted), *turns[count:]]
        if num_chars_of(found) <= max_chars:
            return found
    return None


def _counts_to_omit(num_turns: int, policy: RewritingPolicy) -> Iterator[int]:
    """Numbers of turns to try to omit, smallest first: multiples of a step, so that a growing chat
    omits the same turns for a while; at last all but one."""
    step = policy.drop_turns
    while step > 1 and (step > policy.keep_turns or 2 * step > num_turns):
        step //= 2
    least = max(1, num_turns - policy.keep_turns)
    yield from range(-(-least // step) * step, num_turns - 1, step)
    if num_turns > 1:
        yield num_turns - 1


def _cut(messages: Sequence[Message], excess: int, policy: RewritingPolicy) -> list[Message] | None:
    """The chat without `excess` characters of its longest message that is not a system message;
    None if that message is too short."""
    lengths = [(len(m.content), n) for n, m in enumerate(messages) if m.role not in SYSTEM_ROLES]
    if not lengths:
        return None
    length, at = max(lengths)
    num_kept = length - excess - len(policy.mark)
    if num_kept < 1:
        return None
    text = messages[at].content
    if policy.too_long == TooLong.CUT_HEAD:
        text = policy.mark + text[length - num_kept :]
    elif policy.too_long == TooLong.CUT_TAIL:
        text = text[:num_kept] + policy.mark
    else:
        half = num_kept // 2
        text = text[: num_kept - half] + policy.mark + (text[-half:] if half else "")
    return [*messages[:at], replace(messages[at], content=text), *messages[at + 1 :]]
