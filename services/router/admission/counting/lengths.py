"""The class of a session by the length of its prompt. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import ConfigError
from outrider.session_types import Priority


@dataclass(frozen=True, slots=True)
class LengthPolicy:
    """Long prompts step back behind short ones (`[router.lengths]`). Raises ConfigError."""

    medium_above_tokens: int = 0
    """A longer prompt is at most MEDIUM; 0: however long it is."""
    low_above_tokens: int = 0
    """A longer prompt is LOW; 0: however long it is."""

    def __post_init__(self) -> None:
        for name in ("medium_above_tokens", "low_above_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"lengths.{name} is {getattr(self, name)}: use 0 for no limit.")
        if 0 < self.low_above_tokens < self.medium_above_tokens:
            raise ConfigError(
                "lengths.low_above_tokens is below medium_above_tokens: no prompt would be MEDIUM "
                "for its length."
            )

    def highest(self, prompt_tokens: int) -> Priority:
        """The highest class that a prompt of so many tokens may have."""
        if self.low_above_tokens and prompt_tokens > self.low_above_tokens:
            return Priority.LOW
        if self.medium_above_tokens and prompt_tokens > self.medium_above_tokens:
            return Priority.MEDIUM
        return Priority.HIGH
