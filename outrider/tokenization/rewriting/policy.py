"""Settings of the rewriting of chats."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from outrider.errors import ConfigError


class TooLong(StrEnum):
    """What becomes of a chat that does not fit the context."""

    REFUSE = "refuse"
    """It is refused, and both numbers are named."""
    CUT_HEAD = "cut_head"
    """The beginning of its longest message goes."""
    CUT_TAIL = "cut_tail"
    """The end of it goes."""
    CUT_MIDDLE = "cut_middle"
    """The middle of it goes."""
    KEEP_TURNS = "keep_turns"
    """System messages, the first turn and the last ones stay; what is between goes, and a text that
    says so comes in its place. No model sums it up."""


TURNS: Final = "{turns}"
"""In `RewritingPolicy.omitted`: how many turns were left out."""
_MAX_PREFIX_BYTES: Final = 32_768
"""A thin client's messages and the prefix go up in one frame, which has room for so much more."""


@dataclass(frozen=True, slots=True)
class RewritingPolicy:
    """Raises ConfigError at construction."""

    system_prefix: str = ""
    """Put before every chat's system prompt, or in place of one; empty: nothing is."""
    too_long: str = TooLong.REFUSE.value
    """refuse, cut_head, cut_tail, cut_middle or keep_turns."""
    keep_turns: int = 8
    """With keep_turns: the most messages at the end that stay; fewer where they do not fit."""
    drop_turns: int = 4
    """With keep_turns: so many messages go at once, in short chats fewer. Until the next ones go,
    each prompt begins with the one before it, and replicas have that cached."""
    omitted: str = f"\n\n[earlier conversation omitted: {TURNS} messages]"
    """With keep_turns: stands behind the first turn where turns were left out; empty: nothing."""
    min_reply_tokens: int = 256
    """What a chat that is made shorter leaves of the context for its reply."""
    mark: str = "\n[...]\n"
    """Stands where text was cut out."""

    def __post_init__(self) -> None:
        known = [one.value for one in TooLong]
        if self.too_long not in known:
            raise ConfigError(f"too_long must be one of {', '.join(known)}, not {self.too_long!r}")
        if self.keep_turns < 1:
            raise ConfigError(f"keep_turns is {self.keep_turns}: the last message has to stay")
        if self.drop_turns < 1:
            raise ConfigError(f"drop_turns is {self.drop_turns}: set it above 0")
        num_bytes = len(self.system_prefix.encode())
        if num_bytes > _MAX_PREFIX_BYTES:
            raise ConfigError(
                f"system_prefix has {num_bytes} bytes; at most {_MAX_PREFIX_BYTES} fit"
            )
        if self.min_reply_tokens < 1:
            raise ConfigError(f"min_reply_tokens is {self.min_reply_tokens}: set it above 0")


AS_IT_IS: Final = RewritingPolicy()
"""Nothing is rewritten."""
