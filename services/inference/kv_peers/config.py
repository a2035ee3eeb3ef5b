"""The settings of KV between replicas."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.bounds import NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True, slots=True)
class KvPeersConfig:
    """KV from other replicas and to them: table `[inference.kv_peers]`."""

    enabled: bool = True
    """Whether this replica asks others for KV that a router says they have, and answers them. An
    engine whose KV is its own, or that is not exact, does neither."""
    timeout_ms: PositiveFloat = 1000.0
    """Longest wait for the next piece of a block, in milliseconds. No session waits for a block:
    one that does not come is computed."""
    min_tokens: PositiveInt = 128
    """Least tokens that another replica must have more of before any are fetched."""
    max_streams: PositiveInt = 16
    """Replicas' requests that are answered at once; further ones are refused, and computed."""
    max_streams_per_peer: PositiveInt = 4
    """Requests of one host that are answered at once."""
    max_held_bytes: PositiveInt = 128 << 20
    """KV copied for one host that it has not taken yet; at least one block for each request."""
    linger_s: NonNegativeFloat = 2.0
    """How long a replica that stops in the middle of replies still answers while it is asked, so
    that the replicas that continue them can fetch their KV; 0: not at all."""
