"""Where a session goes: constraints first, then the least predicted wait in milliseconds. Pure.

The wait is predicted as `rtt + queue drain + own prefill`, in the engine's own fitted cost
`fixed_ms + row_ms * rows` per call. Between near-equal replicas the better of two random ones is
taken (Mitzenmacher, "The power of two choices in randomized load balancing", 2001), so that
several routers with the same reports do not all run to the same replica.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from random import Random

from outrider.errors import (
    NoReplicaError,
    OverloadedError,
    UnknownModelError,
    VocabularyMismatchError,
)
from services.router.fleet.load import Load
from services.router.fleet.replica import Replica

CHUNK_TOKENS = 256
"""Prompt tokens assumed per engine call while a prompt is prefilled."""

REPLY_TOKENS = 128
"""Length assumed of the replies that have to end before a full replica has a place."""

ROWS_PER_SESSION = 2
"""Rows a running session adds to every call (the two-row rule of bit-exactness)."""

UNREPORTED = Load(fixed_ms=10.0, row_ms=1.0)
"""Assumed of a replica that has not reported yet: a small CPU engine, idle."""

RETRY_DELAY_MS = 250


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """What the operator decides."""

    near_ms: float
    """Replicas whose predicted wait lies this close to the best one share the load."""
    max_queued: int
    """Sessions that may wait for a place on one replica."""


@dataclass(frozen=True, slots=True)
class Request:
    """What placement needs to know of a session."""

    model: str
    vocabulary_digest: bytes
    prompt_tokens: int
    residency: tuple[str, ...] = ()
    """Regions that may hold the prompt; empty: any."""
    exclude: frozenset[str] = field(default_factory=frozenset)
    """Replicas already tried for this session."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The predicted time to the first token on one replica, term by term."""

    rtt_ms: float
    place_ms: float
    """Until enough running sessions have ended, on a replica whose places are all taken."""
    queue_ms: float
    """Until the prompts ahead are prefilled."""
    prefill_ms: float
    """The session's own prompt, shared calls with running sessions included."""

    @property
    def total_ms(self) -> float:
        """The sum."""
        return self.rtt_ms + self.place_ms + self.queue_ms + self.prefill_ms


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen replica and the reason."""

    replica: str
    wait: Wait
    considered: tuple[tuple[str, float], ...]
    """Every replica that met the constraints with its predicted wait in ms, best first."""


def predict(replica: Replica, prompt_tokens: int) -> Wait:
    """The wait of a session with that many prompt tokens, were it placed there now."""
    load = replica.load or UNREPORTED
    # Instances share sessions and prompts evenly; a prompt is computed by one of them.
    ahead = _each(load.queued_prompt_tokens + replica.placed_tokens, load)
    num_running = min(replica.num_sessions, load.max_sessions or replica.num_sessions)
    call_ms = load.fixed_ms + load.row_ms * ROWS_PER_SESSION * _each(num_running, load)
    # Places come free one by one, over the time of a reply for all of them.
    share = replica.num_excess / load.max_sessions if replica.num_excess else 0.0
    return Wait(
        rtt_ms=replica.rtt.smoothed_ms,
        place_ms=share * REPLY_TOKENS * call_ms,
        queue_ms=ahead * load.row_ms + _num_calls(ahead) * call_ms,
        prefill_ms=prompt_tokens * load.row_ms + max(1, _num_calls(prompt_tokens)) * call_ms,
    )


def place(
    request: Request, replicas: Iterable[Replica], rng: Random, policy: PlacementPolicy
) -> Decision:
    """Choose a replica.

    Raises UnknownModelError, VocabularyMismatchError, NoReplicaError or OverloadedError; the
    message says which replicas stood where.
    """
    waits = sorted(
        (
            (predict(able, request.prompt_tokens), able.name)
            for able in _able(request, replicas, policy)
        ),
        key=lambda pair: pair[0].total_ms,
    )
    limit_ms = waits[0][0].total_ms + policy.near_ms
    num_near = sum(wait.total_ms <= limit_ms for wait, _ in waits)
    # Sorted by wait, so the better of two random ones is the one with the lower index.
    best = min(rng.sample(range(num_near), 2)) if num_near > 2 else 0
    wait, name = waits[best]
    return Decision(name, wait, tuple((other, wait.total_ms) for wait, other in waits))


def _each(count: int, load: Load) -> int:
    return -(-count // load.num_instances)


def _num_calls(tokens: int) -> int:
    return -(-tokens // CHUNK_TOKENS)


def _able(request: Request, replicas: Iterable[Replica], policy: PlacementPolicy) -> list[Replica]:
    """The replicas that meet every constraint, checked in the order that explains best."""
    found = _of_model(request, list(replicas))
    found = _of_vocabulary(request, found)
    found = _in_residency(request, found)
    ready = [
        replica
        for replica in found
        if replica.takes_sessions and replica.name not in request.exclude
    ]
    if not ready:
        raise NoReplicaError(
            f"No replica can serve model {request.model} now ({_stand(found, request.exclude)}): "
            "try again in a moment.",
            retry_delay_ms=RETRY_DELAY_MS,
        )
    free = [replica for replica in ready if replica.num_excess <= policy.max_queued]
    if not free:
        raise OverloadedError(
            f"Every replica of model {request.model} is full ({_fill(ready)}): try again later.",
            retry_delay_ms=RETRY_DELAY_MS,
        )
    return free


def _of_model(request: Request, replicas: list[Replica]) -> list[Replica]:
    """Those that serve the model, or may: a replica never reached yet and without a hint."""
    if not replicas:
        raise NoReplicaError("This router has no replicas: list them in [[router.replicas]].")
    found = [replica for replica in replicas if replica.model_name in ("", request.model)]
    if not found:
        known = ", ".join(sorted({replica.model_name for replica in replicas}))
        raise UnknownModelError(f"No replica serves model {request.model}: use one of {known}.")
    return found


def _of_vocabulary(request: Request, replicas: list[Replica]) -> list[Replica]:
    found = [
        replica
        for replica in replicas
        if replica.model is None or replica.model.vocabulary_digest == request.vocabulary_digest
    ]
    if not found:
        theirs = sorted({r.model.vocabulary_digest.hex() for r in replicas if r.model})
        raise VocabularyMismatchError(
            f"The ids are of vocabulary {request.vocabulary_digest.hex() or '(none)'} but model "
            f"{request.model} has {', '.join(theirs)}: send messages, or use that vocabulary.",
            metadata={"ours": ",".join(theirs), "theirs": request.vocabulary_digest.hex()},
        )
    return found


def _in_residency(request: Request, replicas: list[Replica]) -> list[Replica]:
    if not request.residency:
        return replicas
    found = [replica for replica in replicas if replica.region in request.residency]
    if not found:
        held = ", ".join(sorted({replica.region for replica in replicas}))
        raise NoReplicaError(
            f"Model {request.model} has no replica in {', '.join(request.residency)}, where the "
            f"prompt may be held, only in {held}: widen the residency."
        )
    return found


def _stand(replicas: Iterable[Replica], tried: Container[str]) -> str:
    return ", ".join(
        f"{replica.name} {'tried' if replica.name in tried else replica.state.name}"
        for replica in replicas
    )


def _fill(replicas: Iterable[Replica]) -> str:
    return ", ".join(
        f"{replica.name} {replica.num_sessions} of {replica.load.max_sessions}"
        for replica in replicas
        if replica.load
    )
