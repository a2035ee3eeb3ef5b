"""Chats made as the operator wants them, and shorter where they do not fit.

How many tokens a text has is known only when it is tokenized. So a chat that came out too long is
made shorter by the share that its own tokens say, and tokenized again: what is let through was
counted, never estimated.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from outrider.errors import PromptTooLongError
from outrider.models.chat import Message
from outrider.tokenization.rewriting.policy import AS_IT_IS, TURNS, RewritingPolicy, TooLong

_MARGIN: Final = 1.02
_SYSTEM: Final = "system"


class Rewriter:
    """Rewrites by one policy. Equal chats become equal chats."""

    def __init__(self, policy: RewritingPolicy = AS_IT_IS) -> None:
        self._policy = policy

    @property
    def has_prefix(self) -> bool:
        """Whether `prepare` puts anything before chats."""
        return bool(self._policy.system_prefix)

    def prepare(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The chat with the operator's prefix. One without any text stays so, and is refused."""
        prefix = self._policy.system_prefix
        if not prefix or not any(message.content for message in messages):
            return messages
        first, *rest = messages
        if first.role != _SYSTEM:
            return [Message(_SYSTEM, prefix), *messages]
        return [Message(_SYSTEM, f"{prefix}\n\n{first.content}"), *rest]

    def fitted(
        self,
        messages: Sequence[Message],
        num_tokens: int,
        max_tokens: int,
        encode: Callable[[Sequence[Message]], array[int]],
    ) -> array[int]:
        """The ids of a chat that has `num_tokens`, which are more than `max_tokens`, made so short
        that it leaves room for a reply too.

        `encode` is asked for the ids of shorter and shorter chats. Raises PromptTooLongError where
        the policy has none that fits, and what `encode` raises.
        """
        room = max_tokens + 1 - self._policy.min_reply_tokens
        num_chars, count = _num_chars(messages), num_tokens
        # Less than before every time, for `count` is above `room`.
        while (max_chars := int(num_chars * room / (count * _MARGIN))) > 0:
            found = self._shorter(messages, max_chars)
            if found is None:
                break
            ids = encode(found)
            if len(ids) <= room:
                return ids
            num_chars, count = _num_chars(found), len(ids)
        raise PromptTooLongError.of(num_tokens, max_tokens)

    def _shorter(self, messages: Sequence[Message], max_chars: int) -> Sequence[Message] | None:
        """Of at most so many characters; None where the policy has none."""
        policy = self._policy
        if policy.too_long == TooLong.REFUSE:
            return None
        if policy.too_long == TooLong.KEEP_TURNS:
            return _last_turns(messages, max_chars, policy)
        return _cut(messages, _num_chars(messages) - max_chars, policy)


def _num_chars(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


def _last_turns(
    messages: Sequence[Message], max_chars: int, policy: RewritingPolicy
) -> Sequence[Message] | None:
    """Leading system messages, the first message after them, and as many of the last ones as
    `max_chars` allow, the very last in any case; None if even those are too long."""
    num_system = next((n for n, m in enumerate(messages) if m.role != _SYSTEM), len(messages))
    head, turns = messages[: num_system + 1], messages[num_system + 1 :]
    for count in _counts_left_out(len(turns), policy):
        told = head[-1].content + policy.omitted.replace(TURNS, str(count))
        found = [*head[:-1], replace(head[-1], content=told), *turns[count:]]
        if _num_chars(found) <= max_chars:
            return found
    return None


def _counts_left_out(num_turns: int, policy: RewritingPolicy) -> Iterator[int]:
    """How many turns may be left out, the least first: multiples of a step, so that a chat that
    grows has the same ones left out for a while; at last all but one."""
    step = policy.drop_turns
    while step > 1 and (step > policy.keep_turns or 2 * step > num_turns):
        step //= 2
    least = max(1, num_turns - policy.keep_turns)
    yield from range(-(-least // step) * step, num_turns - 1, step)
    if num_turns > 1:
        yield num_turns - 1


def _cut(messages: Sequence[Message], excess: int, policy: RewritingPolicy) -> list[Message] | None:
    """Without so many characters of the longest message that is not the system's; None if it has
    not so many."""
    lengths = [(len(m.content), n) for n, m in enumerate(messages) if m.role != _SYSTEM]
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
