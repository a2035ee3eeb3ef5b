"""Settings of the relay: when replicas are taken to hang, and when sessions move. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.bounds import PositiveFloat, PositiveInt


@dataclass(frozen=True, slots=True)
class HangPolicy:
    """How long replicas and sessions may go without tokens."""

    min_silence_s: PositiveFloat = 2.0
    """No silence of a replica shorter than this counts."""
    num_calls: PositiveFloat = 8.0
    """Nor one shorter than this many of its longest engine calls, by the cost it reports."""
    stall_s: PositiveFloat = 30.0
    """A session without a token for this long moves though its replica serves others. They may
    have the better right to it, but not for ever."""


@dataclass(frozen=True, slots=True)
class FailoverPolicy:
    """When sessions may move to another replica."""

    share: float = 1.0
    """Moves of one model's sessions allowed within the window, for each live session of it."""
    min_moves: PositiveInt = 64
    """Moves of one model's sessions allowed within the window in addition."""
    window_s: PositiveFloat = 10.0
    timeout_s: PositiveFloat = 30.0
    """A session that finds no other replica within this time is ended."""
    max_crashes: PositiveInt = 2
    """A request is ended when this many replicas crashed in an engine call with it, if it was the
    only request in one of these calls."""


@dataclass(frozen=True, slots=True)
class KvAheadPolicy:
    """KV that is copied before a replica is lost (`[router.kv_ahead]`)."""

    enabled: bool = False
    """Whether the replica to which a session would move copies its KV while it is served elsewhere
    (docs/guides/prefix-store.md). Takes memory bandwidth and processor time of both replicas, and
    room in the pool of the second."""
