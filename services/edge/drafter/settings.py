"""What a drafter is set up with, and how much it takes on (pure)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Final

MAX_LEAD: Final = 65_535
"""What its messages have room for."""


@dataclass(frozen=True, slots=True)
class DrafterLimits:
    """Bounds, and when a chain ends."""

    max_sessions: int = 64
    max_lead: int = 32
    """Most guesses ahead of what is final."""
    min_survival: float = 0.2
    """A chain ends where it is less likely than this to be right so far..."""
    first_tokens: int = 4
    """...but for a reply's first tokens..."""
    first_survival: float = 0.01
    """...where this is enough: DraftLimits.first_survival."""
    sure: float = 0.9
    """A copy this likely is not shown to the model before it is taken, behind the first tokens."""
    branch_tokens: int = 4
    """Guesses behind a second guess."""
    min_branch: float = 0.2
    """Least chance that a second guess will be needed: it saves a step, and costs several."""
    max_rounds: int = 16
    """Most sessions in one call of the model."""
    catch_up_tokens: int = 16
    """More tokens without KV than this are computed in chunks, as a prompt is."""
    chunk_tokens: int = 32
    """Prompt tokens in a call that others wait for."""
    idle_chunk_tokens: int = 128
    """The same when nobody does."""
    report_tokens: int = 4
    """So many new guesses are told at once; of a reply's first tokens, each."""
    report_s: float = 0.004
    """Fewer are told after this time, or when no more follow."""
    evict_idle_s: float = 5.0
    """A session that heard of nothing for this long may lose its KV to another."""

    def least(self, number: int) -> float:
        """Least survival of a guess for the reply's token `number`."""
        return self.first_survival if number < self.first_tokens else self.min_survival


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """All that the drafter's process is told when it starts."""

    model: str
    """The target's name."""
    draft_model: str = ""
    """load_draft's choice."""
    model_store: str = ""
    """The store's folder; empty: the machine's."""
    threads: int = 1
    kv_bytes: int = 64 << 20
    """Memory of the KV pool, touched only as it fills."""
    niceness: int = 10
    """Serving comes first."""
    log_level: str = "info"
    limits: DrafterLimits = field(default_factory=DrafterLimits)

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DrafterSettings:
        """Reads `to_json`'s text."""
        values = json.loads(text)
        return cls(**values | {"limits": DrafterLimits(**values["limits"])})
