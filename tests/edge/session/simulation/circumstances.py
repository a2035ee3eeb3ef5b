"""What a chat in virtual time meets with, and the words it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams

PROMPT = tuple(range(3, 23))
NUM_TOKENS = 240
SESSION = 1


@dataclass(frozen=True)
class Circumstances:
    """What a chat meets with; times in seconds."""

    rtt_s: float = 0.05
    jitter_s: float = 0.0
    accuracy: float = 0.8
    """Chance that a draft is right after right ones."""
    draft_s: float = 0.005
    call_s: float = 0.03
    row_s: float = 0.0006
    repetition: float = 0.0
    """Of the model's text: what the replica can guess by itself."""
    num_tokens: int = NUM_TOKENS
    seed: int = 0
    rtt_at: Callable[[float], float] | None = None
    """The round trip by the time since the beginning, if it changes."""

    def options(self) -> FakeOptions:
        return FakeOptions(
            repetition=self.repetition,
            fixed_ms=self.call_s * 1e3,
            row_ms=self.row_s * 1e3,
            min_rows=1,
            seed=self.seed % 3,
        )


def sampling(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True)


class Words:
    """Detokenizes ids of FakeEngine to words, endings and full stops."""

    def push(self, token: int) -> str:
        return word(token)

    def push_all(self, tokens: Sequence[int]) -> str:
        return "".join(map(self.push, tokens))

    def finish(self) -> str:
        return ""


def word(token: int) -> str:
    if token % 10 == 0:
        return "."
    return ("ing" if token % 5 == 0 else " w") + "abcdefghij"[token % 7]
