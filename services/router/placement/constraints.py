"""Which replicas may have a session at all, and, where none may, why not. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable

import numpy as np

from outrider.errors import (
    NoReplicaError,
    OutriderError,
    OverloadedError,
    UnknownModelError,
    VocabularyMismatchError,
)
from services.router.fleet.replica import Replica
from services.router.placement.board import Board, Bools
from services.router.placement.request import LOW, RETRY_DELAY_MS, PlacementPolicy, Request

LOW_WAITS = 3
"""Overload level from which a replica leaves LOW sessions in its queue."""
NOBODY_ENTERS = 4
"""Overload level from which a replica refuses new sessions."""


def able(board: Board, request: Request, policy: PlacementPolicy) -> Bools:
    """[rows] whether a replica meets every constraint."""
    found = in_reach(board, request)
    limit = LOW_WAITS if request.priority == LOW else NOBODY_ENTERS
    found &= board.counts["overload"] < limit
    found &= board.num_excess[request.priority - 1] <= policy.max_queued
    return found


def in_reach(board: Board, request: Request) -> Bools:
    """[rows] whether a replica could have the session if it were not busy."""
    model = board.models.find((request.model, request.vocabulary_digest))
    found: Bools = board.takes & (board.counts["model"] == model)
    if request.residency:
        regions = board.counts["region"]
        allowed = np.zeros(len(board), dtype=np.bool_)
        for region in request.residency:
            allowed |= regions == board.regions.find(region)
        found &= allowed
    if request.exclude:
        found[board.rows(request.exclude)] = False
    return found


def refusal(request: Request, replicas: Iterable[Replica], board: Board) -> OutriderError:
    """Why no replica may have the session, checked in the order that explains best."""
    known = list(replicas)
    found = [replica for replica in known if replica.model_name in ("", request.model)]
    if not found:
        return _unknown_model(request, known)
    digests = (None, request.vocabulary_digest)
    fitting = [r for r in found if (r.model and r.model.vocabulary_digest) in digests]
    if not fitting:
        return _wrong_vocabulary(request, found)
    allowed = [r for r in fitting if not request.residency or r.region in request.residency]
    if not allowed:
        return _not_there(request, fitting)
    if rows := np.flatnonzero(in_reach(board, request)).tolist():
        return OverloadedError(
            f"Every replica of model {request.model} is full ({_fill(board, rows)}): "
            "try again later.",
            retry_delay_ms=RETRY_DELAY_MS,
        )
    return NoReplicaError(
        f"No replica can serve model {request.model} now ({_stand(allowed, request.exclude)}): "
        "try again in a moment.",
        retry_delay_ms=RETRY_DELAY_MS,
    )


def _unknown_model(request: Request, known: list[Replica]) -> OutriderError:
    if not known:
        return NoReplicaError("This router has no replicas: list them in [[router.replicas]].")
    names = ", ".join(sorted({replica.model_name for replica in known}))
    return UnknownModelError(f"No replica serves model {request.model}: use one of {names}.")


def _wrong_vocabulary(request: Request, found: list[Replica]) -> OutriderError:
    ours = sorted({r.model.vocabulary_digest.hex() for r in found if r.model})
    theirs = request.vocabulary_digest.hex()
    return VocabularyMismatchError(
        f"The ids are of vocabulary {theirs or '(none)'} but model {request.model} has "
        f"{', '.join(ours)}: send messages, or use that vocabulary.",
        metadata={"ours": ",".join(ours), "theirs": theirs},
    )


def _not_there(request: Request, fitting: list[Replica]) -> OutriderError:
    held = ", ".join(sorted({replica.region for replica in fitting}))
    return NoReplicaError(
        f"Model {request.model} has no replica in {', '.join(request.residency)}, where the "
        f"prompt may be held, only in {held}: widen the residency."
    )


def _stand(replicas: Iterable[Replica], tried: Container[str]) -> str:
    return ", ".join(
        f"{replica.name} {'tried' if replica.name in tried else replica.state.name}"
        for replica in replicas
    )


def _fill(board: Board, rows: list[int]) -> str:
    counts = board.counts
    return ", ".join(
        f"{board.names[row]} {board.num_sessions[0, row]} of {counts['max_sessions'][row]}"
        f"{', overloaded' if counts['overload'][row] >= LOW_WAITS else ''}"
        for row in rows
    )
