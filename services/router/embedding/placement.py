"""Places inputs to embed on the replica that is predicted to finish them first (pure).

    predicted ms = round trip + cost of a token * (tokens it reported + tokens sent since + these)

The reported tokens include those that this router sent before the report. Counting some of them
twice for one report interval spreads a burst, and never concentrates it. In a large fleet the best
of a few random replicas is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from random import Random
from typing import Final

from outrider.errors import NoReplicaError, OutriderError, UnknownModelError
from outrider.model_identity import same_model, short_form
from services.router.fleet.replica import Replica

_BYTES_PER_TOKEN: Final = 3
"""Rather too few: what a tenant has reserved and not used it gets back."""
_AROUND: Final = 2
"""Tokens that begin and end a text."""
_RETRY_MS: Final = 500
MAX_COMPARED: Final = 32
"""Replicas that a choice compares."""
NUM_SAMPLED: Final = 8
"""Number of random replicas compared in a large fleet."""
_ASSUMED_TOKEN_MS: Final = 0.5
"""Cost of a token on a replica that has not reported one yet."""


def estimated_tokens(num_bytes: int, max_tokens: int) -> int:
    """Estimated tokens of a text of `num_bytes` bytes, for a model that takes at most `max_tokens`;
    0: its limit is unknown."""
    estimate = num_bytes // _BYTES_PER_TOKEN + _AROUND
    return min(estimate, max_tokens) if max_tokens else estimate


class EmbeddingPlacement:
    """Chooses replicas, and counts the tokens sent to each that are not answered yet."""

    def __init__(self, rng: Random) -> None:
        """`rng`: which replicas of a large fleet are looked at."""
        self._sent: dict[str, int] = {}
        self._rng = rng

    def sent_tokens(self, replica: str) -> int:
        """Estimated tokens of this router's inputs there."""
        return self._sent.get(replica, 0)

    def sent(self, replica: str, num_tokens: int) -> None:
        """Inputs of so many tokens were sent there."""
        self._sent[replica] = self.sent_tokens(replica) + num_tokens

    def settled(self, replica: str, num_tokens: int) -> None:
        """They were answered, or are somebody else's now."""
        left = self.sent_tokens(replica) - num_tokens
        if left > 0:
            self._sent[replica] = left
        else:
            self._sent.pop(replica, None)

    def predicted_ms(self, replica: Replica, num_tokens: int) -> float:
        """Until so many further tokens would be done there."""
        load = replica.load
        reported = load.queued_prompt_tokens if load is not None else 0
        token_ms = (load.row_ms if load is not None else 0.0) or _ASSUMED_TOKEN_MS
        ahead = max(reported, self.sent_tokens(replica.name))
        return replica.rtt.smoothed_ms + token_ms * (ahead + num_tokens)

    def choose(
        self,
        replicas: Iterable[Replica],
        model: str,
        num_tokens: int,
        *,
        identity: bytes,
        residency: Collection[str],
        exclude: Collection[str] = (),
    ) -> Replica:
        """The replica with the least predicted time. `identity`: the model identity that computed
        other vectors of the request; b"": there are none. Raises UnknownModelError,
        NoReplicaError."""
        everyone = list(replicas)
        # A few at random (Mitzenmacher, 2001, the power of choices): several routers that know the
        # same loads would all take the same replica, and looking at a thousand takes a millisecond.
        if len(everyone) > MAX_COMPARED:
            some = self._rng.sample(everyone, NUM_SAMPLED)
            best = self._best(some, model, num_tokens, identity, residency, exclude)
            if best is not None:
                return best
        best = self._best(everyone, model, num_tokens, identity, residency, exclude)
        if best is None:
            raise self._nobody(everyone, model, identity, residency, exclude)
        return best

    def _best(
        self,
        replicas: Sequence[Replica],
        model: str,
        num_tokens: int,
        identity: bytes,
        residency: Collection[str],
        exclude: Collection[str],
    ) -> Replica | None:
        best: Replica | None = None
        least = (0.0, "")
        for it in replicas:
            if (
                it.model is None
                or it.model.name != model
                or not it.model.dimensions
                or not it.takes_sessions
                or it.name in exclude
                or (residency and it.region not in residency)
                or (identity and not same_model(it.model_identity, identity))
            ):
                continue
            predicted = (self.predicted_ms(it, num_tokens), it.name)
            if best is None or predicted < least:
                best, least = it, predicted
        return best

    def _nobody(
        self,
        replicas: Sequence[Replica],
        model: str,
        identity: bytes,
        residency: Collection[str],
        exclude: Collection[str],
    ) -> OutriderError:
        """Why none can be chosen."""
        embedders = [it for it in replicas if it.model is not None and it.model.dimensions]
        serving = [it for it in replicas if _may_serve(it, model)]
        if not serving:
            names = ", ".join(sorted({it.model_name for it in embedders})) or "none"
            return UnknownModelError(
                f"no replica embeds with model {model[:100]!r}; those that embed here: {names}"
            )
        is_other = identity and any(
            it.takes_sessions
            and it.name not in exclude
            and (not residency or it.region in residency)
            for it in serving
        )
        states = ", ".join(f"{it.name} {it.state.name}" for it in serving)
        what = f", as {short_form(identity)} computes," if is_other else ""
        return NoReplicaError(
            f"no replica can embed with model {model}{what} now ({states}); try again in a moment",
            retry_delay_ms=_RETRY_MS,
        )


def _may_serve(replica: Replica, model: str) -> bool:
    """Whether it embeds with the model, or may for all that is known of one not reached yet."""
    if replica.model is None:
        return replica.model_name in ("", model)
    return replica.model.name == model and bool(replica.model.dimensions)
