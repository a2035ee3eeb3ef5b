"""Lines of system messages that are for a provider's servers and not for the model (pure).

Claude Code begins its system prompt with a line like
`x-anthropic-billing-header: cc_version=...; cc_entrypoint=cli; cch=8ae40;`, which another server
takes out before the model reads the prompt. It differs from request to request, so behind it no
prompt has a beginning in common with an earlier one, and all of it would be computed again.

Only whole lines that an operator names by their beginning are left out, and only of system
messages: what users and tools say is shown as it is. A date or a time is for the model to read, and
stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from outrider.errors import ConfigError
from outrider.models.chat import Message

BILLING_LINE: Final = "x-anthropic-billing-header:"
_ROLES: Final = ("system", "developer")
_MAX_BEGINNINGS: Final = 64
_MIN_CHARS: Final = 4
_MAX_CHARS: Final = 256


class LeftOutLines:
    """The lines that models are not shown, by how they begin."""

    def __init__(self, beginnings: Iterable[str] = ()) -> None:
        """Raises ConfigError for beginnings that are none, or that would match nearly any line."""
        self._beginnings = tuple(beginnings)
        if len(self._beginnings) > _MAX_BEGINNINGS:
            raise ConfigError(f"http.left_out_lines has at most {_MAX_BEGINNINGS} entries")
        for beginning in self._beginnings:
            if not _MIN_CHARS <= len(beginning.strip()) <= _MAX_CHARS or "\n" in beginning:
                raise ConfigError(
                    f"http.left_out_lines: {beginning[:_MAX_CHARS]!r} is no beginning of a line, "
                    f"which has {_MIN_CHARS} to {_MAX_CHARS} characters; write "
                    f"{BILLING_LINE!r}, or [] to leave nothing out"
                )

    def without(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages without these lines. A system message that had nothing else is left out
        too, unless it is all that there is."""
        if not any(map(self._may_lose, messages)):
            return messages
        shortened = [self._shortened(it) if self._may_lose(it) else it for it in messages]
        told = [
            after
            for before, after in zip(messages, shortened, strict=True)
            if after.content or not before.content
        ]
        return tuple(told or shortened)

    def found(self, messages: tuple[Message, ...]) -> tuple[str, ...]:
        """The beginnings of the lines that `without` leaves out of these messages."""
        texts = [it.content for it in messages if self._may_lose(it)]
        lines = [line for text in texts for line in text.split("\n")]
        return tuple(it for it in self._beginnings if any(line.startswith(it) for line in lines))

    def _may_lose(self, message: Message) -> bool:
        return message.role in _ROLES and any(it in message.content for it in self._beginnings)

    def _shortened(self, message: Message) -> Message:
        lines = message.content.split("\n")
        told = "\n".join(line for line in lines if not line.startswith(self._beginnings))
        return replace(message, content=told)
