"""Chats made as the operator wants them, and shorter where they do not fit.

How many tokens a text has is known only when it is tokenized. So a chat that came out too long is
made shorter by the share that its own tokens say, and tokenized again: what is let through was
counted, never estimated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from outrider.models.chat import Message
from outrider.tokenization.rewriting.policy import AS_IT_IS, RewritingPolicy, TooLong

_MARGIN: Final = 1.02
_SYSTEM: Final = "system"


class Rewriter:
    """Rewrites by one policy. Equal chats become equal chats."""

    def __init__(self, policy: RewritingPolicy = AS_IT_IS) -> None:
        self._policy = policy

    def prepare(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The chat with the operator's prefix."""
        prefix = self._policy.system_prefix
        if not prefix or not messages:
            return messages
        first, *rest = messages
        if first.role != _SYSTEM:
            return [Message(_SYSTEM, prefix), *messages]
        return [Message(_SYSTEM, f"{prefix}\n\n{first.content}"), *rest]

    def shorter(
        self, messages: Sequence[Message], num_tokens: int, max_tokens: int
    ) -> Sequence[Message] | None:
        """A chat with fewer characters, of about `max_tokens` less what a reply needs, for one
        that has `num_tokens`; None where the policy has none."""
        policy = self._policy
        num_chars = _num_chars(messages)
        room = max_tokens + 1 - policy.min_reply_tokens
        if policy.too_long == TooLong.REFUSE or room < 1 or not num_chars:
            return None
        excess = math.ceil(num_chars * (1 - room / (num_tokens * _MARGIN)))
        if policy.too_long == TooLong.KEEP_TURNS:
            found = _last_turns(messages, num_chars - excess, policy.keep_turns)
        else:
            found = _cut(messages, max(1, excess), policy)
        return found if found is not None and _num_chars(found) < num_chars else None


def _num_chars(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


def _last_turns(
    messages: Sequence[Message], max_chars: int, keep_turns: int
) -> Sequence[Message] | None:
    """Leading system messages, the first message after them, and as many of the last ones as
    `max_chars` allow, the very last in any case; None if even those are too long."""
    num_system = next((n for n, m in enumerate(messages) if m.role != _SYSTEM), len(messages))
    head, turns = list(messages[: num_system + 1]), messages[num_system + 1 :]
    if not turns:
        return None
    for count in range(min(keep_turns, len(turns)), 0, -1):
        found = [*head, *turns[-count:]]
        if _num_chars(found) <= max_chars:
            return found
    return None


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
